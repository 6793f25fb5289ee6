//! The completions, failures and fence of a member's own queue pair.

use mitra_mutants::Mutant;
use mitra_verbs::WcStatus;

use super::{MemberPath, SharedFailover};
use crate::cause::Cause;
use crate::close_reason::CloseReason;
use crate::vqp::failover::sealed::Failover as _;
use crate::vqp::failure::Failure;
use crate::vqp::fence::FenceStep;

pub(super) const POLL_BATCH: usize = 32;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fenced {
    /// More completions are to be polled.
    Pending,
    /// The queue pair executes nothing more. `nic_alive` says whether its NIC can be read.
    Done { nic_alive: bool },
    /// The NIC can be neither fenced nor reset.
    Failed,
}

impl SharedFailover {
    /// Handles a batch of completions of the own queue pair. During a fence, handles all
    /// completions, because the peer waits for the fence.
    pub(super) fn poll_own(&mut self, dp: &mut MemberPath) {
        while self.poll_batch(dp) && self.fence.is_draining() {}
        self.drive_windows(dp);
        match self.failure.take() {
            Some(Failure::Close(reason)) => self.close(dp, reason),
            Some(Failure::Rail { cause, .. }) => {
                if let Some(own) = dp.rails.own.as_ref().filter(|_| self.fence.is_idle())
                    && !core::mem::replace(&mut self.is_failure_reported, true)
                {
                    self.backup.lock().report_failure(own.epoch, cause);
                }
            }
            None => {}
        }
        self.flush_if_closed(dp);
    }

    /// Closes the queue pair if its NIC has reported the refusal of a request of the peer. If no
    /// receive is posted, no completion shows the refusal.
    pub(super) fn notice_refused_request(&mut self, dp: &mut MemberPath) {
        if let Some(own) = dp.rails.own.as_ref().filter(|_| self.fence.is_idle() && !self.is_failure_reported)
            && let Some(event) = own.take_refusal(&dp.domain)
        {
            dp.termination.set_qp_error_event(event, own.qp().qpn());
            self.note_failure(Some(Failure::Close(CloseReason::RequestError)));
        }
    }

    /// Handles a batch of completions of the own queue pair, unless the queue pair is fenced and
    /// drained. Returns whether more completions may follow.
    pub(super) fn poll_batch(&mut self, dp: &mut MemberPath) -> bool {
        let Some(own) = dp.rails.own.as_ref().filter(|_| !self.fence.is_done()) else { return false };
        let rail = own.rail;
        let mut wcs = core::mem::take(&mut self.wcs);
        wcs.clear();
        let polled = own.qp().poll_cq(POLL_BATCH, &mut wcs);
        if wcs.is_empty() {
            self.is_emptied = self.is_emptied.or(self.fence.on_empty_poll());
        }
        for wc in &wcs {
            let failure = dp.on_completion(rail, wc, &mut self.fence);
            self.note_failure(failure);
        }
        let is_full_batch = wcs.len() == POLL_BATCH;
        self.wcs = wcs;
        // A fenced queue pair is already left, and its failure does not concern the next queue
        // pair.
        if polled.is_err() && self.fence.is_idle() {
            self.note_failure(Some(Failure::Rail { rail, cause: Cause::Device }));
        }
        is_full_batch
    }

    /// Fences the own queue pair if a move of the home has stopped it. The backup moves only then,
    /// and asks for this fence later.
    pub(super) fn fence_if_stopped(&mut self, dp: &mut MemberPath) {
        let Some((rail, epoch)) = dp.rails.own.as_ref().map(|own| (own.rail, own.epoch)) else { return };
        let view = dp.home.view(&dp.domain, rail);
        if dp.termination.is_closed() || !view.is_some_and(|view| view.is_stopping) {
            return;
        }
        if !core::mem::replace(&mut self.is_failure_reported, true) {
            self.backup.lock().report_failure(epoch, Cause::Completion(WcStatus::Flushed));
        }
        if self.drive_fence(dp) == Fenced::Pending {
            while self.poll_batch(dp) {}
        }
        if matches!(self.drive_fence(dp), Fenced::Done { .. }) {
            dp.domain.on_home_qp_fenced(dp.home.id, rail as u8);
        }
    }

    pub(super) fn drive_fence(&mut self, dp: &MemberPath) -> Fenced {
        let Some(own) = &dp.rails.own else { return Fenced::Pending };
        if let Some(nic_alive) = self.is_emptied {
            return Fenced::Done { nic_alive };
        }
        let step = match self.fence.is_idle() {
            true => {
                // A member without receives may still execute a WRITE of its peer.
                let used = [dp.send.ledger.has_in_flight(), !Mutant::ResponderWithoutMarker.is_on()];
                self.fence.start(own.qp(), dp.now(), used)
            }
            false => self.fence.drive(own.qp(), dp.now()),
        };
        match step {
            FenceStep::Pending => Fenced::Pending,
            FenceStep::Drained => Fenced::Done { nic_alive: true },
            FenceStep::Reset if self.fence.reset_nic(own.qp()) => Fenced::Pending, // until the completion queue is empty
            FenceStep::Reset => Fenced::Failed,
        }
    }

    /// Drives the windows of the NICs. A type 2 window is bound on the member's own queue pair, so
    /// the peer's requests that name such a window cannot use the backup. They wait until the peer
    /// has its own queue pair. A new queue pair executes the binds in force before the peer learns
    /// that the queue pair is connected.
    pub(super) fn drive_windows(&mut self, dp: &mut MemberPath) {
        if !dp.windows.is_busy {
            return;
        }
        let rail = dp.rails.own.as_ref().map_or(0, |own| own.rail); // without an own queue pair, the rail does not matter
        match dp.drive_windows(rail) {
            Some(failure @ Failure::Close(_)) => self.failure = Some(failure),
            // The failure is on a rail where this member has no queue pair. The NIC of that rail
            // was reset, and the backup notices this.
            Some(Failure::Rail { rail: failed, .. }) if failed != rail => {}
            other => self.note_failure(other),
        }
    }
}
