//! The server: provides memory, receives messages, and logs the executions that its processor
//! observes in the memory and in the messages. The checker relies on this log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mitra_failover::{Completion, VirtualMr};
use mitra_peer_process::PeerConnection;
use mitra_verbs::{Access, Buffer, RecvWr};

use super::fault_plan::Side;
use super::protocol::{ExecutionRecord, RoundSetup, ServerReport};
use super::rail_endpoint::{RailEndpoint, receives};
use super::workload::{COUNTER, Kind, MAX_LEN, PATTERN_LEN, Workload, is_intact, pattern};

/// The minimum time for which the server polls after the client has finished.
const DRAIN_TIME: Duration = Duration::from_millis(2);
/// The number of polls between two checks whether the client has finished.
const POLLS_PER_CHECK: u32 = 64;

struct Server {
    rails: RailEndpoint,
    workload: Workload,
    memory: Arc<Buffer>,
    inbox: Arc<Buffer>,
    inbox_mr: VirtualMr,
    /// For each operation that leaves a word: its index, and the offset of the word.
    words: Vec<(usize, usize)>,
    collected: ServerReport,
    /// Whether this side has closed the old rail.
    closed: bool,
    completions: Vec<Completion>,
}

/// Runs one round, from its setup to the report.
pub(super) fn round(client: &mut PeerConnection, round: &RoundSetup) -> anyhow::Result<()> {
    let mut rails = RailEndpoint::open(Side::Server, round)?;
    let workload = Workload::new(round.seed, round.ops);
    let memory = Arc::new(Buffer::new(workload.memory_len as usize));
    let source = Arc::new(Buffer::new(PATTERN_LEN));
    for at in (0..PATTERN_LEN).step_by(8) {
        source.store(at, pattern(at as u64));
    }
    let inbox = Arc::new(Buffer::new(receives(round.in_flight) as usize * MAX_LEN));
    let written = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let memory_mr = rails.domain.register(&memory, written)?;
    let source_mr = rails.domain.register(&source, Access::REMOTE_READ)?;
    let inbox_mr = rails.domain.register(&inbox, Access::LOCAL_WRITE)?;
    for slot in 0..receives(round.in_flight) {
        rails.vqp.post_recv(receive(&inbox_mr, slot.into()))?;
    }
    let regions = vec![memory_mr.remote().encode(), source_mr.remote().encode()];
    client.send(&rails.connection_info(regions)?)?;
    rails.connect(&client.receive()?)?;
    // Both sides are connected before one of them arms the fault.
    client.send(&())?;
    client.receive::<()>()?;
    rails.arm(round)?;
    client.send(&())?;

    let words = workload.ops.iter().enumerate();
    let words = words.filter_map(|(n, op)| Some((n, op.word()? as usize))).collect();
    let (collected, completions) = (ServerReport::default(), Vec::new());
    let mut server =
        Server { rails, workload, memory, inbox, inbox_mr, words, collected, closed: false, completions };
    let mut turns = 1_u32;
    while !turns.is_multiple_of(POLLS_PER_CHECK) || !client.is_readable()? {
        server.poll()?;
        turns = turns.wrapping_add(1);
    }
    client.receive::<()>()?;
    let since = Instant::now();
    while server.poll()? > 0 || since.elapsed() < DRAIN_TIME {}
    client.send(&server.report())?;
    server.rails.vqp.close()?;
    Ok(())
}

fn receive(inbox_mr: &VirtualMr, slot: u64) -> RecvWr {
    RecvWr::new(slot, inbox_mr.sge(slot * MAX_LEN as u64, MAX_LEN as u32))
}

impl Server {
    /// Polls once and returns the number of receives.
    fn poll(&mut self) -> anyhow::Result<usize> {
        self.rails.check_fault();
        let on_first = self.rails.vqp.active_rail() == 0;
        let mut completions = core::mem::take(&mut self.completions);
        completions.clear();
        self.rails.vqp.poll(&mut completions);
        for completion in &completions {
            self.on_receive(completion, on_first)?;
        }
        let received = completions.len();
        self.completions = completions;
        self.consume();
        let left_first_rail = !self.rails.vqp.is_active() || self.rails.vqp.active_rail() != 0;
        if left_first_rail && !self.closed {
            // The replay has not begun, so the counter contains the additions that were executed on
            // the old rail.
            self.closed = true;
            self.collected.counter_before = Some(self.memory.load(COUNTER as usize));
        }
        Ok(received)
    }

    /// Consumes the words that operations have written.
    fn consume(&mut self) {
        let mut time = None;
        for &(n, at) in &self.words {
            if self.memory.load(at) == 0 {
                continue;
            }
            let op = self.workload.ops[n];
            let id = self.memory.load(at);
            let mut bytes = vec![0; op.len as usize];
            self.memory.read_at(op.at as usize, &mut bytes);
            let intact = is_intact(self.workload.id(n), &bytes);
            self.memory.swap(at, 0);
            let at = *time.get_or_insert_with(|| self.rails.now());
            self.collected.log.push(ExecutionRecord { kind: op.kind, id, intact, before: !self.closed, at });
        }
    }

    fn on_receive(&mut self, completion: &Completion, before: bool) -> anyhow::Result<()> {
        if !completion.is_success() {
            return Ok(()); // flushed, because the vQP has closed
        }
        let slot = completion.wr_id;
        let mut bytes = vec![0; (completion.byte_len as usize).min(MAX_LEN)];
        self.inbox.read_at(slot as usize * MAX_LEN, &mut bytes);
        let id = bytes.last_chunk().map_or(0, |last| u64::from_ne_bytes(*last));
        let sent = self.workload.find(id).map(|n| self.workload.ops[n]);
        let intact = sent.is_some_and(|op| op.len as usize == bytes.len()) && is_intact(id, &bytes);
        let at = self.rails.now();
        self.collected.log.push(ExecutionRecord { kind: Kind::Send, id, intact, before, at });
        // Under the policy `none`, the vQP closes when its rail fails, and then takes no receive.
        if self.rails.vqp.close_reason().is_none() {
            self.rails.vqp.post_recv(receive(&self.inbox_mr, slot))?;
        }
        Ok(())
    }

    fn report(&mut self) -> ServerReport {
        let mut seen = core::mem::take(&mut self.collected);
        seen.counter = self.memory.load(COUNTER as usize);
        seen.failover = self.rails.failover();
        seen.fault_at = self.rails.fault_at;
        seen.ended = self.rails.ended();
        seen
    }
}
