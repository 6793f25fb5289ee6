//! What is measured of the leader: it connects to the memories, and decides again and again.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use mitra_consensus::log::{Delivery, Fate, Log, Payload};
use mitra_consensus::{Input, Process, ProcessId, Region};
use mitra_consensus_rdma::{ProcessConfig, ProcessNode};
use mitra_failover::Domain;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::instances::Instances;
use super::memory_processes::{self, Memory};
use super::{Args, BEAT, LEADER, PROCESSES, ROOM, Value, protocols};
use crate::bench_qp::{BenchQp, Op, request};
use crate::clock::{Deadline, Stopwatch};

/// The leader of a protocol with an instance for each decision.
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
    connect(domain, memories, protocol, LEADER, Instances::new(first, memories.len() as u8, regions))
}

/// A process, connected to all memories.
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
    let door = TcpListener::bind("127.0.0.1:0").context("cannot open a door")?;
    let regions = protocols(PROCESSES, memories.len() as u8).swap_remove(protocol);
    let config = ProcessConfig {
        id: me,
        tokens: memory_processes::tokens(PROCESSES),
        processes: vec![door.local_addr()?; PROCESSES.into()],
        memories: memories.iter().map(|memory| (memory.doors[protocol], regions.clone())).collect(),
        register_capacity: ROOM,
        max_message_bytes: 512,
        wake_delay: BEAT,
        failover: memory_processes::config(),
    };
    let mut node = ProcessNode::new(process, domain, door, &config)?;
    let mut deadline = Deadline::patient();
    while node.connected_memories() < memories.len() {
        // Not `rest`: it would ask the NIC to tell of what comes, and leave it to its own thread.
        std::thread::sleep(Duration::from_millis(1));
        node.poll();
        deadline.check()?;
    }
    Ok(node)
}

/// The log's leader takes the memories.
pub(super) fn lead(node: &mut ProcessNode<Log>) -> anyhow::Result<()> {
    node.handle_input(Input::Leader(LEADER));
    let mut deadline = Deadline::patient();
    while !node.process().leads() || node.connected_memories() == 0 {
        node.poll();
        deadline.check()?;
    }
    Ok(())
}

/// Appends so many entries, one after the other.
pub(super) fn append(
    node: &mut ProcessNode<Log>,
    args: &Args,
    value: &[u8],
) -> anyhow::Result<Histogram<u64>> {
    let mut watch = Stopwatch::start(args.iters);
    for _ in 0..watch.rounds() {
        node.with_process(|log, out| log.submit(value.to_vec(), out))?;
        let mut deadline = Deadline::default();
        let fate = loop {
            if let Some((_, fate)) = node.with_process(|log, _| log.take_fates()).pop() {
                break fate;
            }
            node.poll();
            deadline.check()?;
        };
        ensure!(matches!(fate, Fate::Committed { .. }), "the leader was deposed, and there is nobody else");
        node.with_process(|log, out| {
            let committed = log.take_committed();
            let is_ours = |delivery: &Delivery| {
                matches!(delivery, Delivery::Entry { payload: Payload::Commands(commands), .. } if *commands == [value])
            };
            ensure!(committed.iter().all(is_ours), "the log holds what was not submitted");
            // Small, but as often as the ring needs it.
            if log.wants_snapshot() {
                log.snapshot(vec![0; 8], out)?;
            }
            Ok(())
        })?;
        watch.lap();
    }
    Ok(watch.done())
}

/// Decides so many times.
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
        ensure!(node.process().decision() == Some(value), "another value was decided than was proposed");
        watch.lap();
    }
    Ok(watch.done())
}

/// Writes to all by bare queue pairs, and waits for so many.
pub(super) fn fan_out(memories: &mut [Memory], args: &Args, enough: usize) -> anyhow::Result<Histogram<u64>> {
    let mut watch = Stopwatch::start(args.iters);
    // What was asked for, and what has completed, at each.
    let mut done = vec![0; memories.len()];
    for round in 1..=watch.rounds() {
        for memory in &mut *memories {
            let write = request(&memory.floor, Op::Write, 0, 0, args.size.into());
            memory.floor.post_when_room(write)?;
        }
        let mut deadline = Deadline::default();
        while done.iter().filter(|&&done| done >= round).count() < enough {
            for (memory, done) in memories.iter_mut().zip(&mut done) {
                *done += u64::from(memory.floor.poll()?.sent);
            }
            deadline.check()?;
        }
        watch.lap();
    }
    for memory in memories {
        memory.floor.drain()?;
    }
    Ok(watch.done())
}
