//! Rails that were left and come back, and an end that waits for one.
//!
//! Both ends bind the same rails in the same order, so the ballot by which a rail was left names the queue pairs that it is
//! bound to next: each end makes one, once, and only these two are ever connected. Until both stand the rail is not proposed;
//! a packet of the old queue pairs finds no queue pair any more.

use mitra_verbs::Time;

use super::{Agreement, CloseReason, Phase};
use crate::ballot::Ballot;

impl Agreement {
    /// The ballot by which a rail was left last, if the peer has confirmed it: then nothing of the old queue pair is needed.
    pub fn left(&self, rail: usize) -> Option<Ballot> {
        self.left[rail].filter(|_| self.tail.is_none() && self.phase != Phase::Closed)
    }

    /// Whether the active rail has failed, and no move could begin yet.
    pub fn is_stranded(&self) -> bool {
        self.stranded.is_some()
    }

    /// Whether a rail that was left waits for a queue pair, of this end or of the peer's.
    pub fn is_waiting(&self, rail: usize) -> bool {
        self.left(rail).is_some() && self.unsure & (1 << rail) != 0
    }

    /// This end's next queue pair of a rail is connected to the peer's.
    pub fn renewed(&mut self, rail: usize) {
        self.spent &= !(1 << rail);
    }

    /// So is the peer's to this end's.
    pub fn peer_renewed(&mut self, now: Time, rail: usize) {
        self.unsure &= !(1 << rail);
        self.refused &= !(1 << rail);
        self.try_again(now);
    }

    /// The active rail has failed, and a move cannot begin yet: it waits, unless no NIC lives that something could come by. A
    /// link that is down ends nothing that the queue pair's own retries outlast.
    pub(super) fn wait(&mut self, now: Time) {
        if self.all() & !self.broken == 0 {
            return self.end(self.nowhere());
        }
        self.next_send.get_or_insert(now + self.retry);
        if self.is_active() {
            self.stranded.get_or_insert(now);
        }
    }

    /// What a move waited for may be there.
    pub(super) fn try_again(&mut self, now: Time) {
        if self.stranded.is_some() || self.is_refused() {
            self.propose(now);
        }
    }

    /// Whether the peer has declined this end's ballot, and there was no other rail to propose.
    pub(super) fn is_refused(&self) -> bool {
        matches!(&self.phase, Phase::Moving(m) if m.proposed && self.refused & (1 << m.rail) != 0)
    }

    /// Why there is nowhere to go.
    pub(super) fn nowhere(&self) -> CloseReason {
        if self.tail.is_some() { CloseReason::FailedDuringRecovery } else { CloseReason::NoRail }
    }
}
