//! The rounds of the demo: starts the server process, runs each round, and checks the reports.

use std::path::PathBuf;
use std::thread;

use anyhow::{Context, anyhow};
use mitra_nics::TwoEnds;
use mitra_peer_process::{Error, PeerConnection, PeerProcess};
use mitra_prng::{Prng, mix};
use mitra_transport::fault::{Stage, Trigger};
use nix::sys::signal::{SigSet, Signal};

use super::checker::{CheckResult, RoundFacts, check_round};
use super::client;
use super::fault_plan::{Fault, Side, fault, reset};
use super::progress::Progress;
use super::protocol::{ClientReport, RoundSetup, ServerReport};
use super::workload::{Workload, verb_name};

#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// The policies, by their names on the command line.
    pub(super) policies: Vec<String>,
    pub(super) rounds: usize,
    pub(super) ops: usize,
    pub(super) in_flight: u32,
    pub(super) seed: u64,
    /// The time after which the client of a round posts no more operations, in milliseconds.
    pub(super) round_timeout_ms: u64,
    pub(super) log: bool,
    /// The fault of every round, if the user chose one.
    pub(super) fault: Option<Trigger>,
    pub(super) pcap: Option<PathBuf>,
    pub(super) device: Option<TwoEnds>,
}

impl Settings {
    /// Whether the client's NIC of rail 0 is a device of the kernel, which can only be reset.
    pub(super) fn are_resets(&self) -> bool {
        self.device.as_ref().is_some_and(TwoEnds::have_devices)
    }
}

pub(super) struct RoundResult {
    pub(super) fault: Fault,
    pub(super) workload: Workload,
    pub(super) client: ClientReport,
    pub(super) server: ServerReport,
    pub(super) check: CheckResult,
    /// The addresses of the NICs, rail 0 first, of the client and of the server.
    pub(super) addresses: [Vec<String>; 2],
}

pub(super) struct PolicyRun {
    pub(super) policy: String,
    pub(super) rounds: Vec<RoundResult>,
}

/// Runs all rounds under all policies, with the same workloads and faults under each policy. This
/// process is the client. The server's process is killed at the end.
pub(super) fn run_policies(settings: &Settings, progress: &Progress) -> anyhow::Result<Vec<PolicyRun>> {
    exit_on_signals(progress)?;
    let mut server = PeerProcess::start(super::SERVER_ROLE).context("cannot start the server process")?;
    let mut runs = Vec::new();
    for policy in &settings.policies {
        let mut rounds = Vec::new();
        for number in 0..settings.rounds {
            progress.round(policy, runs.len() * settings.rounds + number);
            let round = round(&mut server.connection, settings, policy, number, progress);
            rounds.push(round.map_err(name_the_server)?);
        }
        runs.push(PolicyRun { policy: policy.clone(), rounds });
    }
    Ok(runs)
}

/// Ends the process on SIGINT and SIGTERM, with the exit code of a shell for a program that the
/// signal has ended. Threads and the server's process inherit the signal mask, so this comes before
/// any of them starts. The server's process ends with this one.
fn exit_on_signals(progress: &Progress) -> anyhow::Result<()> {
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
    signals.thread_block()?;
    let progress = progress.bar();
    thread::spawn(move || {
        if let Ok(signal) = signals.wait() {
            progress.finish_and_clear();
            crate::cli::complain("interrupted");
            std::process::exit(128 + signal as i32);
        }
    });
    Ok(())
}

/// Names the server process in an error of its connection.
fn name_the_server(error: anyhow::Error) -> anyhow::Error {
    match error.downcast() {
        Ok(Error::Reported(reported)) => anyhow!("the server process: {reported}"),
        Ok(Error::Closed) => anyhow!("the server process ended before the demo did"),
        Ok(error) => anyhow::Error::new(error).context("the connection to the server process failed"),
        Err(error) => error,
    }
}

fn round(
    server: &mut PeerConnection,
    settings: &Settings,
    policy: &str,
    number: usize,
    progress: &Progress,
) -> anyhow::Result<RoundResult> {
    let seed = mix(settings.seed ^ mix(number as u64 + 1));
    let workload = Workload::new(seed, settings.ops);
    let fault = match settings.fault {
        Some(trigger) => Fault::chosen(trigger),
        None if settings.are_resets() => reset(settings.ops, &mut Prng::stream(seed, "fault")),
        None => fault(&workload, number, &mut Prng::stream(seed, "fault"), settings.log),
    };
    let setup = RoundSetup {
        policy: policy.to_owned(),
        log: settings.log,
        in_flight: settings.in_flight,
        ops: settings.ops,
        timeout_ms: settings.round_timeout_ms,
        seed,
        fault: fault.trigger.to_string(),
        fault_at: fault.at,
        ack_before_placement: fault.trigger.stage == Stage::NotPlaced,
        pcap: settings.pcap.as_ref().map(|dir| dir.join(format!("{policy}-{number:02}"))),
        device: settings.device.clone(),
    };
    let (client, server, addresses) = client::round(server, &setup, progress)?;
    let fault_at = if fault.at == Side::Client { client.fault_at } else { server.fault_at };
    let facts = RoundFacts {
        victim: fault.victim.filter(|_| fault_at.is_some()),
        flushed_means_not_executed: policy == "exact",
    };
    let check = check_round(&workload, &client, &server, facts);
    Ok(RoundResult { fault, workload, client, server, check, addresses })
}

impl RoundResult {
    pub(super) fn describe_fault(&self) -> String {
        let victim = self.fault.victim.map(|n| verb_name(self.workload.ops[n].kind));
        self.fault.describe(victim)
    }

    /// The time of the fault, as observed at the process where it was injected. `None` if the fault
    /// did not trigger.
    pub(super) fn fault_at(&self) -> Option<u64> {
        if self.fault.at == Side::Client { self.client.fault_at } else { self.server.fault_at }
    }
}
