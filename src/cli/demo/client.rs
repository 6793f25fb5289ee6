//! The client: posts the workload, many operations in flight, and notes how each ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use mitra_failover::{Completion, Outcome, RemoteRegion, Resolution, UnresolvedError, VirtualMr};
use mitra_verbs::{Access, Buffer, Data, SendOp, SendWr, WcStatus};

use super::participant::Coordinator;
use super::plan::Side;
use super::protocol::{Done, Ending, FromParticipant, Posted, Record, Round, ToParticipant, Way};
use super::rails::Rails;
use super::workload::{Kind, LONGEST, Workload, fill, pattern};

/// A round that takes longer is stuck.
const PATIENCE: Duration = Duration::from_secs(20);
const PROGRESS: Duration = Duration::from_millis(50);

struct Client {
    rails: Rails,
    workload: Workload,
    in_flight: usize,
    /// A place of [`LONGEST`] bytes for each operation in flight.
    local: Arc<Buffer>,
    local_mr: VirtualMr,
    memory: RemoteRegion,
    pattern: RemoteRegion,
    posted: Posted,
    /// Completions so far: they come in posting order.
    done: usize,
    completions: Vec<Completion>,
}

/// One round, from its announcement to the report.
pub(super) fn round(coordinator: &mut Coordinator, round: &Round) -> anyhow::Result<()> {
    let mut rails = Rails::open(Side::Client, round)?;
    let workload = Workload::new(round.seed, round.ops);
    let in_flight = round.in_flight as usize;
    let local = Arc::new(Buffer::new(in_flight * LONGEST));
    let local_mr = rails.domain.register(&local, Access::LOCAL_WRITE)?;
    coordinator.send(&FromParticipant::Introduction(rails.introduce(Vec::new())?));
    let ToParticipant::Peer(peer) = coordinator.receive() else { bail!("expected the peer") };
    rails.connect(&peer)?;
    let [memory, pattern] = &peer.regions[..] else { bail!("expected two regions") };
    let (memory, pattern) = (RemoteRegion::decode(memory)?, RemoteRegion::decode(pattern)?);
    rails.vqp.import(&memory)?;
    rails.vqp.import(&pattern)?;
    coordinator.send(&FromParticipant::Ready);
    let ToParticipant::Go = coordinator.receive() else { bail!("expected to go") };
    rails.arm(round.fault.as_deref())?;

    let (posted, completions) = (Posted::default(), Vec::new());
    let mut client =
        Client { rails, workload, in_flight, local, local_mr, memory, pattern, posted, done: 0, completions };
    let since = Instant::now();
    let mut told = Duration::ZERO;
    while !client.has_done() && since.elapsed() < PATIENCE {
        client.turn()?;
        if since.elapsed() > told + PROGRESS {
            told = since.elapsed();
            coordinator.send(&FromParticipant::Progress(client.done as u64));
        }
    }
    coordinator.send(&FromParticipant::Posted(client.report()));
    // The peer may still need an answer.
    while coordinator.try_receive().is_none() {
        client.turn()?;
    }
    client.rails.vqp.close()?;
    Ok(())
}

impl Client {
    fn has_done(&self) -> bool {
        let vqp = &self.rails.vqp;
        // The server hands out what it received after a move when it knows that the move is complete.
        let all = self.done == self.workload.ops.len() && vqp.is_move_confirmed();
        all || vqp.close_reason().is_some() && self.done == self.posted.ops.len()
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        self.rails.look();
        self.post()?;
        let mut completions = core::mem::take(&mut self.completions);
        completions.clear();
        self.rails.vqp.poll(&mut completions);
        for completion in &completions {
            self.on_completion(completion);
        }
        self.completions = completions;
        if self.rails.vqp.is_halted() && self.done == self.posted.ops.len() {
            // Every error has been noted: that is all that this application makes of one.
            self.rails.vqp.resume();
        }
        Ok(())
    }

    fn post(&mut self) -> anyhow::Result<()> {
        while self.posted.ops.len() < self.workload.ops.len()
            && self.posted.ops.len() - self.done < self.in_flight
            && !self.rails.vqp.is_halted()
            && self.rails.vqp.close_reason().is_none()
        {
            let n = self.posted.ops.len();
            let request = self.request(n);
            self.posted.ops.push(Record { posted: self.rails.now(), done: None });
            self.rails.vqp.post_send(request).with_context(|| format!("operation {n} was refused"))?;
        }
        Ok(())
    }

    /// The place of operation `n` in local memory: free again when it has completed.
    fn place(&self, n: usize) -> usize {
        n % self.in_flight * LONGEST
    }

    fn request(&self, n: usize) -> SendWr {
        let op = self.workload.ops[n];
        let (id, place) = (self.workload.id(n), self.place(n));
        let local = || Data::sge(self.local_mr.sge(place as u64, op.len));
        let payload = || {
            let mut bytes = vec![0; op.len as usize];
            fill(id, &mut bytes);
            if op.len == 8 {
                return Data::inline(&bytes);
            }
            self.local.write_at(place, &bytes);
            local()
        };
        let results = || {
            self.local.write_at(place, &vec![0xee; op.len as usize]);
            local()
        };
        let (op, data) = match op.kind {
            Kind::Write => (SendOp::Write(self.memory.at(op.at)), payload()),
            Kind::Send => (SendOp::Send, payload()),
            Kind::Read => (SendOp::Read(self.pattern.at(op.at)), results()),
            Kind::Cas => {
                (SendOp::CompareSwap { remote: self.memory.at(op.at), compare: 0, swap: id }, results())
            }
            Kind::Faa => (SendOp::FetchAdd { remote: self.memory.at(op.at), add: 1 }, results()),
        };
        SendWr::new(n as u64, op, data)
    }

    fn on_completion(&mut self, completion: &Completion) {
        let n = self.done;
        if completion.wr_id != n as u64 || n >= self.posted.ops.len() {
            self.posted.stray += 1;
            return;
        }
        self.done += 1;
        let value = if completion.is_success() { self.value(n) } else { 0 };
        self.posted.ops[n].done = Some(Done {
            at: self.rails.now(),
            ending: ending(completion.outcome),
            way: match completion.resolution {
                Resolution::Direct => Way::Direct,
                Resolution::Recovered => Way::Recovered,
                Resolution::Replayed => Way::Replayed,
            },
            value,
        });
    }

    /// What came back: an old value, or how many words of a READ are wrong.
    fn value(&self, n: usize) -> u64 {
        let (op, place) = (self.workload.ops[n], self.place(n));
        match op.kind {
            Kind::Write | Kind::Send => 0,
            Kind::Cas | Kind::Faa => self.local.load(place),
            Kind::Read => {
                let words = (0..op.len as usize).step_by(8);
                words.filter(|&i| self.local.load(place + i) != pattern(op.at + i as u64)).count() as u64
            }
        }
    }

    fn report(&mut self) -> Posted {
        let mut posted = self.posted.clone();
        posted.failover = self.rails.failover();
        posted.struck = self.rails.struck;
        posted.ended = self.rails.ended();
        posted
    }
}

fn ending(outcome: Outcome) -> Ending {
    match outcome {
        Outcome::Success => Ending::Success,
        Outcome::Unresolved(UnresolvedError::Indeterminate) => Ending::Indeterminate,
        Outcome::Unresolved(UnresolvedError::ValueLost) => Ending::ValueLost,
        Outcome::Unresolved(UnresolvedError::ExecutedBehindError) => Ending::ExecutedBehindError,
        Outcome::Unresolved(UnresolvedError::Undecided(_)) => Ending::Undecided,
        Outcome::Failed(WcStatus::Flushed) => Ending::Flushed,
        Outcome::Unresolved(_) | Outcome::Failed(_) => Ending::Failed,
    }
}
