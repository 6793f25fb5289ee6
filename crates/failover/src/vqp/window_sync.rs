//! Keeps the memory windows of all rails *in step*: every NIC has executed the same binds and
//! invalidations.
//!
//! The active rail's queue pair executes a bind or a local invalidation in order with the other
//! sends. Then the other NICs execute the operation, and the operation completes. For a SEND with
//! invalidate, the receiving NIC invalidates the key first. The other NICs of the receiver follow
//! before the receive completes.
//!
//! A type 2 window is bound on a queue pair, so each rail executes the operations on its data queue
//! pair. A data queue pair that is connected later executes the binds in force. A type 1 window is
//! bound for the protection domain, so each NIC executes such binds on a separate queue pair
//! ([`LocalQp`]).
//!
//! The peer uses a new rail only after the peer has received this end's evidence. The vQP therefore
//! sends the evidence only when the new rail is in step. The vQP itself also posts only on a rail
//! that is in step.

use std::collections::VecDeque;
use std::sync::Arc;

use mitra_mutants::Mutant;
use mitra_verbs::{Data, Error, Key, Result, SendOp, SendWr, Wc, WcStatus, WindowType};

use crate::cause::Cause;
use crate::close_reason::CloseReason;
use crate::data_qp::DataQp;
use crate::domain::{Domain, WindowOwner};
use crate::vqp::failure::Failure;
use crate::vqp::local_qp::LocalQp;
use crate::vqp::wr_id_flags;

/// The maximum number of operations posted on one queue pair. A data queue pair has this many spare
/// slots.
const MAX_POSTED: u32 = 4;

#[derive(Debug, Default)]
struct Backlog {
    /// Unposted operations, with the handles and keys that the application knows.
    ops: VecDeque<SendOp>,
    posted: u32,
    /// Whether the queue pair executes nothing and grants nothing, because it is in ERR, not
    /// connected yet, or on a NIC that was reset.
    is_cut_off: bool,
}

impl Backlog {
    fn push(&mut self, op: SendOp) {
        if !self.is_cut_off {
            self.ops.push_back(op);
        }
    }

    fn cut_off(&mut self) {
        *self = Backlog { is_cut_off: true, ..Backlog::default() };
    }

    fn is_empty(&self) -> bool {
        self.ops.is_empty() && self.posted == 0
    }

    /// # Errors
    /// The error of `post`. The queue pair has failed.
    fn post(
        &mut self,
        rail: usize,
        domain: &Domain,
        mut post: impl FnMut(SendWr) -> Result<()>,
    ) -> Result<()> {
        while self.posted < MAX_POSTED
            && let Some(op) = self.ops.front()
        {
            // An operation on a window or region that no longer exists has no effect.
            if let Some(op) = domain.window_op_on(op, rail) {
                post(SendWr::new(wr_id_flags::WINDOW, op, Data::empty()))?;
                self.posted += 1;
            }
            self.ops.pop_front();
        }
        Ok(())
    }

    /// Returns the status of the first operation that failed.
    fn on_completions(&mut self, wcs: &[Wc]) -> Option<WcStatus> {
        let mut failed = None;
        for wc in wcs.iter().filter(|wc| wc.wr_id & wr_id_flags::WINDOW != 0 && !self.is_cut_off) {
            self.posted = self.posted.saturating_sub(1);
            if wc.status != WcStatus::Success {
                failed = failed.or(Some(wc.status));
            }
        }
        failed
    }
}

#[derive(Debug)]
pub(super) struct WindowSync {
    owner: WindowOwner,
    /// For the data queue pairs, in the order of rails.
    rails: Vec<Backlog>,
    /// The queue pairs for binds of type 1 windows, with their operations, in the order of rails.
    /// Empty before the first such bind.
    local_qps: Vec<(Option<LocalQp>, Backlog)>,
    /// The sequence number of a local operation that the active rail's NIC has executed. The
    /// operation completes when the other NICs have executed it too.
    executed: Option<u64>,
    pub(super) is_busy: bool,
    /// Whether a local operation, or a receive that has invalidated a key, waits for other NICs.
    is_awaited: bool,
    scratch: Vec<Wc>,
}

impl WindowSync {
    pub(super) fn new(domain: &Arc<Domain>) -> WindowSync {
        let rails = domain.nics().iter().map(|_| Backlog::default()).collect();
        let owner = domain.new_window_owner();
        let (local_qps, scratch) = (Vec::new(), Vec::new());
        WindowSync { owner, rails, local_qps, executed: None, is_busy: false, is_awaited: false, scratch }
    }

    /// Prepares for a bind or local invalidation. The first bind of a type 1 window creates the
    /// queue pairs for such binds.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if a NIC has no windows, and any other error of a NIC that is not
    /// dead.
    pub(super) fn prepare(&mut self, op: &SendOp, domain: &Domain) -> Result<()> {
        domain.check_window_op(op)?;
        let SendOp::BindWindow(bind) = op else { return Ok(()) };
        if domain.window_type(bind) != Some(WindowType::Type1) || !self.local_qps.is_empty() {
            return Ok(());
        }
        let mut made = Vec::new();
        for nic in domain.nics() {
            let qp = match LocalQp::new(nic) {
                Ok(qp) => Some(qp),
                Err(Error::DeviceFatal) => None,
                Err(error) => {
                    let _ = destroy_all(&made); // best effort: the caller gets the first error
                    return Err(error);
                }
            };
            let backlog = Backlog { is_cut_off: qp.is_none(), ..Backlog::default() };
            made.push((qp, backlog));
        }
        self.local_qps = made;
        Ok(())
    }

    pub(super) fn queued(&self) -> usize {
        let backlogs = self.rails.iter().chain(self.local_qps.iter().map(|(_, backlog)| backlog));
        backlogs.map(|backlog| backlog.ops.len() + backlog.posted as usize).sum()
    }

    pub(super) fn is_in_step(&self, rail: usize) -> bool {
        !self.is_busy || self.rails[rail].is_empty()
    }

    /// Records that the NIC of the active rail has executed the local operation `seq`.
    pub(super) fn on_executed(&mut self, seq: u64, op: SendOp, active: usize, domain: &Domain) {
        let is_type_1 = match &op {
            SendOp::BindWindow(bind) => domain.window_type(bind) == Some(WindowType::Type1),
            _ => false,
        };
        domain.record_window_op(self.owner, &op);
        if is_type_1 {
            let others = self.local_qps.iter_mut().enumerate().filter(|(rail, _)| *rail != active);
            others.for_each(|(_, (_, backlog))| backlog.push(op));
        } else {
            self.push_to_others(active, op);
        }
        self.executed = Some(seq);
        (self.is_busy, self.is_awaited) = (true, true);
    }

    /// Records that the NIC of `rail` has executed a SEND with invalidate. Returns the key that the
    /// application knows.
    pub(super) fn on_invalidated(&mut self, rail: usize, key: Key, domain: &Domain) -> Key {
        let Some(key) = domain.window_key_from(rail, key) else { return key };
        let op = SendOp::LocalInvalidate(key);
        domain.record_window_op(self.owner, &op);
        self.push_to_others(rail, op);
        (self.is_busy, self.is_awaited) = (true, true);
        key
    }

    fn push_to_others(&mut self, rail: usize, op: SendOp) {
        if Mutant::InvalidatedOnOneRail.is_on() && matches!(op, SendOp::LocalInvalidate(_)) {
            return;
        }
        let others = self.rails.iter_mut().enumerate().filter(|(other, _)| *other != rail);
        others.for_each(|(_, backlog)| backlog.push(op));
    }

    /// Handles the completion of a window operation on `rail`, and returns the failure that the
    /// completion reports.
    pub(super) fn on_completion(&mut self, rail: usize, wc: &Wc) -> Option<Failure> {
        let status = self.rails[rail].on_completions(core::slice::from_ref(wc))?;
        self.rails[rail].cut_off();
        Some(Failure::Rail { rail, cause: Cause::Completion(status) })
    }

    pub(super) fn cut_off(&mut self, rail: usize) {
        self.rails[rail].cut_off();
    }

    /// Records that a queue pair without bound windows was connected on a rail.
    pub(super) fn on_connected(&mut self, rail: usize, domain: &Domain) {
        let ops: VecDeque<SendOp> = domain.window_binds_of(self.owner).into();
        self.is_busy |= !ops.is_empty();
        self.rails[rail] = Backlog { ops, ..Backlog::default() };
    }

    /// Posts outstanding operations, and polls every rail except the rails in `polled`, which the
    /// caller polls. `data_qp` returns the data queue pair of a rail. Returns the local operation
    /// that all NICs have executed, and the first failure.
    pub(super) fn drive<'a>(
        &mut self,
        polled: [usize; 2],
        data_qp: impl Fn(usize) -> Option<&'a DataQp>,
        domain: &Domain,
    ) -> (Option<u64>, Option<Failure>) {
        let mut failure = None;
        for (i, backlog) in self.rails.iter_mut().enumerate().filter(|(_, backlog)| !backlog.is_empty()) {
            let Some(qp) = data_qp(i) else { continue };
            let posted = backlog.post(i, domain, |wr| qp.post_send(&[wr]).map_err(|refused| refused.error));
            let mut failed = posted.err().map(|error| match error {
                Error::DeviceFatal => Cause::Device,
                _ => Cause::Completion(WcStatus::Flushed),
            });
            if !polled.contains(&i) && backlog.posted > 0 {
                self.scratch.clear();
                let _ = qp.poll_cq(MAX_POSTED as usize, &mut self.scratch); // a dead NIC is found below
                failed = failed.or(backlog.on_completions(&self.scratch).map(Cause::Completion));
            }
            if failed.is_none() && !backlog.is_empty() && !nic_answers(domain, i) {
                failed = Some(Cause::Device);
            }
            if let Some(cause) = failed {
                failure = failure.or(Some(fence_rail(i, cause, backlog, domain)));
            }
        }
        for (i, (qp, backlog)) in self.local_qps.iter_mut().enumerate().filter(|(_, (_, b))| !b.is_empty()) {
            let Some(qp) = qp else { continue };
            let posted = backlog.post(i, domain, |wr| qp.post_send(wr));
            self.scratch.clear();
            let _ = qp.poll_cq(MAX_POSTED as usize, &mut self.scratch); // a dead NIC is found below
            if backlog.on_completions(&self.scratch).is_some() {
                backlog.cut_off(); // the application has removed what the bind names
            } else if posted.is_err() || !backlog.is_empty() && !nic_answers(domain, i) {
                failure = failure.or(Some(fence_rail(i, Cause::Device, backlog, domain)));
            }
        }
        if failure == Some(Failure::Close(CloseReason::Unfenced)) {
            return (None, failure);
        }
        let mut backlogs = self.rails.iter().chain(self.local_qps.iter().map(|(_, backlog)| backlog));
        self.is_busy = backlogs.any(|backlog| !backlog.is_empty());
        if self.is_busy {
            return (None, failure);
        }
        self.is_awaited = false;
        (self.executed.take(), failure)
    }

    /// Returns whether completions of binds and invalidations may be delivered.
    pub(super) fn is_settled(&self) -> bool {
        !self.is_awaited
    }

    /// Unbinds the windows in the domain's table, because the queue pairs were reset or destroyed.
    pub(super) fn release(&mut self, domain: &Domain) {
        domain.release_windows(self.owner);
        self.rails.iter_mut().for_each(Backlog::cut_off);
    }

    pub(super) fn destroy(&self) -> Result<()> {
        destroy_all(&self.local_qps)
    }
}

/// Makes sure that a rail that failed to execute an operation grants nothing. Resets a NIC that
/// does not answer, because the NIC may only be hung.
fn fence_rail(rail: usize, cause: Cause, backlog: &mut Backlog, domain: &Domain) -> Failure {
    let needs_reset = cause == Cause::Device && !Mutant::StandbyNotReset.is_on();
    if needs_reset && domain.nics()[rail].provider.reset().is_err() {
        return Failure::Close(CloseReason::Unfenced);
    }
    backlog.cut_off();
    Failure::Rail { rail, cause }
}

fn nic_answers(domain: &Domain, rail: usize) -> bool {
    domain.nics()[rail].provider.query_port().is_ok()
}

fn destroy_all(qps: &[(Option<LocalQp>, Backlog)]) -> Result<()> {
    qps.iter().filter_map(|(qp, _)| qp.as_ref()).map(LocalQp::destroy).fold(Ok(()), Result::and)
}
