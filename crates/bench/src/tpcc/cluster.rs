//! The processes of a store, as the first process controls them.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::{HumanBytes, ProgressBar};
use mitra_failover::Domain;
use mitra_peer_process::PeerProcess;
use mitra_txn::{Inspection, Layout, Location, NodeId};
use mitra_txn_rdma::{Links, inspect, round_trips};
use mitra_txn_workloads::tpcc::{self, Load, Report};

use super::history::{self, Entry};
use super::process_messages::{FromCoordinator, Role, SetLink, Setup, Summary, ToCoordinator, clock, open};
use crate::endpoint::random;
use crate::report::median;
use crate::stopwatch::cpu_seconds;
use crate::{PEER_ROLE, Task};

/// The longest time for a coordinator to become live, to finish its transactions, or to end.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The number of READs that measure the round trip.
const ROUND_TRIPS: usize = 2000;
/// The interval at which [`Cluster::run`] checks for due faults.
const INTERVAL: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Faults {
    /// The period of the rail failures. One rail is down for half of each period.
    pub(super) period: Option<Duration>,
    /// The time from the start of the turn to the kill of coordinator 1.
    pub(super) kill: Option<Duration>,
}

pub(super) struct Cluster {
    pub(super) setup: Setup,
    layout: Rc<Layout>,
    addresses: Vec<SocketAddr>,
    memories: Vec<PeerProcess>,
    coordinators: Vec<PeerProcess>,
    histories: tempfile::TempDir,
    /// The NICs of the links that load and check the store.
    domain: Arc<Domain>,
    /// The round trip in nanoseconds: the lowest of several medians.
    pub(super) round_trip: f64,
    /// The times of the rail failures, by [`clock`].
    pub(super) failures: Vec<u64>,
    /// The times at which the links of failed rails came back, by [`clock`].
    pub(super) returns: Vec<u64>,
    pub(super) killed: Option<u64>,
    pub(super) turns: Vec<Turn>,
    /// The CPU time of coordinator processes that were killed.
    killed_cpu: f64,
}

/// A period in which transactions ran, by [`clock`], and the CPU time of the processes in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) cpu: CpuSeconds,
}

/// The CPU time of the memory processes and of the coordinator processes, in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct CpuSeconds {
    pub(super) memories: f64,
    pub(super) coordinators: f64,
}

/// The findings of a check of the store at rest.
pub(super) struct Check {
    pub(super) inspection: Inspection,
    pub(super) report: Report,
}

/// The committed transactions and the summaries of all coordinators.
#[derive(Default)]
pub(super) struct Results {
    pub(super) entries: Vec<Entry>,
    pub(super) summaries: Vec<Summary>,
}

impl Cluster {
    pub(super) fn start(setup: Setup, bar: &ProgressBar) -> anyhow::Result<Cluster> {
        let layout = setup.layout()?;
        let mut memories = Vec::new();
        let mut addresses = Vec::new();
        for node in 0..setup.memories {
            let mut memory = PeerProcess::start(PEER_ROLE)?;
            memory.connection.send(&Task::Tpcc(Box::new(Role::Memory { setup: setup.clone(), node })))?;
            addresses.push(memory.connection.receive()?);
            memories.push(memory);
        }
        let domain = open()?.0;
        let loader = setup.coordinators + 1;
        let mut links = Links::connect(&domain, &setup.links(loader, &addresses)?)?;
        let at = Location { node: NodeId(0), at: layout.life_line(loader) };
        let times = round_trips(&mut links, at, ROUND_TRIPS)?;
        let times: Vec<f64> = times.iter().map(|time| time.as_nanos() as f64).collect();
        let round_trip = times.chunks(ROUND_TRIPS / 10).map(median).fold(f64::INFINITY, f64::min);
        load(&setup, &layout, &mut links, bar)?;
        drop(links);
        let mut cluster = Cluster {
            histories: tempfile::tempdir().context("cannot create a directory for the histories")?,
            setup,
            layout,
            addresses,
            memories,
            coordinators: Vec::new(),
            domain,
            round_trip,
            failures: Vec::new(),
            returns: Vec::new(),
            killed: None,
            turns: Vec::new(),
            killed_cpu: 0.0,
        };
        for coordinator in 1..=cluster.setup.coordinators {
            let process = cluster.start_coordinator(coordinator)?;
            cluster.coordinators.push(process);
        }
        Ok(cluster)
    }

    /// Starts a coordinator process, and waits until the coordinator is live.
    fn start_coordinator(&mut self, coordinator: u16) -> anyhow::Result<PeerProcess> {
        let mut process = PeerProcess::start(PEER_ROLE)?;
        let role = Role::Coordinator {
            setup: self.setup.clone(),
            coordinator,
            nodes: self.addresses.clone(),
            history: self.histories.path().join(coordinator.to_string()),
        };
        process.connection.send(&Task::Tpcc(Box::new(role)))?;
        answer(&mut process)?;
        Ok(process)
    }

    fn tell_all(&mut self, message: ToCoordinator) -> anyhow::Result<()> {
        self.coordinators.iter_mut().try_for_each(|process| Ok(process.connection.send(&message)?))
    }

    fn cpu_seconds(&self) -> anyhow::Result<CpuSeconds> {
        let sum = |processes: &[PeerProcess]| -> anyhow::Result<f64> {
            processes.iter().map(|process| cpu_seconds(process.id())).sum()
        };
        let coordinators = sum(&self.coordinators)? + self.killed_cpu;
        Ok(CpuSeconds { memories: sum(&self.memories)?, coordinators })
    }

    /// Runs a turn with faults.
    pub(super) fn run(&mut self, time: Duration, faults: Faults, bar: &ProgressBar) -> anyhow::Result<()> {
        let before = self.cpu_seconds()?;
        self.tell_all(ToCoordinator::Run)?;
        let begin = Instant::now();
        let begun = clock();
        let mut shown = None;
        let mut next_down = faults.period;
        let mut up: Option<(Duration, usize, usize)> = None;
        let mut kill = faults.kill;
        let mut restart: Option<Duration> = None;
        loop {
            let now = begin.elapsed();
            if shown != Some(now.as_secs()) {
                shown = Some(now.as_secs());
                let (policy, seconds) = (self.setup.variant.name(), now.as_secs());
                let failures = self.failures.len();
                bar.set_message(format!("{policy}: {seconds} of {time:.0?}, {failures} failures of rails"));
            }
            if let Some((at, process, rail)) = up
                && (now >= at || now >= time)
            {
                self.set_link(process, SetLink { rail, is_up: true })?;
                self.returns.push(clock());
                up = None;
            }
            if now >= time {
                break;
            }
            if let (Some(at), Some(period)) = (next_down, faults.period)
                && now >= at
                && up.is_none()
            {
                // The rails of a process fail in turn. When one rail fails, the process moves to
                // the other, so each rail carries traffic when it fails.
                let (number, processes) =
                    (self.failures.len(), self.memories.len() + self.coordinators.len());
                let (process, rail) = (number % processes, number / processes % 2);
                self.set_link(process, SetLink { rail, is_up: false })?;
                self.failures.push(clock());
                up = Some((at + period / 2, process, rail));
                next_down = Some(at + period);
            }
            if kill.is_some_and(|at| now >= at) {
                let coordinator = self.coordinators.remove(0);
                self.killed_cpu += cpu_seconds(coordinator.id())?;
                drop(coordinator);
                up = up.filter(|(_, process, _)| *process < self.memories.len());
                self.killed = Some(clock());
                kill = None;
                restart = Some(now + self.setup.timeout + Duration::from_secs(1));
            }
            if restart.is_some_and(|at| now >= at) {
                restart = None;
                self.restart()?;
            }
            std::thread::sleep(INTERVAL);
        }
        if restart.is_some() {
            self.restart()?;
        }
        let (to, after) = (clock(), self.cpu_seconds()?);
        let cpu = CpuSeconds {
            memories: after.memories - before.memories,
            coordinators: after.coordinators - before.coordinators,
        };
        self.turns.push(Turn { from: begun, to, cpu });
        self.tell_all(ToCoordinator::Pause)?;
        self.coordinators.iter_mut().try_for_each(|process| answer(process).map(|_| ()))
    }

    /// Takes a link of a process down, or brings the link back. `process` counts the memory
    /// processes first, and then the coordinator processes.
    fn set_link(&mut self, process: usize, link: SetLink) -> anyhow::Result<()> {
        match process.checked_sub(self.memories.len()) {
            None => self.memories[process].connection.send(&link)?,
            Some(coordinator) => {
                self.coordinators[coordinator].connection.send(&ToCoordinator::SetLink(link))?;
            }
        }
        Ok(())
    }

    fn restart(&mut self) -> anyhow::Result<()> {
        let mut process = self.start_coordinator(1)?;
        process.connection.send(&ToCoordinator::Run)?;
        self.coordinators.push(process);
        Ok(())
    }

    /// Reads all tables while the coordinators pause.
    pub(super) fn check(&self) -> anyhow::Result<Check> {
        let config = self.setup.links(self.setup.coordinators + 1, &self.addresses)?;
        let mut links = Links::connect(&self.domain, &config)?;
        let (inspection, records) = inspect(&mut links, &self.layout)?;
        Ok(Check { inspection, report: tpcc::check(&records, &self.setup.scale()?) })
    }

    pub(super) fn stop(mut self) -> anyhow::Result<Results> {
        self.tell_all(ToCoordinator::Stop)?;
        let mut results = Results::default();
        for mut process in std::mem::take(&mut self.coordinators) {
            match answer(&mut process)? {
                FromCoordinator::Stopped(summary) => results.summaries.push(summary),
                other => bail!("a coordinator answered {other:?} instead of its summary"),
            }
        }
        for coordinator in 1..=self.setup.coordinators {
            results.entries.extend(history::read(&self.histories.path().join(coordinator.to_string()))?);
        }
        Ok(results)
    }
}

fn answer(process: &mut PeerProcess) -> anyhow::Result<FromCoordinator> {
    let answer = process.connection.receive_within(Some(ANSWER_TIMEOUT));
    answer.with_context(|| format!("a coordinator gave no answer within {ANSWER_TIMEOUT:?}"))
}

/// Loads the store. The bar has a step for each part.
fn load(setup: &Setup, layout: &Layout, links: &mut Links, bar: &ProgressBar) -> anyhow::Result<()> {
    let parts = Load::new(setup.scale()?, setup.seed, 0).parts();
    let begun = bar.position();
    let number = NonZeroU64::MIN | random()?;
    mitra_txn_rdma::load(links, layout, number, parts, |written, bytes| {
        bar.set_position(begun + written as u64);
        bar.set_message(format!("{}: loading, {}", setup.variant.name(), HumanBytes(bytes)));
    })?;
    Ok(())
}
