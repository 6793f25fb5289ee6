//! From one leader to the next: the permission alone, the log's whole take-over, and the detection before it.

use std::time::{Duration, Instant};

use anyhow::ensure;
use mitra_consensus::heartbeat::{Heartbeat, MOST, SUSPECT};
use mitra_consensus::log::Log;
use mitra_consensus::{
    Action, Actions, ChangeRule, Input, MemoryId, Op, Process, ProcessId, ProcessSet, Region, Registers,
    Response, Rights,
};
use mitra_consensus_rdma::ProcessNode;

use super::PROCESSES;
use crate::clock::Deadline;
use crate::report::quantile;

/// A process that takes the right to write, each time it is told to, and decides when a majority has given it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Taker {
    me: ProcessId,
    memories: u8,
    given: Option<usize>,
    taken: u64,
}

impl Taker {
    pub(super) fn new(me: ProcessId, memories: u8) -> Taker {
        Taker { me, memories, given: None, taken: 0 }
    }

    pub(super) fn regions(processes: u8) -> Vec<Region> {
        vec![Region {
            registers: processes.into(),
            rights: Rights::single_writer(processes, ProcessId(0)),
            rule: ChangeRule::TakeOver,
            kind: Registers::Written,
        }]
    }

    fn is_done(&self) -> bool {
        self.given.is_some_and(|given| given > usize::from(self.memories / 2))
    }
}

impl Process for Taker {
    type Cell = ();
    type Message = ();
    type Value = ();

    fn handle(&mut self, input: Input<(), ()>, out: &mut Actions<Self>) {
        match input {
            Input::Leader(p) if p == self.me => {
                (self.given, self.taken) = (Some(0), self.taken + 1);
                let rights = Rights::single_writer(PROCESSES, self.me);
                let op = Op::Change { region: 0, rights };
                out.extend((0..self.memories).map(|m| Action::Ask { memory: MemoryId(m), op: op.clone() }));
            }
            Input::Response { response: Response::Ack, .. } => {
                self.given = self.given.map(|given| given + 1);
            }
            _ => {}
        }
    }

    fn decision(&self) -> Option<&()> {
        self.is_done().then_some(&())
    }

    fn attempts(&self) -> u64 {
        self.taken
    }
}

/// Microseconds that it takes to have the right on a majority, so many times, by turns of two processes; median and 99th percentile.
pub(super) fn permission(takers: &mut [ProcessNode<Taker>; 2], times: usize) -> anyhow::Result<(f64, f64)> {
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
        // The minority answers too, before the next turn.
        let rest = Instant::now() + Duration::from_micros(500);
        while Instant::now() < rest {
            takers.iter_mut().for_each(|taker| _ = taker.poll());
        }
    }
    Ok((quantile(&laps, 0.5), quantile(&laps, 0.99)))
}

/// The same of the log: from being named to taking submissions, with the old leader's connections being refused on the way.
pub(super) fn takeover(logs: &mut [ProcessNode<Log>; 2], times: usize) -> anyhow::Result<(f64, f64)> {
    let mut laps = Vec::new();
    for nth in 0..times {
        let (old, new) = (nth % 2, (nth + 1) % 2);
        logs[old].handle_input(Input::Leader(ProcessId(new as u8)));
        let begin = Instant::now();
        logs[new].handle_input(Input::Leader(ProcessId(new as u8)));
        let mut deadline = Deadline::default();
        while !logs[new].process().leads() {
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

/// Microseconds from a leader's last poll until the other takes it for dead; heartbeats go every `beat`.
pub(super) fn detection(
    beats: &mut [ProcessNode<Heartbeat>; 2],
    beat: Duration,
    times: usize,
) -> anyhow::Result<(f64, f64)> {
    let all = ProcessSet::first(PROCESSES);
    let mut laps = Vec::new();
    for _ in 0..times {
        let mut deadline = Deadline::patient();
        while beats[1].process().leader(all) != Some(ProcessId(0))
            || beats[1].process().points(ProcessId(0)) < MOST
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
    let least = beat.as_secs_f64() * 1e6 * f64::from(MOST - SUSPECT - 2);
    ensure!(laps.iter().all(|&lap| lap >= least), "found dead before it could be");
    Ok((quantile(&laps, 0.5), quantile(&laps, 0.99)))
}
