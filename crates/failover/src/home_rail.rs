//! The home rail of atomics that several vQPs share, as a state machine without I/O.
//!
//! On most NICs an atomic is atomic only with respect to atomics of the same NIC ([`AtomicScope::Nic`](mitra_verbs::AtomicScope::Nic)). If
//! several vQPs use one word, at most one NIC of the responder may therefore execute their requests: that of the *home rail*. A queue pair of
//! the responder is *bound* from the time at which its peer may post requests to it until it is fenced. The rule is: all bound queue pairs are
//! on the home rail. So the first vQP that needs another rail fences the queue pairs of all vQPs, and the others follow it.

use std::collections::BTreeMap;

use mitra_verbs::Qpn;

/// A vQP of the domains that share their NICs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct MemberId(pub(crate) u64);

/// The home rail and the bound queue pairs.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct HomeRail {
    /// Whether the vQPs share atomics. Otherwise each vQP is bound to a rail of its own choice.
    is_shared: bool,
    home: u8,
    /// The bound queue pairs, by vQP and rail.
    bound: BTreeMap<(MemberId, u8), Qpn>,
}

impl HomeRail {
    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// The home rail.
    pub(crate) fn home(&self) -> u8 {
        self.home
    }

    /// Returns whether the queue pair of a vQP on `rail` is bound.
    pub(crate) fn is_bound(&self, member: MemberId, rail: u8) -> bool {
        self.bound.contains_key(&(member, rail))
    }

    /// Returns a bound queue pair that is not on `rail`, if the vQPs share atomics. It must be fenced, and [`HomeRail::unbind`] called, before any
    /// vQP is bound to `rail`.
    pub(crate) fn next_to_fence(&self, rail: u8) -> Option<(MemberId, u8, Qpn)> {
        let mut bound = self.bound.iter().map(|(&(member, on), &qpn)| (member, on, qpn));
        bound.find(|&(_, on, _)| self.is_shared && on != rail)
    }

    /// Returns a bound queue pair of this vQP.
    pub(crate) fn next_of(&self, member: MemberId) -> Option<(u8, Qpn)> {
        let mut own = self.bound.range((member, u8::MIN)..=(member, u8::MAX));
        own.next().map(|(&(_, rail), &qpn)| (rail, qpn))
    }

    /// Binds the queue pair of a vQP on `rail`, and makes `rail` the home. Returns false, and changes nothing, if a queue pair is bound to
    /// another rail and the vQPs share atomics.
    #[must_use]
    pub(crate) fn bind(&mut self, member: MemberId, rail: u8, qpn: Qpn) -> bool {
        if self.next_to_fence(rail).is_some() {
            return false;
        }
        if !self.is_shared {
            self.bound.retain(|&(other, _), _| other != member); // the vQP has fenced the rail that it leaves
        }
        self.home = rail;
        self.bound.insert((member, rail), qpn);
        true
    }

    /// Records that another queue pair replaces the bound one of a vQP on `rail`. Returns false, and changes nothing, if none is bound.
    #[must_use]
    pub(crate) fn replace(&mut self, member: MemberId, rail: u8, qpn: Qpn) -> bool {
        self.bound.get_mut(&(member, rail)).map(|bound| *bound = qpn).is_some()
    }

    /// Records that a queue pair executes nothing more.
    pub(crate) fn unbind(&mut self, member: MemberId, rail: u8) {
        self.bound.remove(&(member, rail));
    }

    /// Records that the NIC of `rail` was reset, so that its queue pairs execute nothing more.
    pub(crate) fn unbind_all(&mut self, rail: u8) {
        self.bound.retain(|&(_, on), _| on != rail);
    }

    /// Begins to share atomics, with the rail of the first bound queue pair as home. The caller fences the queue pairs on other rails.
    pub(crate) fn share(&mut self) {
        self.is_shared = true;
        self.home = self.bound.keys().next().map_or(self.home, |&(_, rail)| rail);
    }
}

#[cfg(test)]
mod tests;
