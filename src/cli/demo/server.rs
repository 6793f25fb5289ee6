//! The server: lends its memory, receives, and keeps a log of what its processor sees there, which is what the oracle
//! believes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use mitra_failover::{Completion, VirtualMr};
use mitra_verbs::{Access, Buffer, RecvWr};

use super::participant::Coordinator;
use super::plan::Side;
use super::protocol::{Entry, FromParticipant, Round, Seen, ToParticipant};
use super::rails::{Rails, receives};
use super::workload::{COUNTER, Kind, LONGEST, PATTERN_LEN, Workload, is_whole, pattern};

/// How long it goes on looking when the client has done.
const GRACE: Duration = Duration::from_millis(2);

struct Server {
    rails: Rails,
    workload: Workload,
    memory: Arc<Buffer>,
    inbox: Arc<Buffer>,
    inbox_mr: VirtualMr,
    /// Words that its processor consumes: the operation, where it is.
    words: Vec<(usize, usize)>,
    seen: Seen,
    /// The old rail is closed, at this end.
    closed: bool,
    completions: Vec<Completion>,
}

/// One round, from its announcement to the report.
pub(super) fn round(coordinator: &mut Coordinator, round: &Round) -> anyhow::Result<()> {
    let mut rails = Rails::open(Side::Server, round)?;
    let workload = Workload::new(round.seed, round.ops);
    let memory = Arc::new(Buffer::new(workload.memory_len as usize));
    let source = Arc::new(Buffer::new(PATTERN_LEN));
    for at in (0..PATTERN_LEN).step_by(8) {
        source.store(at, pattern(at as u64));
    }
    let inbox = Arc::new(Buffer::new(receives(round.in_flight) as usize * LONGEST));
    let written = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let memory_mr = rails.domain.register(&memory, written)?;
    let source_mr = rails.domain.register(&source, Access::REMOTE_READ)?;
    let inbox_mr = rails.domain.register(&inbox, Access::LOCAL_WRITE)?;
    for slot in 0..receives(round.in_flight) {
        rails.vqp.post_recv(receive(&inbox_mr, slot.into()))?;
    }
    let regions = vec![memory_mr.remote().encode(), source_mr.remote().encode()];
    coordinator.send(&FromParticipant::Introduction(rails.introduce(regions)?));
    let ToParticipant::Peer(peer) = coordinator.receive() else { bail!("expected the peer") };
    rails.connect(&peer)?;
    coordinator.send(&FromParticipant::Ready);
    let ToParticipant::Go = coordinator.receive() else { bail!("expected to go") };
    rails.arm(round.fault.as_deref())?;
    coordinator.send(&FromParticipant::Ready);

    let words = workload.ops.iter().enumerate();
    let words = words.filter_map(|(n, op)| Some((n, op.word()? as usize))).collect();
    let (seen, completions) = (Seen::default(), Vec::new());
    let mut server =
        Server { rails, workload, memory, inbox, inbox_mr, words, seen, closed: false, completions };
    let mut turns = 0_u32;
    let told = loop {
        server.turn()?;
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(64)
            && let Some(told) = coordinator.try_receive()
        {
            break told;
        }
    };
    let ToParticipant::Finish = told else { bail!("expected to finish") };
    let since = Instant::now();
    while server.turn()? > 0 || since.elapsed() < GRACE {}
    coordinator.send(&FromParticipant::Seen(server.report()));
    server.rails.vqp.close()?;
    Ok(())
}

fn receive(inbox_mr: &VirtualMr, slot: u64) -> RecvWr {
    RecvWr::new(slot, inbox_mr.sge(slot * LONGEST as u64, LONGEST as u32))
}

impl Server {
    /// Says how many receives it brought.
    fn turn(&mut self) -> anyhow::Result<usize> {
        self.rails.look();
        let on_first = self.rails.vqp.active_rail() == 0;
        let mut completions = core::mem::take(&mut self.completions);
        completions.clear();
        self.rails.vqp.poll(&mut completions);
        for completion in &completions {
            self.on_receive(completion, on_first)?;
        }
        let came = completions.len();
        self.completions = completions;
        self.consume();
        let moving = !self.rails.vqp.is_active() || self.rails.vqp.active_rail() != 0;
        if moving && !self.closed {
            // Its evidence has just left, if at all: nothing was replayed yet.
            self.closed = true;
            self.seen.counter_before = Some(self.memory.load(COUNTER as usize));
        }
        Ok(came)
    }

    /// Takes the words that operations have left.
    fn consume(&mut self) {
        let mut now = None;
        for &(n, at) in &self.words {
            if self.memory.load(at) == 0 {
                continue;
            }
            let op = self.workload.ops[n];
            let id = self.memory.load(at);
            let mut bytes = vec![0; op.len as usize];
            self.memory.read_at(op.at as usize, &mut bytes);
            let whole = is_whole(self.workload.id(n), &bytes);
            self.memory.swap(at, 0);
            let at = *now.get_or_insert_with(|| self.rails.now());
            self.seen.log.push(Entry { kind: op.kind, id, whole, before: !self.closed, at });
        }
    }

    fn on_receive(&mut self, completion: &Completion, before: bool) -> anyhow::Result<()> {
        if !completion.is_success() {
            return Ok(()); // flushed: the vQP has ended
        }
        let slot = completion.wr_id;
        let mut bytes = vec![0; (completion.byte_len as usize).min(LONGEST)];
        self.inbox.read_at(slot as usize * LONGEST, &mut bytes);
        let id = bytes.last_chunk().map_or(0, |last| u64::from_ne_bytes(*last));
        let sent = self.workload.find(id).map(|n| self.workload.ops[n]);
        let whole = sent.is_some_and(|op| op.len as usize == bytes.len()) && is_whole(id, &bytes);
        let at = self.rails.now();
        self.seen.log.push(Entry { kind: Kind::Send, id, whole, before, at });
        self.rails.vqp.post_recv(receive(&self.inbox_mr, slot))?;
        Ok(())
    }

    fn report(&mut self) -> Seen {
        let mut seen = core::mem::take(&mut self.seen);
        seen.counter = self.memory.load(COUNTER as usize);
        seen.failover = self.rails.failover();
        seen.struck = self.rails.struck;
        seen.ended = self.rails.ended();
        seen
    }
}
