//! The measured loops of the leader: decisions, log entries, and the baseline of raw WRITEs.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use mitra_consensus::log::{CommitOutcome, Delivery, Log, Payload};
use mitra_consensus::{Input, Process, ProcessId, Region};
use mitra_consensus_rdma::{ProcessConfig, ProcessNode};
use mitra_failover::Domain;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::memory_processes::{self, Memory};
use super::repeated_decisions::Instances;
use super::{Args, HEARTBEAT_PERIOD, LEADER, PROCESSES, REGISTER_CAPACITY, Value, protocols};
use crate::bench_qp::{BenchQp, Op, request};
use crate::stopwatch::{Deadline, Stopwatch};

/// Connects the leader of a protocol that uses one instance per decision.
pub(super) fn leader<P>(
    domain: &Arc<Domain>,
    memories: &[Memory],
    protocol: usize,
    first: P,
    regions: &[Region],
) -> anyhow::Result<ProcessNode<Instances<P>>>
where
    P: Process,
    P::Cell: Serialize + DeserializeOwned,
    P::Message: Serialize + DeserializeOwned,
{
    connect(domain, memories, protocol, LEADER, Instances::new(first, regions))
}

pub(super) fn connect<P>(
    domain: &Arc<Domain>,
    memories: &[Memory],
    protocol: usize,
    me: ProcessId,
    process: P,
) -> anyhow::Result<ProcessNode<P>>
where
    P: Process,
    P::Cell: Serialize + DeserializeOwned,
    P::Message: Serialize + DeserializeOwned,
{
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on a TCP port")?;
    let regions = protocols(PROCESSES, memories.len() as u8).swap_remove(protocol);
    let config = ProcessConfig {
        id: me,
        tokens: memory_processes::tokens(PROCESSES),
        processes: vec![listener.local_addr()?; PROCESSES.into()],
        memories: memories.iter().map(|memory| (memory.addresses[protocol], regions.clone())).collect(),
        register_capacity: REGISTER_CAPACITY,
        max_message_bytes: 512,
        wake_delay: HEARTBEAT_PERIOD,
        failover: memory_processes::config(),
    };
    let mut node = ProcessNode::new(process, domain, listener, &config)?;
    let mut deadline = Deadline::for_block();
    while node.connected_memories() < memories.len() {
        // `wait` would arm completion events and hand progress to the NIC's thread.
        std::thread::sleep(Duration::from_millis(1));
        node.poll();
        deadline.check()?;
    }
    Ok(node)
}

/// Makes process 0 the leader of the log and waits until it has taken over.
pub(super) fn lead(node: &mut ProcessNode<Log>) -> anyhow::Result<()> {
    node.handle_input(Input::Leader(LEADER));
    let mut deadline = Deadline::for_block();
    while !node.process().is_leader() || node.connected_memories() == 0 {
        node.poll();
        deadline.check()?;
    }
    Ok(())
}

pub(super) fn append(
    node: &mut ProcessNode<Log>,
    args: &Args,
    value: &[u8],
) -> anyhow::Result<Histogram<u64>> {
    let mut watch = Stopwatch::start(args.iters);
    for _ in 0..watch.rounds() {
        node.with_process(|log, out| log.submit(value.to_vec(), out))?;
        let mut deadline = Deadline::default();
        let outcome = loop {
            if let Some((_, outcome)) = node.with_process(|log, _| log.take_outcomes()).pop() {
                break outcome;
            }
            node.poll();
            deadline.check()?;
        };
        ensure!(
            matches!(outcome, CommitOutcome::Committed { .. }),
            "the leader lost its leadership, but no other process runs"
        );
        node.with_process(|log, out| {
            let committed = log.take_committed();
            let is_ours = |delivery: &Delivery| {
                matches!(delivery, Delivery::Entry { payload: Payload::Commands(commands), .. } if *commands == [value])
            };
            ensure!(committed.iter().all(is_ours), "the log contains an entry that was not submitted");
            // A snapshot of 8 bytes is taken whenever the log requires one.
            if log.needs_snapshot() {
                log.snapshot(vec![0; 8], out)?;
            }
            Ok(())
        })?;
        watch.lap();
    }
    Ok(watch.into_histogram())
}

pub(super) fn decide<P>(
    node: &mut ProcessNode<Instances<P>>,
    times: u64,
    value: &Value,
    mut next: impl FnMut() -> P,
) -> anyhow::Result<Histogram<u64>>
where
    P: Process<Value = Value>,
    P::Cell: Serialize + DeserializeOwned,
    P::Message: Serialize + DeserializeOwned,
{
    let mut watch = Stopwatch::start(times);
    for _ in 0..watch.rounds() {
        let process = next();
        node.with_process(|instances, out| instances.next(process, LEADER, out));
        let mut deadline = Deadline::default();
        while node.process().decision().is_none() {
            node.poll();
            deadline.check()?;
        }
        ensure!(node.process().decision() == Some(value), "the decided value is not the proposed one");
        watch.lap();
    }
    Ok(watch.into_histogram())
}

/// Writes to all memories over RC queue pairs and waits until `enough` memories have completed the
/// WRITE.
pub(super) fn fan_out(memories: &mut [Memory], args: &Args, enough: usize) -> anyhow::Result<Histogram<u64>> {
    let mut watch = Stopwatch::start(args.iters);
    // The number of completed WRITEs to each memory.
    let mut done = vec![0; memories.len()];
    for round in 1..=watch.rounds() {
        for memory in &mut *memories {
            let write = request(&memory.rc_qp, Op::Write, 0, 0, args.size.into());
            memory.rc_qp.post_when_room(write)?;
        }
        let mut deadline = Deadline::default();
        while done.iter().filter(|&&done| done >= round).count() < enough {
            for (memory, done) in memories.iter_mut().zip(&mut done) {
                *done += u64::from(memory.rc_qp.poll()?.sent);
            }
            deadline.check()?;
        }
        watch.lap();
    }
    for memory in memories {
        memory.rc_qp.drain()?;
    }
    Ok(watch.into_histogram())
}
