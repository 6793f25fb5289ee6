//! The first process: starts the two ends, takes them through the rounds, and judges what they report.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{anyhow, bail};
use mitra_transport::fault::{Stage, Trigger};
use nix::sys::signal::{SigSet, Signal};

use super::oracle::{Judgement, Known, judge};
use super::participant::{Event, Participant};
use super::plan::{Fault, Side, fault};
use super::progress::Progress;
use super::protocol::{FromParticipant, Introduction, Posted, Round, Seen, ToParticipant};
use super::table::title;
use super::workload::{Dice, Workload, mix};

/// How long the coordinator waits for a message. A participant that sends nothing for this long is stuck.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// What is to be played.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// By their names on the command line.
    pub(super) policies: Vec<String>,
    pub(super) rounds: usize,
    pub(super) ops: usize,
    pub(super) in_flight: u32,
    pub(super) seed: u64,
    pub(super) log: bool,
    /// The same fault in every round, if the user chose one.
    pub(super) fault: Option<Trigger>,
    pub(super) pcap: Option<PathBuf>,
}

/// A round that was played and judged.
pub(super) struct Played {
    pub(super) fault: Fault,
    pub(super) workload: Workload,
    pub(super) posted: Posted,
    pub(super) seen: Seen,
    pub(super) judgement: Judgement,
    /// Of the NICs, rail 0 first: the client's, the server's.
    pub(super) addresses: [Vec<String>; 2],
}

/// All rounds under one policy.
pub(super) struct Run {
    pub(super) policy: String,
    pub(super) rounds: Vec<Played>,
}

/// Ctrl-C, or a request to terminate.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(super) struct Interrupted;

/// Plays all rounds under all policies; the same workloads and faults under each.
pub(super) fn play(settings: &Settings, progress: &Progress) -> anyhow::Result<Vec<Run>> {
    let mut participants = Participants::start()?;
    let mut runs = Vec::new();
    for policy in &settings.policies {
        let mut rounds = Vec::new();
        for round in 0..settings.rounds {
            progress.round(policy, runs.len() * settings.rounds + round);
            rounds.push(participants.round(settings, policy, round, progress)?);
        }
        runs.push(Run { policy: policy.clone(), rounds });
    }
    Ok(runs)
}

/// The two ends, and what they have said that nobody has asked for yet.
struct Participants {
    processes: [Participant; 2],
    queued: [VecDeque<FromParticipant>; 2],
    events: Receiver<Event>,
}

impl Participants {
    fn start() -> anyhow::Result<Participants> {
        let (sender, events) = channel();
        // Before any thread starts: they inherit it, and so do the ends, which go when their input is closed.
        let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
        signals.thread_block()?;
        let interrupt = sender.clone();
        thread::spawn(move || {
            while signals.wait().is_ok() {
                if interrupt.send(Event::Interrupted).is_err() {
                    std::process::exit(130); // the rounds are over, only output is left
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

    /// The next message of an end, which is one that was asked for.
    fn receive(&mut self, side: Side, progress: &Progress) -> anyhow::Result<FromParticipant> {
        loop {
            if let Some(message) = self.queued[side as usize].pop_front() {
                return Ok(message);
            }
            match self.events.recv_timeout(MESSAGE_TIMEOUT) {
                Ok(Event::Interrupted) => return Err(Interrupted.into()),
                Ok(Event::Message(_, FromParticipant::Progress(completed))) => progress.done(completed),
                Ok(Event::Message(side, message)) => self.queued[side as usize].push_back(message),
                Ok(Event::Failed(side, error)) => return Err(side.process_error(error)),
                Err(RecvTimeoutError::Timeout) => {
                    bail!("the {} process sent nothing for {MESSAGE_TIMEOUT:?}", side.name())
                }
                Err(RecvTimeoutError::Disconnected) => bail!("both processes ended before the demo did"),
            }
        }
    }

    fn receive_introduction(&mut self, side: Side, progress: &Progress) -> anyhow::Result<Introduction> {
        match self.receive(side, progress)? {
            FromParticipant::Introduction(introduction) => Ok(introduction),
            other => Err(unexpected(side, &other)),
        }
    }

    fn receive_ready(&mut self, side: Side, progress: &Progress) -> anyhow::Result<()> {
        match self.receive(side, progress)? {
            FromParticipant::Ready => Ok(()),
            other => Err(unexpected(side, &other)),
        }
    }

    fn round(
        &mut self,
        settings: &Settings,
        policy: &str,
        number: usize,
        progress: &Progress,
    ) -> anyhow::Result<Played> {
        let seed = mix(settings.seed ^ mix(number as u64 + 1));
        let workload = Workload::new(seed, settings.ops);
        let fault = match settings.fault {
            Some(trigger) => Fault::chosen(trigger),
            None => fault(&workload, number, &mut Dice(mix(seed)), settings.log),
        };
        for side in Side::BOTH {
            let round = Round {
                policy: policy.to_owned(),
                log: settings.log,
                in_flight: settings.in_flight,
                ops: settings.ops,
                seed,
                fault: (fault.at == side).then(|| fault.trigger.to_string()),
                lies: fault.trigger.stage == Stage::NotPlaced,
                pcap: settings.pcap.as_ref().map(|dir| dir.join(format!("{policy}-{number:02}"))),
            };
            self.send(side, &ToParticipant::Round(round))?;
        }
        let client = self.receive_introduction(Side::Client, progress)?;
        let server = self.receive_introduction(Side::Server, progress)?;
        let addresses = [client.addresses.clone(), server.addresses.clone()];
        self.send(Side::Client, &ToParticipant::Peer(server))?;
        self.send(Side::Server, &ToParticipant::Peer(client))?;
        for side in Side::BOTH {
            self.receive_ready(side, progress)?;
        }
        self.send(Side::Server, &ToParticipant::Go)?;
        self.receive_ready(Side::Server, progress)?;
        self.send(Side::Client, &ToParticipant::Go)?;
        let posted = match self.receive(Side::Client, progress)? {
            FromParticipant::Posted(posted) => posted,
            other => return Err(unexpected(Side::Client, &other)),
        };
        self.send(Side::Server, &ToParticipant::Finish)?;
        let seen = match self.receive(Side::Server, progress)? {
            FromParticipant::Seen(seen) => seen,
            other => return Err(unexpected(Side::Server, &other)),
        };
        self.send(Side::Client, &ToParticipant::Finish)?;
        let struck = if fault.at == Side::Client { posted.struck } else { seen.struck };
        let known =
            Known { victim: fault.victim.filter(|_| struck.is_some()), flushed_is_a_word: policy == "exact" };
        let judgement = judge(&workload, &posted, &seen, known);
        Ok(Played { fault, workload, posted, seen, judgement, addresses })
    }
}

fn unexpected(side: Side, message: &FromParticipant) -> anyhow::Error {
    anyhow!("the {} process said what was not expected: {:.100}", side.name(), format!("{message:?}"))
}

impl Played {
    /// How the rail died, for people.
    pub(super) fn fault(&self) -> String {
        let victim = self.fault.victim.map(|n| title(self.workload.ops[n].kind));
        self.fault.describe(victim)
    }

    /// When the rail died, as seen where it did; none if the fault did not strike.
    pub(super) fn struck(&self) -> Option<u64> {
        if self.fault.at == Side::Client { self.posted.struck } else { self.seen.struck }
    }
}
