//! `mitra bench alarms`: counts the moves of vQPs although no rail fails, between two processes
//! that often have no processor.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use mitra_driver::{DrivenQp, Driver};
use mitra_failover::telemetry::FailoverCounts;
use mitra_failover::{
    Cause, Completion, Config, ConnectInfo, DetectorConfig, Domain, RemoteRegion, VirtualMr, VirtualQp,
};
use mitra_peer_process::{PeerConnection, PeerProcess};
use mitra_prng::Prng;
use mitra_verbs::{Access, Buffer, Data, Provider, SendOp, SendWr, SgeList};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::endpoint::{NicPlacement, random};
use super::report::{Machine, Report, row};
use super::{Common, PEER_ROLE, RunFailed, Task, progress, run_error};

/// The busy loops beside the two processes, for each processor.
const LOOPS_PER_CPU: usize = 2;
/// The time between two operations of a vQP.
const BETWEEN_OPERATIONS: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(10));
/// The outstanding operations of a vQP above which it posts no more.
const MAX_OUTSTANDING: usize = 8;
/// How long a process is stopped, and how long both run before the next stop.
const STOPPED: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(2));
const RUNS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));
/// The time for which each end waits for the other one: until it has connected its vQPs, and until
/// its operations have ended.
const PEER_TIMEOUT: Duration = Duration::from_secs(60);
/// The bytes of each vQP in the memory of an end: a counter and a word that the peer changes, and
/// the result of a fetch-and-add.
const MEMORY: usize = 32;
const COUNTER: usize = 0;
const WORD: usize = 8;
const RESULT: usize = 16;

/// Moves of vQPs although no rail fails, between processes that often have no processor
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  mitra bench alarms
  mitra bench alarms --stop --links udp --seconds 60 --json
Two processes, `a` and `b`, have --vqps vQPs over two rails between them, each driven by a `mitra-driver` thread. Each
vQP of each process posts a WRITE or a fetch-and-add of 8 bytes every 2 to 10 ms, beside two busy loops for each
processor. With --stop, one of the two processes at a time is stopped by SIGSTOP for 10 ms to 2 s. No rail fails, so
every move is a false alarm.
Rows for each process: `moves`, the failovers of its vQPs; `alarms/CAUSE`, how often it took a rail for failed itself:
because an operation failed (`completion`), by an event of the device, or as another rail alone answered (`heartbeat`);
`operations`, how many ended, all with success. docs/benchmarks.md describes the fields of --json.
Exit codes: 0 no vQP moved, 1 a vQP moved or the run failed, 2 bad arguments.")]
pub(crate) struct Args {
    /// Number of vQPs
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=4000))]
    vqps: u32,
    /// Seconds of the measurement
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Stop the processes by SIGSTOP, one at a time, at random times
    #[arg(long)]
    stop: bool,
    /// Seed of the times of the stops
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    common: Common,
}

/// The parameters of each of the two processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    vqps: u32,
    placement: NicPlacement,
}

/// The connection parameters of the vQPs of an end, and its memory.
#[derive(Debug, Serialize, Deserialize)]
struct EndInfo {
    vqps: Vec<Vec<u8>>,
    region: Vec<u8>,
}

/// The counts of an end after the measurement.
#[derive(Clone, Copy, Default, Debug, Serialize, Deserialize)]
struct Counts {
    operations: u64,
    fetch_adds: u64,
    /// The sum of the counters that the peer's fetch-and-adds increment.
    counters: u64,
    moves: u64,
    /// By the index of [`Cause::DETECTORS`].
    detected: [u64; Cause::DETECTORS.len()],
}

/// Busy loops, which end when the value is dropped.
struct BusyLoops(Arc<AtomicBool>);

impl BusyLoops {
    fn start(count: usize) -> BusyLoops {
        let is_over = Arc::<AtomicBool>::default();
        for _ in 0..count {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || while !is_over.load(Ordering::Relaxed) {});
        }
        BusyLoops(is_over)
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.common.check_software_nics("this benchmark")?;
    let machine = Machine::detect();
    let bar = progress(args.seconds);
    let mut ends = [0, 1].map(|_| PeerProcess::start(PEER_ROLE));
    let [Ok(a), Ok(b)] = &mut ends else { bail!("cannot start two processes") };
    let measured = measure(args, [a, b], &bar);
    let (counts, stops) = measured.map_err(|error| match a.reported_error() {
        Some(reported) => error.context(reported).context(RunFailed),
        None => run_error(b, error),
    })?;
    for end in ends {
        end?.wait()?;
    }
    bar.finish_and_clear();
    let mut rows = Vec::new();
    for (name, counts) in ["a", "b"].iter().zip(&counts) {
        rows.push(row(&format!("moves/{name}"), "moves", &[counts.moves as f64]));
        let by_detector = Cause::DETECTORS.iter().zip(counts.detected);
        // What the peer has told an end is no alarm of that end.
        rows.extend(
            by_detector
                .filter(|(cause, _)| **cause != "peer")
                .map(|(cause, count)| row(&format!("alarms/{cause}/{name}"), "alarms", &[count as f64])),
        );
        rows.push(row(&format!("operations/{name}"), "ops", &[counts.operations as f64]));
    }
    let settings = serde_json::json!({
        "vqps": args.vqps, "seconds": args.seconds, "stop": args.stop, "seed": args.seed,
        "links": args.common.links.to_string(), "rails": 2, "loops": LOOPS_PER_CPU * machine.cpus,
        "stops": stops,
    });
    let moves: u64 = counts.iter().map(|counts| counts.moves).sum();
    let notes = machine.warnings();
    Report { name: "alarms", unit: "moves", machine, settings, rows, claims: Vec::new(), notes }
        .print(args.common.json)?;
    Ok(if moves == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the counts of both ends, and the number of stops.
fn measure(
    args: &Args,
    mut ends: [&mut PeerProcess; 2],
    bar: &indicatif::ProgressBar,
) -> anyhow::Result<([Counts; 2], u64)> {
    for (end, placement) in ends.iter_mut().zip(args.common.placements()) {
        end.connection.send(&Task::Alarms(Setup { vqps: args.vqps, placement }))?;
    }
    let infos = each(&mut ends, |connection| connection.receive::<EndInfo>())?;
    for (end, info) in ends.iter_mut().zip(infos.iter().rev()) {
        end.connection.send(info)?;
    }
    each(&mut ends, |connection| connection.receive::<()>())?;
    for end in &mut ends {
        end.connection.send(&())?;
    }
    let loops = BusyLoops::start(LOOPS_PER_CPU * thread::available_parallelism().map_or(1, usize::from));
    let mut random = Prng::new(args.seed);
    let (begin, time) = (Instant::now(), Duration::from_secs(args.seconds));
    let mut stops = 0;
    while let Some(left) = time.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) {
        bar.set_position(begin.elapsed().as_secs());
        thread::sleep(between(&mut random, RUNS).min(left));
        if args.stop && begin.elapsed() < time {
            let end = Pid::from_raw(ends[random.index(2)].id() as i32);
            kill(end, Signal::SIGSTOP).context("a measured process has ended")?;
            thread::sleep(between(&mut random, STOPPED));
            kill(end, Signal::SIGCONT).context("a measured process has ended")?;
            stops += 1;
        }
    }
    for end in &mut ends {
        end.connection.send(&())?;
    }
    each(&mut ends, |connection| connection.receive_within::<()>(Some(2 * PEER_TIMEOUT)))?;
    drop(loops);
    // The operations of both ends have ended, so their effects can be counted.
    for end in &mut ends {
        end.connection.send(&())?;
    }
    let counts = each(&mut ends, |connection| connection.receive::<Counts>())?;
    for end in &mut ends {
        end.connection.send(&())?;
    }
    for (name, [from, to]) in [("a", counts), ("b", [counts[1], counts[0]])] {
        ensure!(
            from.fetch_adds == to.counters,
            "{} fetch-and-adds of {name} incremented the counters to {}",
            from.fetch_adds,
            to.counters
        );
    }
    Ok((counts, stops))
}

fn each<T>(
    ends: &mut [&mut PeerProcess; 2],
    receive: impl Fn(&mut PeerConnection) -> Result<T, mitra_peer_process::Error>,
) -> anyhow::Result<[T; 2]> {
    let [a, b] = ends;
    Ok([receive(&mut a.connection)?, receive(&mut b.connection)?])
}

fn between(random: &mut Prng, (least, most): (Duration, Duration)) -> Duration {
    Duration::from_nanos(random.between(least.as_nanos() as u64, most.as_nanos() as u64))
}

pub(crate) fn peer(setup: &Setup, connection: &mut PeerConnection) -> anyhow::Result<()> {
    let mut end = End::open(setup)?;
    connection.send(&end.info())?;
    end.connect(&connection.receive_within(Some(PEER_TIMEOUT))?)?;
    connection.send(&())?;
    connection.receive_within::<()>(Some(PEER_TIMEOUT))?;
    end.talk(connection)?;
    connection.receive::<()>()?;
    let operations = end.drain()?;
    connection.send(&())?;
    connection.receive_within::<()>(Some(2 * PEER_TIMEOUT))?;
    connection.send(&end.counts(operations))?;
    // The vQPs stay open until both ends have counted.
    Ok(connection.receive::<()>()?)
}

/// The vQPs and the memory of one of the two processes.
struct End {
    domain: Arc<Domain>,
    memory: Arc<Buffer>,
    mr: VirtualMr,
    peer: Option<RemoteRegion>,
    vqps: Vec<TalkingVqp>,
    fetch_adds: u64,
    random: Prng,
}

struct TalkingVqp {
    vqp: DrivenQp,
    /// The time of the next operation.
    due: Instant,
    posted: u64,
    ended: u64,
}

impl TalkingVqp {
    /// Takes completions. Returns the number of outstanding operations.
    fn take(&mut self, completions: &mut Vec<Completion>, timeout: Duration) -> anyhow::Result<usize> {
        completions.clear();
        if let Err(reason) = self.vqp.wait_timeout(completions, timeout) {
            bail!("a virtual queue pair ended: {reason}");
        }
        if let Some(failed) = completions.iter().find(|completion| !completion.is_success()) {
            bail!("an operation failed: {}", failed.outcome);
        }
        self.ended += completions.len() as u64;
        Ok((self.posted - self.ended) as usize)
    }
}

impl End {
    fn open(setup: &Setup) -> anyhow::Result<End> {
        let nics = setup.placement.open()?.map(|nic| nic as Arc<dyn Provider>);
        let domain = Domain::new(nics.to_vec())?;
        let detector = DetectorConfig { first_contact_timeout: PEER_TIMEOUT, ..DetectorConfig::default() };
        let depth = MAX_OUTSTANDING as u32;
        let config = Config { send_wrs: depth, recv_wrs: depth, detector, ..Config::default() };
        let driver = Driver::start().context("cannot start a thread")?;
        let memory = Arc::new(Buffer::new(MEMORY * setup.vqps as usize));
        let mr = domain.register(&memory, Access::LOCAL_WRITE | Access::REMOTE)?;
        let mut random = Prng::new(random()?);
        let mut vqps = Vec::new();
        for _ in 0..setup.vqps {
            let vqp = driver.serve(VirtualQp::builder(&domain).config(config))?;
            let due = Instant::now() + between(&mut random, BETWEEN_OPERATIONS);
            vqps.push(TalkingVqp { vqp, due, posted: 0, ended: 0 });
        }
        Ok(End { domain, memory, mr, peer: None, vqps, fetch_adds: 0, random })
    }

    fn info(&self) -> EndInfo {
        let info = |talking: &TalkingVqp| talking.vqp.lock().local_info().encode();
        EndInfo { vqps: self.vqps.iter().map(info).collect(), region: self.mr.remote().encode() }
    }

    fn connect(&mut self, peer: &EndInfo) -> anyhow::Result<()> {
        let region = RemoteRegion::decode(&peer.region)?;
        for (talking, peer) in self.vqps.iter().zip(&peer.vqps) {
            let mut vqp = talking.vqp.lock();
            vqp.connect(&ConnectInfo::decode(peer)?)?;
            vqp.import(&region)?;
        }
        self.peer = Some(region);
        Ok(())
    }

    /// Posts operations until the first process sends a message.
    fn talk(&mut self, connection: &PeerConnection) -> anyhow::Result<()> {
        let mut completions = Vec::new();
        while !connection.is_readable()? {
            let now = Instant::now();
            for number in 0..self.vqps.len() {
                let talking = &mut self.vqps[number];
                if talking.due > now {
                    continue;
                }
                talking.due = now + between(&mut self.random, BETWEEN_OPERATIONS);
                if talking.take(&mut completions, Duration::ZERO)? < MAX_OUTSTANDING {
                    self.post(number)?;
                }
            }
            let next = self.vqps.iter().map(|talking| talking.due).min().unwrap_or(now);
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }

    fn post(&mut self, number: usize) -> anyhow::Result<()> {
        let at = number * MEMORY;
        let peer = self.peer.as_ref().context("the vQPs are not connected")?;
        let talking = &mut self.vqps[number];
        let wr = if self.random.below(2) == 0 {
            let word = Data::inline(&talking.posted.to_le_bytes());
            SendWr::new(0, SendOp::Write(peer.at((at + WORD) as u64)), word)
        } else {
            self.fetch_adds += 1;
            let result = SgeList::from_slice(&[self.mr.sge((at + RESULT) as u64, 8)]);
            let remote = peer.at((at + COUNTER) as u64);
            SendWr::new(0, SendOp::FetchAdd { remote, add: 1 }, Data::Sges(result))
        };
        talking.vqp.lock().post_send(wr)?;
        talking.posted += 1;
        Ok(())
    }

    /// Waits until all operations have ended. Returns their number.
    fn drain(&mut self) -> anyhow::Result<u64> {
        let (begin, mut completions) = (Instant::now(), Vec::new());
        for talking in &mut self.vqps {
            while talking.take(&mut completions, Duration::from_millis(100))? > 0 {
                ensure!(begin.elapsed() < PEER_TIMEOUT, "operations did not end within {PEER_TIMEOUT:?}");
            }
        }
        Ok(self.vqps.iter().map(|talking| talking.ended).sum())
    }

    fn counts(&self, operations: u64) -> Counts {
        let counter = |number: usize| self.memory.load(number * MEMORY + COUNTER);
        let counters = (0..self.vqps.len()).map(counter).sum();
        let mut counts = Counts { operations, fetch_adds: self.fetch_adds, counters, ..Counts::default() };
        for FailoverCounts { detected, failovers, .. } in self.domain.telemetry().snapshot(0).rails {
            counts.moves += failovers;
            counts.detected.iter_mut().zip(detected).for_each(|(sum, count)| *sum += count);
        }
        counts
    }
}
