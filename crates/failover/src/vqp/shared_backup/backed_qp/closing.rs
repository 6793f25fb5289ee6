//! The closing of a member.

use std::sync::Arc;

use super::super::own_qp::{Fenced, OwnQp};
use super::super::state::State;
use super::{BackedQp, POLL_BATCH};
use crate::close_reason::CloseReason;
use crate::completion::UnresolvedError;
use crate::evidence::Evidence;

/// The number of polls after which a queue pair that closes is not drained. This process cannot wait: it may exit.
const MAX_CLOSING_POLLS: u32 = 100;

impl BackedQp {
    pub(super) fn close_with(&mut self, reason: CloseReason) {
        let backup = Arc::clone(&self.backup);
        self.close_locked(&mut backup.lock(), reason);
        self.flush_if_closed();
    }

    pub(super) fn close_locked(&mut self, state: &mut State, reason: CloseReason) {
        if self.termination.is_closed() {
            return;
        }
        let is_stopped =
            self.own.as_ref().is_none_or(OwnQp::stop) & self.domain.revoke_grants_of(self.owner).is_ok();
        self.termination.close(if is_stopped { reason } else { CloseReason::Unfenced });
        self.counted = None;
        if let Some(own) = self.own.as_ref().filter(|_| is_stopped) {
            self.domain.unbind_at_home(self.owner, own.rail as u8); // else it stays bound, and the home stays there
        }
        self.uses_own = false;
        let evidence = self.final_evidence();
        state.with_core(self.id, |core| core.closed(evidence));
    }

    /// Drains the own queue pair, which is stopped, and returns its evidence with its epoch. `None` if the peer has it already, or if the NIC does not
    /// flush the queues at once.
    fn final_evidence(&mut self) -> Option<(u16, Evidence)> {
        let is_unfenced = self.close_reason() == Some(CloseReason::Unfenced);
        let (epoch, is_fenced) = self.own.as_ref().map(|own| (own.epoch, own.fence.is_done()))?;
        for _ in 0..MAX_CLOSING_POLLS {
            if is_unfenced || is_fenced {
                break;
            }
            if let Fenced::Done { nic_alive } = self.drive_fence(self.now()) {
                self.own.as_mut()?.fence.finish(nic_alive);
                return Some((epoch, self.evidence(nic_alive)?));
            }
            while self.poll_batch() {}
        }
        None
    }

    /// Completes every outstanding request after the queue pair has closed. Operations on the backup end first, because it may still
    /// access their memory.
    pub(super) fn flush_if_closed(&mut self) {
        if self.on_backup > 0 {
            return;
        }
        let Some(reason) = self.termination.take_flush() else { return };
        let mut wcs = Vec::new();
        while let Some(own) = self.own.as_ref().filter(|own| !own.fence.is_done())
            && own.poll(POLL_BATCH, &mut wcs).is_ok()
            && !wcs.is_empty()
        {
            wcs.drain(..).for_each(|wc| self.on_completion(&wc));
        }
        (self.own, self.failure) = (None, None);
        self.release_windows();
        self.send.abandon(UnresolvedError::Undecided(reason), &mut self.ready);
        self.recv.release_held(None, &mut self.ready);
        self.recv.flush(&mut self.ready);
    }
}
