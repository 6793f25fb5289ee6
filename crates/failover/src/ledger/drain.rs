//! The draining of the send queue (state SQD): operations that have begun run to their end, and no
//! other operation begins.

use super::{Ledger, Op, State};
use crate::completion::Resolution;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) enum Drain {
    #[default]
    Off,
    Draining,
    Drained,
}

impl Drain {
    /// A replayed operation may be posted, because it had begun on the old rail.
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
    /// Begins to drain. Returns false if the queue drains or has drained already.
    pub fn drain(&mut self) -> bool {
        let begins = self.drain == Drain::Off;
        if begins {
            self.drain = Drain::Draining;
        }
        begins
    }

    /// Ends the draining, so that operations are posted again.
    pub fn undrain(&mut self) {
        self.drain = Drain::Off;
    }

    /// Whether the queue drains and has not drained yet.
    pub fn is_draining(&self) -> bool {
        self.drain == Drain::Draining
    }

    /// Whether the queue has drained.
    pub fn is_drained(&self) -> bool {
        self.drain == Drain::Drained
    }

    /// Records that the queue has drained.
    pub fn set_drained(&mut self) {
        self.drain = Drain::Drained;
    }

    /// Whether every operation that has begun has ended. An unsignalled operation has not ended
    /// until a later one completes.
    pub fn has_no_begun_operation(&self) -> bool {
        self.ops.iter().all(|op| match op.state {
            State::Done(_) => true,
            State::InFlight => false,
            State::Pending => op.resolution != Resolution::Replayed,
        })
    }
}
