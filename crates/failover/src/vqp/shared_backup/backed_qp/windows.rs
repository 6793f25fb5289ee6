//! The memory windows of a member.
//!
//! A type 2 window is bound on the own queue pair, and the responder's NIC refuses its key on any other, also on the backup. So a request that names a window
//! waits for the peer's own queue pair, as a SEND does. A new queue pair executes the binds in force before the peer learns that it is connected. A type 1 window
//! is bound on every NIC when its bind completes, as with a virtual queue pair.

use mitra_verbs::{Result, SendOp, Wc};

use super::BackedQp;
use crate::completion::Completion;
use crate::vqp::failure::Failure;
use crate::vqp::window_sync::WindowSync;

impl BackedQp {
    /// Prepares for a bind or a local invalidation that is about to be posted.
    ///
    /// # Errors
    /// Those of [`WindowSync::prepare`].
    pub(super) fn prepare_window_op(&mut self, op: &SendOp) -> Result<()> {
        let domain = &self.domain;
        let windows = self.windows.get_or_insert_with(|| Box::new(WindowSync::without_rails(domain)));
        windows.prepare(op, domain)
    }

    /// Records that the own queue pair has executed the bind or local invalidation with this sequence number.
    pub(super) fn on_window_op(&mut self, seq: u64, op: SendOp, rail: usize) {
        if let Some(windows) = &mut self.windows {
            windows.on_executed(seq, op, rail, &self.domain);
        }
    }

    /// Records the completion of a bind that a new queue pair executes before it is used.
    pub(super) fn on_rebound(&mut self, rail: usize, wc: &Wc) {
        let failure = self.windows.as_mut().and_then(|windows| windows.on_completion(rail, wc));
        self.failure = self.failure.or(failure);
    }

    /// Returns the completion of a receive with the key that the application knows, if the message has invalidated one.
    pub(super) fn translate_invalidated(&mut self, rail: usize, wc: &Wc) -> Wc {
        let known = match (wc.invalidated, &mut self.windows) {
            (Some(key), Some(windows)) => Some(windows.on_invalidated(rail, key, &self.domain)),
            (key, _) => key,
        };
        Wc { invalidated: known, ..*wc }
    }

    /// Has the new own queue pair, which is connected, execute the binds in force.
    pub(super) fn rebind(&mut self, rail: usize) {
        if let Some(windows) = &mut self.windows {
            windows.on_connected(rail, &self.domain);
        }
    }

    /// Returns whether the new own queue pair has executed the binds in force.
    pub(super) fn is_rebound(&self, rail: usize) -> bool {
        self.windows.as_ref().is_none_or(|windows| windows.is_in_step(rail))
    }

    /// Returns whether all NICs have executed the binds and invalidations that the own queue pair has executed.
    pub(super) fn windows_are_settled(&self) -> bool {
        self.windows.as_ref().is_none_or(|windows| windows.is_settled())
    }

    /// Continues with what NICs still have to execute, and completes the local operation that all of them have executed.
    pub(super) fn drive_windows(&mut self) {
        let Some(windows) = self.windows.as_mut().filter(|windows| windows.is_busy()) else { return };
        let own = self.own.as_ref();
        let rail = own.map_or(0, |own| own.rail); // without an own queue pair, no rail has operations for one
        let qp_on = |on| own.filter(|own| own.rail == on).map(|own| own.qp());
        let (executed, failure) = windows.drive([rail; 2], qp_on, &self.domain);
        if let Some(seq) = executed {
            self.send.complete_local(seq);
        }
        match failure {
            Some(Failure::Close(_)) => self.failure = failure,
            // Another NIC was reset, which the backup notices.
            Some(Failure::Rail { rail: failed, .. }) if failed == rail => {
                self.failure = self.failure.or(failure)
            }
            Some(Failure::Rail { .. }) | None => {}
        }
    }

    /// Records that the own queue pair is in ERR.
    pub(super) fn cut_off_windows(&mut self, rail: usize) {
        if let Some(windows) = &mut self.windows {
            windows.cut_off(rail);
        }
    }

    /// Unbinds the type 2 windows in the domain's table, because the own queue pair is destroyed.
    pub(super) fn release_windows(&mut self) {
        if let Some(windows) = &mut self.windows {
            windows.release(&self.domain);
        }
    }

    /// The number of completions that may be delivered. A receive that has invalidated a key waits until no NIC grants access by the key.
    pub(super) fn deliverable(&self) -> usize {
        if self.windows_are_settled() {
            return self.ready.len();
        }
        let waits = |c: &Completion| c.invalidated.is_some();
        self.ready.iter().position(waits).unwrap_or(self.ready.len())
    }
}
