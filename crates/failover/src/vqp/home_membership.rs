//! The membership of a vQP in the home rail of its domain. If the domain shares atomics, all its
//! vQPs must use one rail, the home rail.

use mitra_mutants::Mutant;
use mitra_verbs::{Psn, Qpn, Result, Time};

use crate::ballot::Ballot;
use crate::domain::{Domain, HomeMove, HomeView};
use crate::home_rail::{Home, VqpId};
use crate::vqp::rail_set::RailSet;

#[derive(Debug)]
pub(super) struct HomeMembership {
    pub(super) id: VqpId,
    has_joined: bool,
    /// The last ballot for which the vQP bound its queue pair on a new rail, and this rail. When
    /// the evidence is sent again, the queue pair is not bound again, because the home may have
    /// moved and fenced the queue pair since then.
    bound_for: Option<(Ballot, u8)>,
}

impl HomeMembership {
    pub(super) fn new(id: VqpId) -> HomeMembership {
        HomeMembership { id, has_joined: false, bound_for: None }
    }

    /// See [`Domain::join_home`].
    pub(super) fn join(&mut self, domain: &Domain, rails: &RailSet) -> Result<()> {
        let joined = domain.join_home(self.id, rails.get(0).data().handle(), rails.config().requires_fence());
        self.has_joined = joined.is_ok();
        if joined.is_err() {
            rails.iter().for_each(|rail| drop(rail.modify_to_error())); // best effort: the caller gets the first error
        }
        joined
    }

    /// The rail on which the vQP last bound its queue pair for a move.
    pub(super) fn bound_rail(&self) -> Option<usize> {
        self.bound_for.map(|(_, rail)| rail.into())
    }

    /// The vQP has fenced its queue pair on `rail` ([`Domain::on_home_qp_fenced`]).
    pub(super) fn on_fenced(&self, domain: &Domain, rail: usize) {
        domain.on_home_qp_fenced(self.id, rail as u8);
    }

    /// See [`Domain::leave_home`].
    pub(super) fn leave(&mut self, domain: &Domain, rails: &RailSet, is_unfenced: bool) {
        if core::mem::take(&mut self.has_joined) {
            domain.leave_home(self.id, rails.config().requires_fence(), is_unfenced);
        }
    }

    /// Returns whether the evidence for this ballot may be sent at once, because the home need not
    /// move.
    pub(super) fn is_at_home(&self, domain: &Domain, ballot: Ballot, rail: usize) -> bool {
        self.is_bound_for(ballot)
            || self.view(domain, rail).is_none_or(|view| usize::from(view.home.rail) == rail)
    }

    fn is_bound_for(&self, ballot: Ballot) -> bool {
        self.bound_for.is_some_and(|(bound, _)| bound == ballot)
    }

    /// Binds the queue pair on the rail of `to`, before the peer can learn that this end has
    /// accepted the ballot. `is_fenced` says that the vQP has fenced this queue pair. Also returns
    /// the rail of the queue pair that was bound for an earlier ballot, if `is_unused` says that it
    /// has carried nothing. This queue pair must be connected again.
    pub(super) fn bind(
        &mut self,
        domain: &Domain,
        rails: &RailSet,
        (ballot, to, is_fenced): (Ballot, Home, bool),
        is_unused: impl FnOnce(usize) -> bool,
        now: Time,
    ) -> (HomeMove, Option<usize>) {
        let is_bound = self.is_bound_for(ballot) && !Mutant::EvidenceBindsAgain.is_on();
        if is_bound || !rails.config().requires_fence() {
            return (HomeMove::Moved, None);
        }
        let unused = self.bound_for.take_if(|(_, rail)| is_unused((*rail).into())).map(|(_, rail)| rail);
        let qp = (rails.get(to.rail.into()).data().handle(), is_fenced);
        let moved = domain.move_home(self.id, to, qp, unused, now);
        if moved == HomeMove::Moved {
            self.bound_for = Some((ballot, to.rail));
        }
        (moved, unused.map(usize::from))
    }

    /// Connects the new queue pair of a rail to the peer's queue pair. `is_active` says whether the
    /// rail is active. On the active rail, the peer may post at once, without a new ballot, so the
    /// new queue pair first takes the place of the one that is bound at the home.
    ///
    /// # Errors
    /// The errors of a NIC and of [`Domain::connect_replacement_at_home`].
    pub(super) fn connect_replacement(
        &self,
        domain: &Domain,
        rails: &mut RailSet,
        (rail, is_active): (usize, bool),
        (qpn, psn): (Qpn, Psn),
    ) -> Result<()> {
        let own = rails.get(rail).data().handle().clone();
        let mut connect = || rails.connect_replacement(rail, qpn, psn);
        if is_active {
            return domain.connect_replacement_at_home(self.id, rail as u8, &own, connect);
        }
        connect()
    }

    /// See [`Domain::view_home`].
    pub(super) fn view(&self, domain: &Domain, rail: usize) -> Option<HomeView> {
        domain.view_home(self.id, rail as u8)
    }
}
