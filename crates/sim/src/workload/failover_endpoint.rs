//! The endpoint over a queue pair that survives the loss of a rail.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::Arc;
use std::task::Wake;

use mitra_failover::{
    BackedQp, CloseReason, Completion, Config, Contradiction, Domain, Failover, FailoverReport, Outcome,
    RemoteRegion, SharedBackup, SharedReceiveQueue, StateLengths, UnresolvedError, VirtualQp,
};
use mitra_verbs::{Error, PostError, Qpn, RecvWr, Result, SendWr, Time, WcStatus};

use super::{Endpoint, EndpointCompletion, RECV_WR_FLAG, ReportedOutcome, WorkloadPeer};

/// A queue pair that survives the loss of a rail: a virtual queue pair, a queue pair with a shared
/// backup, or a pair of XRC connections.
pub trait FailoverQp: fmt::Debug {
    /// The kind of failover.
    type Kind: Failover;

    /// The virtual queue pair that sends.
    fn sender(&self) -> &VirtualQp<Self::Kind>;

    /// The virtual queue pair that sends.
    fn sender_mut(&mut self) -> &mut VirtualQp<Self::Kind>;

    /// The virtual queue pair that receives.
    fn receiver(&self) -> &VirtualQp<Self::Kind> {
        self.sender()
    }

    /// Posts a send.
    ///
    /// # Errors
    /// The error of the virtual queue pair.
    fn post_send(&mut self, wr: SendWr) -> Result<u64> {
        self.sender_mut().post_send(wr)
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// The error of the virtual queue pair.
    fn post_recv(&mut self, wr: RecvWr) -> Result<()> {
        self.sender_mut().post_recv(wr)
    }

    /// Drives the queue pair, and appends completions to `out`.
    fn poll(&mut self, out: &mut Vec<Completion>) {
        self.sender_mut().poll(out);
    }

    /// Appends completions to `out`, and runs no maintenance.
    fn poll_completions(&mut self, out: &mut Vec<Completion>) {
        self.sender_mut().poll_completions(out);
    }

    /// Returns whether the send queue has stopped at an operation that ended in an error.
    fn is_halted(&self) -> bool {
        self.sender().is_halted()
    }

    /// Lets sends be posted again.
    fn resume(&mut self) {
        self.sender_mut().resume();
    }

    /// The number of sends that have not completed.
    fn outstanding(&self) -> usize {
        self.sender().outstanding()
    }

    /// The number of messages that have arrived and wait for a receive of the shared receive queue.
    fn waiting_messages(&self) -> usize {
        self.receiver().waiting_messages()
    }

    /// The reason for which the queue pair closed. `None` while it is open.
    fn close_reason(&self) -> Option<CloseReason> {
        self.sender().close_reason()
    }

    /// The contradiction, if the queue pair closed with [`CloseReason::Contradiction`].
    fn contradiction(&self) -> Option<Contradiction> {
        self.sender().contradiction()
    }

    /// The lengths of the lists that each virtual queue pair of the end keeps.
    fn state_lengths(&self) -> Vec<StateLengths> {
        vec![self.sender().state_lengths()]
    }

    /// The active rail.
    fn active_rail(&self) -> usize {
        self.sender().active_rail()
    }

    /// The report of the last failover.
    fn last_failover(&self) -> Option<FailoverReport> {
        self.sender().last_failover()
    }

    /// The number of received messages that no honest peer sends.
    fn rejected_messages(&self) -> u64 {
        self.sender().rejected_messages()
    }

    /// The configuration.
    fn config(&self) -> Config {
        self.sender().config()
    }

    /// The domain whose NICs and memory the queue pair uses.
    fn domain(&self) -> &Arc<Domain> {
        self.sender().domain()
    }

    /// Makes a region of the peer known.
    ///
    /// # Errors
    /// The error of the virtual queue pair.
    fn import(&mut self, region: &RemoteRegion) -> Result<()> {
        self.sender_mut().import(region)
    }

    /// Ends the queue pair. With `abruptly`, it ends at once. Otherwise it tells its peer when it
    /// is polled.
    fn leave(&mut self, abruptly: bool) {
        if abruptly {
            let _ = self.sender_mut().close(); // a dead NIC has no objects to destroy
        } else {
            self.sender_mut().shutdown();
        }
    }
}

impl<F: Failover> FailoverQp for VirtualQp<F> {
    type Kind = F;

    fn sender(&self) -> &VirtualQp<F> {
        self
    }

    fn sender_mut(&mut self) -> &mut VirtualQp<F> {
        self
    }
}

/// The operations that a halt of the send queue affects. The first operation is the one that
/// failed. The last operation is the last one that was posted before posting resumed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Halt {
    /// The sequence number of the operation that failed first.
    pub failed: u64,
    /// The number of operations that ended as [`UnresolvedError::Indeterminate`].
    pub indeterminate: usize,
    /// The sequence number of the first operation that succeeded although it was posted after
    /// `failed`.
    pub succeeded: Option<u64>,
}

/// One end of a connection over several rails. After an operation has failed, posting resumes as
/// soon as all earlier operations have ended.
#[derive(Debug)]
pub struct FailoverEndpoint<Q> {
    /// The queue pair.
    pub qp: Q,
    /// The completions of operations that did not succeed. Receives are not included.
    pub failures: Vec<Completion>,
    /// The halts of the send queue, each at an operation that failed.
    pub halts: Vec<Halt>,
    resumed: Vec<u64>,
    /// Whether [`Endpoint::poll`] takes completions and runs no maintenance
    /// ([`FailoverQp::poll_completions`]).
    pub takes_completions_only: bool,
    /// The queue from which the queue pair takes receives. `None` if it has its own.
    pub shared_receives: Option<Arc<SharedReceiveQueue>>,
    /// The shared backup of the queue pair, if it has one.
    pub backup: Option<Arc<SharedBackup>>,
    /// Present if the queue pair is a member of its domain's poll group. It is then polled only
    /// when it has something to do.
    pub membership: Option<Membership<Q>>,
    completions: Vec<Completion>,
}

/// The time between two queries whether the NICs of a poll group are alive.
const QUERY_INTERVAL: Duration = Duration::from_millis(1);

/// Drives a member of a poll group, and the group.
#[derive(Debug)]
pub struct Membership<Q> {
    woken: Arc<Flag>,
    next_poll: fn(&Q) -> Option<Time>,
    /// The result of `next_poll` after the last call of the queue pair. It is not asked at each
    /// turn, because that would hide a missing wake-up.
    due: Option<Time>,
    last_query: Time,
}

/// The flag that a member's waker sets.
#[derive(Debug, Default)]
pub struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Membership<VirtualQp> {
    /// Drives the virtual queue pair whose waker sets the flag.
    pub fn new(woken: Arc<Flag>) -> Membership<VirtualQp> {
        let next_poll = |qp: &VirtualQp| if qp.has_completions() { Some(Time::ZERO) } else { qp.next_poll() };
        Membership { woken, next_poll, due: Some(Time::ZERO), last_query: Time::ZERO }
    }
}

impl<Q: FailoverQp> Membership<Q> {
    /// Polls the group. Returns whether the member has something to do.
    fn poll(&mut self, qp: &Q) -> bool {
        let mut now = qp.domain().poll();
        if now >= self.last_query + QUERY_INTERVAL {
            now = qp.domain().poll_and_query();
            self.last_query = now;
        }
        self.woken.0.swap(false, Ordering::Relaxed) || self.due.is_some_and(|at| at <= now)
    }
}

/// One end of a virtual connection.
pub type VqpEndpoint = FailoverEndpoint<VirtualQp>;

/// One end of a connection with a shared backup.
pub type BackedEndpoint = FailoverEndpoint<BackedQp>;

impl<Q: FailoverQp> FailoverEndpoint<Q> {
    /// Creates an endpoint from a queue pair.
    pub fn new(qp: Q) -> FailoverEndpoint<Q> {
        FailoverEndpoint {
            qp,
            failures: Vec::new(),
            halts: Vec::new(),
            resumed: Vec::new(),
            takes_completions_only: false,
            shared_receives: None,
            backup: None,
            membership: None,
            completions: Vec::new(),
        }
    }

    /// Ends the queue pair like [`FailoverQp::leave`]. Without `abruptly`, a queue pair with a
    /// shared backup ends together with all queue pairs of that backup.
    pub fn leave(&mut self, abruptly: bool) {
        match &self.backup {
            Some(backup) if !abruptly => backup.shutdown(),
            _ => self.qp.leave(abruptly),
        }
        self.schedule();
    }

    /// To be called after each call of the queue pair.
    fn schedule(&mut self) {
        if let Some(membership) = &mut self.membership {
            membership.due = (membership.next_poll)(&self.qp);
        }
    }

    fn record_send(&mut self, completion: Completion) {
        let has_resumed = |halt: &Halt| {
            self.resumed.iter().any(|resumed| (halt.failed + 1..=completion.seq).contains(resumed))
        };
        let halt = self.halts.last_mut().filter(|halt| !has_resumed(halt));
        if completion.is_success() {
            if let Some(halt) = halt {
                halt.succeeded.get_or_insert(completion.seq);
            }
            return;
        }
        let is_indeterminate = completion.outcome == Outcome::Unresolved(UnresolvedError::Indeterminate);
        match halt {
            Some(halt) => halt.indeterminate += usize::from(is_indeterminate),
            None => self.halts.push(Halt {
                failed: completion.seq,
                indeterminate: is_indeterminate.into(),
                ..Halt::default()
            }),
        }
        self.failures.push(completion);
    }
}

impl<Q: FailoverQp> Endpoint for FailoverEndpoint<Q> {
    fn post(&mut self, wr: SendWr) -> Result<(), PostError> {
        let mut resumes = false;
        if self.qp.is_halted() && self.qp.close_reason().is_none() {
            if self.qp.outstanding() > 0 {
                let error = Error::QueueFull { queue: "send queue", qpn: Qpn::new(0), depth: 0 };
                return Err(PostError { index: 0, error });
            }
            self.qp.resume();
            resumes = true;
        }
        let posted = self.qp.post_send(wr);
        self.schedule();
        let seq = posted.map_err(|error| PostError { index: 0, error })?;
        self.resumed.extend(resumes.then_some(seq));
        Ok(())
    }

    fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        if let Some(queue) = &self.shared_receives {
            return queue.post_recv(&[wr]);
        }
        let posted = self.qp.post_recv(wr);
        self.schedule();
        posted.map_err(|error| PostError { index: 0, error })
    }

    fn poll(&mut self, out: &mut Vec<EndpointCompletion>) {
        let mut completions = core::mem::take(&mut self.completions);
        if self.takes_completions_only {
            self.qp.poll_completions(&mut completions);
        } else if self.membership.as_mut().is_none_or(|membership| membership.poll(&self.qp)) {
            self.qp.poll(&mut completions);
            self.schedule();
        }
        for c in completions.drain(..) {
            if c.wr_id & RECV_WR_FLAG == 0 {
                self.record_send(c);
            }
            out.push(EndpointCompletion {
                wr_id: c.wr_id,
                outcome: outcome(c.outcome),
                byte_len: c.byte_len,
                imm: c.imm,
                invalidated: c.invalidated,
            });
        }
        self.completions = completions;
    }

    fn is_idle(&self) -> bool {
        self.qp.outstanding() == 0
    }
}

fn outcome(outcome: Outcome) -> ReportedOutcome {
    match outcome {
        Outcome::Success => ReportedOutcome::Success,
        Outcome::Failed(WcStatus::Flushed) => ReportedOutcome::NotExecuted,
        Outcome::Unresolved(UnresolvedError::ValueLost | UnresolvedError::ExecutedBehindError) => {
            ReportedOutcome::Executed
        }
        Outcome::Failed(_) | Outcome::Unresolved(_) => ReportedOutcome::Unknown,
    }
}

/// Registers the memory of two peers on all rails, and makes it known to the other end of their
/// connection.
///
/// # Errors
/// Returns the error of the first call to a NIC or a queue pair that failed.
pub fn exchange_memory<Q: FailoverQp>(ends: [&mut Q; 2], peers: [&mut WorkloadPeer; 2]) -> Result<()> {
    let ([a, b], [first, second]) = (ends, peers);
    let mr_a = a.domain().register(first.memory(), WorkloadPeer::ACCESS)?;
    let mr_b = b.domain().register(second.memory(), WorkloadPeer::ACCESS)?;
    a.import(&mr_b.remote())?;
    b.import(&mr_a.remote())?;
    first.connect(mr_a.primary(), mr_b.remote().at(0));
    second.connect(mr_b.primary(), mr_a.remote().at(0));
    Ok(())
}
