//! The coordinator of the demo: starts the client and the server process, runs the rounds, and
//! checks the reports.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{anyhow, bail};
use mitra_prng::{Prng, mix};
use mitra_transport::fault::{Stage, Trigger};
use nix::sys::signal::{SigSet, Signal};

use super::checker::{CheckResult, RoundFacts, check_round};
use super::fault_plan::{Fault, Side, fault};
use super::process_links::{Event, Interrupted, Participant};
use super::progress::Progress;
use super::protocol::{
    ClientReport, ConnectionInfo, FromParticipant, RoundSetup, ServerReport, ToParticipant,
};
use super::text::verb_name;
use super::workload::Workload;

/// The longest wait for a message. If it expires, the demo ends with an error.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);

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

/// Runs all rounds under all policies, with the same workloads and faults under each policy.
pub(super) fn run_policies(settings: &Settings, progress: &Progress) -> anyhow::Result<Vec<PolicyRun>> {
    let mut participants = Participants::start()?;
    let mut runs = Vec::new();
    for policy in &settings.policies {
        let mut rounds = Vec::new();
        for round in 0..settings.rounds {
            progress.round(policy, runs.len() * settings.rounds + round);
            rounds.push(participants.round(settings, policy, round, progress)?);
        }
        runs.push(PolicyRun { policy: policy.clone(), rounds });
    }
    Ok(runs)
}

/// The two processes, and the messages that they sent before the coordinator asked for them.
struct Participants {
    processes: [Participant; 2],
    queued: [VecDeque<FromParticipant>; 2],
    events: Receiver<Event>,
}

impl Participants {
    fn start() -> anyhow::Result<Participants> {
        let (sender, events) = channel();
        // Threads and child processes inherit the signal mask, so the signals are blocked before
        // any of them starts. The child processes end when this process ends.
        let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
        signals.thread_block()?;
        let interrupt = sender.clone();
        thread::spawn(move || {
            while let Ok(signal) = signals.wait() {
                let interrupted = Interrupted(signal);
                if interrupt.send(Event::Interrupted(interrupted)).is_err() {
                    // The rounds are over and only output is left.
                    std::process::exit(interrupted.exit_code().into());
                }
            }
        });
        let processes =
            [Participant::start(Side::Client, sender.clone())?, Participant::start(Side::Server, sender)?];
        Ok(Participants { processes, queued: Default::default(), events })
    }

    fn send(&mut self, side: Side, message: &ToParticipant) -> anyhow::Result<()> {
        self.processes[side as usize].send(message)
    }

    /// Waits for the participant's next message other than a progress report.
    fn receive(&mut self, side: Side, progress: &Progress) -> anyhow::Result<FromParticipant> {
        loop {
            if let Some(message) = self.queued[side as usize].pop_front() {
                return Ok(message);
            }
            match self.events.recv_timeout(MESSAGE_TIMEOUT) {
                Ok(Event::Interrupted(interrupted)) => return Err(interrupted.into()),
                Ok(Event::Message(_, FromParticipant::Progress(completed))) => progress.completed(completed),
                Ok(Event::Message(side, message)) => self.queued[side as usize].push_back(message),
                Ok(Event::Failed(side, error)) => return Err(side.process_error(error)),
                Err(RecvTimeoutError::Timeout) => {
                    bail!("the {} process sent nothing for {MESSAGE_TIMEOUT:?}", side.name())
                }
                Err(RecvTimeoutError::Disconnected) => bail!("both processes ended before the demo did"),
            }
        }
    }

    fn receive_connection_info(&mut self, side: Side, progress: &Progress) -> anyhow::Result<ConnectionInfo> {
        match self.receive(side, progress)? {
            FromParticipant::ConnectionInfo(info) => Ok(info),
            _ => Err(unexpected(side)),
        }
    }

    fn receive_ready(&mut self, side: Side, progress: &Progress) -> anyhow::Result<()> {
        match self.receive(side, progress)? {
            FromParticipant::Ready => Ok(()),
            _ => Err(unexpected(side)),
        }
    }

    fn receive_closed(&mut self, side: Side, progress: &Progress) -> anyhow::Result<()> {
        match self.receive(side, progress)? {
            FromParticipant::Closed => Ok(()),
            _ => Err(unexpected(side)),
        }
    }

    fn round(
        &mut self,
        settings: &Settings,
        policy: &str,
        number: usize,
        progress: &Progress,
    ) -> anyhow::Result<RoundResult> {
        let seed = mix(settings.seed ^ mix(number as u64 + 1));
        let workload = Workload::new(seed, settings.ops);
        let fault = match settings.fault {
            Some(trigger) => Fault::chosen(trigger),
            None => fault(&workload, number, &mut Prng::stream(seed, "fault"), settings.log),
        };
        for side in Side::BOTH {
            let round = RoundSetup {
                policy: policy.to_owned(),
                log: settings.log,
                in_flight: settings.in_flight,
                ops: settings.ops,
                timeout_ms: settings.round_timeout_ms,
                seed,
                fault: (fault.at == side).then(|| fault.trigger.to_string()),
                ack_before_placement: fault.trigger.stage == Stage::NotPlaced,
                pcap: settings.pcap.as_ref().map(|dir| dir.join(format!("{policy}-{number:02}"))),
            };
            self.send(side, &ToParticipant::RoundSetup(round))?;
        }
        let client = self.receive_connection_info(Side::Client, progress)?;
        let server = self.receive_connection_info(Side::Server, progress)?;
        let addresses = [client.addresses.clone(), server.addresses.clone()];
        self.send(Side::Client, &ToParticipant::Peer(server))?;
        self.send(Side::Server, &ToParticipant::Peer(client))?;
        for side in Side::BOTH {
            self.receive_ready(side, progress)?;
        }
        self.send(Side::Server, &ToParticipant::Go)?;
        self.receive_ready(Side::Server, progress)?;
        self.send(Side::Client, &ToParticipant::Go)?;
        let client = match self.receive(Side::Client, progress)? {
            FromParticipant::ClientReport(report) => report,
            _ => return Err(unexpected(Side::Client)),
        };
        self.send(Side::Server, &ToParticipant::Finish)?;
        let server = match self.receive(Side::Server, progress)? {
            FromParticipant::ServerReport(report) => report,
            _ => return Err(unexpected(Side::Server)),
        };
        self.send(Side::Client, &ToParticipant::Finish)?;
        // After the last round, the coordinator kills the processes.
        for side in Side::BOTH {
            self.receive_closed(side, progress)?;
        }
        let fault_at = if fault.at == Side::Client { client.fault_at } else { server.fault_at };
        let facts = RoundFacts {
            victim: fault.victim.filter(|_| fault_at.is_some()),
            flushed_means_not_executed: policy == "exact",
        };
        let check = check_round(&workload, &client, &server, facts);
        Ok(RoundResult { fault, workload, client, server, check, addresses })
    }
}

fn unexpected(side: Side) -> anyhow::Error {
    anyhow!(
        "the {} process sent a message that this step does not expect; run the demo again, with one build of `mitra`",
        side.name()
    )
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
