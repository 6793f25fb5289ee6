//! The draining of the send queue (state SQD): operations that have begun end, and no other begins.

use super::{Ledger, Op, State};
use crate::completion::Resolution;

/// The state of draining.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) enum Drain {
    #[default]
    Off,
    Draining,
    Drained,
}

impl Drain {
    /// Returns whether a pending operation may be posted. A failover has replaced the rail of an
    /// operation that is replayed, so the operation had begun.
    #[inline]
    pub(super) fn may_post(self, op: &Op) -> bool {
        match self {
            Drain::Off => true,
            Drain::Draining => op.resolution == Resolution::Replayed,
            Drain::Drained => false,
        }
    }
}

impl Ledger {
    /// Begins to drain, unless the queue drains or has drained already. Returns whether it began.
    pub fn drain(&mut self) -> bool {
        let begins = self.drain == Drain::Off;
        if begins {
            self.drain = Drain::Draining;
        }
        begins
    }

    /// Ends the draining: operations are posted again.
    pub fn undrain(&mut self) {
        self.drain = Drain::Off;
    }

    /// Returns whether the queue drains and has not drained yet.
    pub fn is_draining(&self) -> bool {
        self.drain == Drain::Draining
    }

    /// Returns whether the queue has drained.
    pub fn is_drained(&self) -> bool {
        self.drain == Drain::Drained
    }

    /// Records that the queue has drained.
    pub fn set_drained(&mut self) {
        self.drain = Drain::Drained;
    }

    /// Returns whether no operation has begun that has not ended. An operation without the SIGNALED
    /// flag counts as one that has not ended, until a later one completes.
    pub fn has_no_begun_operation(&self) -> bool {
        self.ops.iter().all(|op| match op.state {
            State::Done(_) => true,
            State::InFlight => false,
            State::Pending => op.resolution != Resolution::Replayed,
        })
    }
}
