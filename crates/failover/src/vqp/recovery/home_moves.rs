//! The moves that keep all vQPs of a domain on the home rail, if they share atomics.

use mitra_verbs::WcStatus;

use super::Recovery;
use crate::ballot::Ballot;
use crate::control_message::{Body, Message};
use crate::negotiation::RailNegotiation;
use crate::vqp::Cause;
use crate::vqp::datapath::Datapath;

impl Recovery {
    /// Moves the vQP to the home rail, if another vQP has moved the home and has fenced this vQP's queue pair.
    pub(in crate::vqp) fn follow_home(&mut self, dp: &mut Datapath) {
        let active = self.active_rail();
        let Some(view) = dp.view_home(active) else { return };
        let Some(control) = &mut self.control else { return };
        control.negotiation_mut().set_home(view.home);
        if self.is_active() && !self.is_stranded() && !view.is_bound {
            self.rail_failed(dp, active, Cause::Completion(WcStatus::Flushed));
        }
    }

    /// Returns the message to send instead of `message`, or `None` if the home cannot move. Evidence allows the peer to post on the new
    /// rail, so the home moves there before. It does not move for a rail that the peer has not accepted: this end proposes the rail first.
    pub(super) fn with_home_moved(&mut self, dp: &mut Datapath, message: Message) -> Option<Message> {
        let Body::Evidence { rail, .. } = message.body else { return Some(message) };
        let has_accepted = self.negotiation().is_some_and(RailNegotiation::has_peer_accepted);
        if !has_accepted && !dp.is_at_home(message.ballot, usize::from(rail)) {
            return Some(Message { body: Body::Propose { rail }, ..message });
        }
        self.move_home(dp, message.ballot, usize::from(rail)).then_some(message)
    }

    /// Moves the home to the new rail of a ballot. If the NIC of the old home can be neither fenced nor reset, closes the vQP and returns
    /// false.
    pub(super) fn move_home(&mut self, dp: &mut Datapath, ballot: Ballot, rail: usize) -> bool {
        let has_moved = dp.bind_home(ballot, rail);
        if !has_moved && let Some(control) = &mut self.control {
            control.negotiation_mut().fence_failed();
        }
        has_moved
    }
}
