//! Measures the parts of a leader change: the switch of the write permission, the takeover of the
//! log, and the detection of a failure.

use std::time::{Duration, Instant};

use anyhow::ensure;
use mitra_consensus::heartbeat::{Heartbeat, MAX_SCORE, SUSPECT_SCORE};
use mitra_consensus::log::Log;
use mitra_consensus::{
    Action, Actions, Input, LegalChange, MemoryId, Op, OpId, Permissions, Process, ProcessId, ProcessSet,
    Region, RegisterKind, Response,
};
use mitra_consensus_rdma::ProcessNode;

use super::PROCESSES;
use crate::report::quantile;
use crate::stopwatch::Deadline;

/// A process that takes the write permission on every `Leader` input, and decides when a majority
/// of the memories has granted it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct PermissionTaker {
    me: ProcessId,
    memories: u8,
    granted: Option<usize>,
    attempts: u64,
}

impl PermissionTaker {
    pub(super) fn new(me: ProcessId, memories: u8) -> PermissionTaker {
        PermissionTaker { me, memories, granted: None, attempts: 0 }
    }

    pub(super) fn regions(processes: u8) -> Vec<Region> {
        vec![Region {
            registers: processes.into(),
            permissions: Permissions::single_writer(processes, ProcessId(0)),
            legal_change: LegalChange::ExclusiveWriter,
            kind: RegisterKind::ReadWrite,
        }]
    }

    fn is_done(&self) -> bool {
        self.granted.is_some_and(|granted| granted > usize::from(self.memories / 2))
    }
}

impl Process for PermissionTaker {
    type Cell = ();
    type Message = ();
    type Value = ();

    fn handle(&mut self, input: Input<(), ()>, out: &mut Actions<Self>) {
        match input {
            Input::Leader(p) if p == self.me => {
                (self.granted, self.attempts) = (Some(0), self.attempts + 1);
                let permissions = Permissions::single_writer(PROCESSES, self.me);
                let op = Op::ChangePermissions { region: 0, permissions };
                let invoke = |m| Action::Invoke { memory: MemoryId(m), id: OpId::ONLY, op: op.clone() };
                out.extend((0..self.memories).map(invoke));
            }
            Input::Response { response: Response::Ack, .. } => {
                self.granted = self.granted.map(|granted| granted + 1);
            }
            _ => {}
        }
    }

    fn decision(&self) -> Option<&()> {
        self.is_done().then_some(&())
    }

    fn attempts(&self) -> u64 {
        self.attempts
    }
}

/// Measures a switch of the write permission on a majority of the memories, alternating between two
/// processes. Returns median and 99th percentile in microseconds.
pub(super) fn permission(
    takers: &mut [ProcessNode<PermissionTaker>; 2],
    times: usize,
) -> anyhow::Result<(f64, f64)> {
    let mut laps = Vec::new();
    for nth in 0..times {
        let taker = &mut takers[nth % 2];
        let me = taker.process().me;
        let begin = Instant::now();
        taker.handle_input(Input::Leader(me));
        let mut deadline = Deadline::default();
        while taker.process().decision().is_none() {
            taker.poll();
            deadline.check()?;
        }
        laps.push(begin.elapsed().as_secs_f64() * 1e6);
        // Gives the remaining memories 500 µs to answer.
        let rest = Instant::now() + Duration::from_micros(500);
        while Instant::now() < rest {
            takers.iter_mut().for_each(|taker| _ = taker.poll());
        }
    }
    Ok((quantile(&laps, 0.5), quantile(&laps, 0.99)))
}

/// Measures a takeover of the log: from the `Leader` input until the log accepts submissions.
/// During the takeover, the memories refuse the old leader's connections. Returns median and 99th
/// percentile in microseconds.
pub(super) fn takeover(logs: &mut [ProcessNode<Log>; 2], times: usize) -> anyhow::Result<(f64, f64)> {
    let mut laps = Vec::new();
    for nth in 0..times {
        let (old, new) = (nth % 2, (nth + 1) % 2);
        logs[old].handle_input(Input::Leader(ProcessId(new as u8)));
        let begin = Instant::now();
        logs[new].handle_input(Input::Leader(ProcessId(new as u8)));
        let mut deadline = Deadline::default();
        while !logs[new].process().is_leader() {
            logs[new].poll();
            deadline.check()?;
        }
        laps.push(begin.elapsed().as_secs_f64() * 1e6);
        let rest = Instant::now() + Duration::from_millis(2);
        while Instant::now() < rest {
            logs.iter_mut().for_each(|log| _ = log.poll());
        }
    }
    Ok((quantile(&laps, 0.5), quantile(&laps, 0.99)))
}

/// Measures the time from a leader's last poll until the other process suspects it. `beat` is the
/// heartbeat interval. Returns median and 99th percentile in microseconds.
pub(super) fn detection(
    beats: &mut [ProcessNode<Heartbeat>; 2],
    beat: Duration,
    times: usize,
) -> anyhow::Result<(f64, f64)> {
    let all = ProcessSet::first(PROCESSES);
    let mut laps = Vec::new();
    for _ in 0..times {
        let mut deadline = Deadline::for_block();
        while beats[1].process().leader(all) != Some(ProcessId(0))
            || beats[1].process().score(ProcessId(0)) < MAX_SCORE
        {
            beats.iter_mut().for_each(|node| _ = node.poll());
            deadline.check()?;
        }
        let begin = Instant::now();
        while beats[1].process().leader(all) == Some(ProcessId(0)) {
            beats[1].poll();
            deadline.check()?;
        }
        laps.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    let least = beat.as_secs_f64() * 1e6 * f64::from(MAX_SCORE - SUSPECT_SCORE - 2);
    ensure!(laps.iter().all(|&lap| lap >= least), "the leader was suspected before the heartbeat timeout");
    Ok((quantile(&laps, 0.5), quantile(&laps, 0.99)))
}
