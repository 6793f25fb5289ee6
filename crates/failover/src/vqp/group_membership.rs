use std::sync::Arc;

use mitra_verbs::Time;

use crate::data_qp::Membership;
use crate::domain::Domain;
use crate::group_member::Member;
use crate::shared_cqs::SharedCqs;

/// The membership of a vQP in the poll group of its domain.
#[derive(Debug)]
pub(super) struct GroupMembership {
    pub(super) member: Arc<Member>,
    /// By rail.
    cqs: Vec<Arc<SharedCqs>>,
    /// The active rail after the last poll.
    active_rail: usize,
    /// The time of the next maintenance, as of the last one.
    pub(super) due: Option<Time>,
}

impl GroupMembership {
    /// Joins the group of a vQP whose active rail is rail 0.
    pub(super) fn new(domain: &Domain, member: Member) -> GroupMembership {
        let cqs: Vec<_> = (0..domain.nics().len()).map(|rail| Arc::clone(domain.shared_cqs(rail))).collect();
        cqs[0].add_active();
        GroupMembership { member: Arc::new(member), cqs, active_rail: 0, due: None }
    }

    pub(super) fn on_rail(&self, rail: usize) -> Membership<'_> {
        Some((&self.cqs[rail], &self.member))
    }

    /// Has polls of the group include the active rail. After a change, the next poll of the vQP
    /// takes the completions that were found on the rail before.
    pub(super) fn set_active_rail(&mut self, rail: usize) {
        if rail != self.active_rail {
            self.cqs[rail].add_active();
            self.cqs[self.active_rail].remove_active();
            self.active_rail = rail;
            self.member.request_maintenance();
        }
    }
}

impl Drop for GroupMembership {
    fn drop(&mut self) {
        self.cqs[self.active_rail].remove_active();
    }
}
