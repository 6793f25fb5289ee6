//! The home rail of atomics that several vQPs share, as a state machine without I/O.
//!
//! On most NICs an atomic is atomic only with respect to atomics of the same NIC
//! ([`AtomicScope::Nic`](mitra_verbs::AtomicScope::Nic)). If several vQPs use one word, at most one
//! NIC of the responder may therefore execute their requests: the NIC of the *home rail*. A queue
//! pair of the responder is *bound* from the time at which its peer may post requests to it until
//! it is moved to ERR. Then it is *stopping*, because its NIC may still execute a packet that it
//! has begun, until the fence of its own vQP is done. The invariant is that while any queue pair is
//! bound, all bound and stopping queue pairs are on the home rail. The first vQP that needs another
//! rail therefore stops the queue pairs of all vQPs, and the other vQPs follow it.
//!
//! Each home has a [generation](Home), like the view number of a replicated system. A vQP that
//! finds the newest home unusable proposes another rail as the home of the next generation. A vQP
//! that follows to a newer home proposes that home, with its generation. Each proposal names the
//! newest home that the proposer knows, and the peer declines the proposal if the peer's own home
//! is newer. If both processes have a home, both therefore end on the same one, in whatever order
//! their vQPs move.

use std::collections::BTreeMap;

use mitra_mutants::Mutant;

use crate::config::MAX_RAILS;

/// A vQP of the domains that share their NICs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct VqpId(pub(crate) u64);

/// A home rail and its generation. Homes are ordered by generation and then by rail. If two vQPs
/// choose homes of one generation at the same time, the home with the higher rail wins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Home {
    /// The number of times that the home has moved because a vQP found it unusable.
    pub generation: u64,
    /// The home rail.
    pub rail: u8,
}

impl Home {
    pub(crate) fn moved_to(self, rail: u8) -> Home {
        let generation = self.generation.saturating_add(u64::from(rail != self.rail));
        Home { generation, rail }
    }
}

/// `Q` is what the caller keeps of each queue pair.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct HomeRail<Q> {
    /// Whether the vQPs share atomics. If not, each vQP is bound to a rail of its own choice.
    is_shared: bool,
    home: Home,
    /// The bound queue pairs, by rail and vQP.
    bound: BTreeMap<(u8, VqpId), Q>,
    /// The queue pairs that were bound and that may still execute a request.
    stopping: BTreeMap<(u8, VqpId), Q>,
}

impl<Q> Default for HomeRail<Q> {
    fn default() -> HomeRail<Q> {
        let (bound, stopping) = (BTreeMap::new(), BTreeMap::new());
        HomeRail { is_shared: false, home: Home::default(), bound, stopping }
    }
}

impl<Q> HomeRail<Q> {
    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared
    }

    pub(crate) fn home(&self) -> Home {
        self.home
    }

    /// Whether the home must not move to `to`, because it is newer, and queue pairs are bound there
    /// or will be when others have stopped.
    pub(crate) fn is_newer_than(&self, to: Home) -> bool {
        self.home > to && (self.next_to_stop(to.rail).is_some() || self.is_moving())
    }

    pub(crate) fn is_bound(&self, member: VqpId, rail: u8) -> bool {
        self.bound.contains_key(&(rail, member))
    }

    pub(crate) fn is_stopping(&self, member: VqpId, rail: u8) -> bool {
        self.stopping.contains_key(&(rail, member))
    }

    /// The bound or stopping queue pair of a vQP on `rail`.
    pub(crate) fn qp_mut(&mut self, member: VqpId, rail: u8) -> Option<&mut Q> {
        let key = (rail, member);
        self.bound.get_mut(&key).or_else(|| self.stopping.get_mut(&key))
    }

    /// Returns a bound queue pair of another rail than `rail`, if the vQPs share atomics. Before
    /// any vQP is bound to `rail`, the caller must move this queue pair to ERR and call
    /// [`HomeRail::stop`], or end it and call [`HomeRail::unbind`].
    pub(crate) fn next_to_stop(&self, rail: u8) -> Option<(VqpId, u8)> {
        let (first, last) = (self.bound.first_key_value()?, self.bound.last_key_value()?);
        let outside = [first, last].into_iter().find(|((on, _), _)| self.is_shared && *on != rail);
        outside.map(|(&(on, member), _)| (member, on)).filter(|_| !Mutant::HomeNotFenced.is_on())
    }

    /// Records that a bound queue pair is in ERR. It is stopping until [`HomeRail::unbind`].
    pub(crate) fn stop(&mut self, member: VqpId, rail: u8) {
        if let Some(qp) = self.bound.remove(&(rail, member)) {
            self.stopping.insert((rail, member), qp);
        }
    }

    /// The stopping queue pairs on other rails than `rail`. No vQP may be bound to `rail` before
    /// they are fenced.
    pub(crate) fn stopping_outside(&self, rail: u8) -> impl Iterator<Item = (VqpId, u8)> + '_ {
        let waits = self.is_shared && !Mutant::HomeMovesBeforeMarkers.is_on();
        let outside = self.stopping.keys().filter(move |&&(on, _)| waits && on != rail);
        outside.map(|&(on, member)| (member, on))
    }

    /// Makes the rail of `to` the home already while queue pairs on other rails are stopping, so
    /// that their vQPs follow. Requires that none is bound there.
    pub(crate) fn announce(&mut self, to: Home) {
        self.home = self.home.max(to);
    }

    /// A rail on which the vQP has a bound queue pair.
    pub(crate) fn next_of(&self, member: VqpId) -> Option<u8> {
        (0..MAX_RAILS as u8).find(|&rail| self.is_bound(member, rail))
    }

    /// Binds a queue pair on the rail of `to` and makes this rail the home, with at least the
    /// generation of `to`. Returns false and changes nothing if queue pairs on other rails are to
    /// be stopped ([`HomeRail::next_to_stop`]) or are stopping, or if this one is stopping.
    #[must_use]
    pub(crate) fn bind(&mut self, member: VqpId, to: Home, qp: Q) -> bool {
        if self.next_to_stop(to.rail).is_some()
            || self.stopping_outside(to.rail).next().is_some()
            || self.is_stopping(member, to.rail)
        {
            return false;
        }
        if !self.is_shared {
            // The vQP has fenced the rail that it leaves.
            (0..MAX_RAILS as u8).for_each(|left| self.unbind(member, left));
        }
        self.home = if to.rail == self.home.rail || to > self.home {
            to.max(self.home)
        } else {
            self.home.moved_to(to.rail)
        };
        self.bound.insert((to.rail, member), qp);
        true
    }

    /// Records that `qp` replaces the bound queue pair. Returns false and changes nothing if none
    /// is bound.
    #[must_use]
    pub(crate) fn replace(&mut self, member: VqpId, rail: u8, qp: Q) -> bool {
        self.bound.get_mut(&(rail, member)).map(|bound| *bound = qp).is_some()
    }

    /// Whether a move of the home has stopped queue pairs that may still execute a request.
    pub(crate) fn is_moving(&self) -> bool {
        self.is_shared && !self.stopping.is_empty()
    }

    /// The queue pair must execute nothing more.
    pub(crate) fn unbind(&mut self, member: VqpId, rail: u8) {
        self.bound.remove(&(rail, member));
        self.stopping.remove(&(rail, member));
    }

    /// The stopping queue pairs of a vQP must execute nothing more.
    pub(crate) fn unbind_stopped(&mut self, member: VqpId) {
        self.stopping.retain(|&(_, of), _| of != member);
    }

    /// Records a reset of the NIC, after which its queue pairs execute nothing more.
    pub(crate) fn unbind_all(&mut self, rail: u8) {
        self.bound.retain(|&(on, _), _| on != rail);
        self.stopping.retain(|&(on, _), _| on != rail);
    }

    /// Begins to share atomics. The home is the first rail that has a bound queue pair. The caller
    /// must fence the queue pairs on other rails.
    pub(crate) fn share(&mut self) {
        self.is_shared = true;
        let rail_of = |key: Option<&(u8, VqpId)>| key.map_or(0, |&(rail, _)| rail);
        let (first, last) = (rail_of(self.bound.keys().next()), rail_of(self.bound.keys().next_back()));
        let generation = self.home.generation.saturating_add(u64::from(first != last));
        self.home = Home { generation, rail: first };
    }
}

#[cfg(test)]
mod tests;
