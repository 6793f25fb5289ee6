//! The moves that keep the vQPs of a domain on the home rail, if the domain shares atomics.

use mitra_verbs::WcStatus;

use super::Recovery;
use crate::ballot::Ballot;
use crate::cause::Cause;
use crate::control_message::{Body, Message};
use crate::domain::{HomeMove, HomeView};
use crate::home_rail::Home;
use crate::negotiation::RailNegotiation;
use crate::vqp::datapath::Datapath;
use crate::vqp::failure::Failure;

impl Recovery {
    /// Moves the vQP to the home rail after another vQP has moved the home and has fenced this
    /// vQP's queue pair.
    pub(in crate::vqp) fn follow_home(&mut self, dp: &mut Datapath) {
        let Some(view) = self.read_home(dp) else { return };
        if self.is_active() && !self.is_stranded() && !view.is_bound {
            self.rail_failed(dp, self.active_rail(), Cause::Completion(WcStatus::Flushed));
        }
    }

    /// Tells the negotiation where the home is. `None` if the vQPs do not share atomics.
    pub(in crate::vqp) fn read_home(&mut self, dp: &Datapath) -> Option<HomeView> {
        let view = dp.home.view(&dp.domain, self.active_rail())?;
        self.negotiation_mut()?.set_home(view.home, view.is_bound);
        Some(view)
    }

    /// Returns the message to send instead of `message`, or `None` if the home cannot move.
    /// Evidence allows the peer to post on the new rail, so the home moves to the new rail first.
    /// If the peer has not accepted the new rail, the home does not move, and this end proposes the
    /// rail instead of sending the evidence.
    pub(super) fn with_home_moved(&mut self, dp: &mut Datapath, message: Message) -> Option<Message> {
        let Body::Evidence { rail, home, .. } = message.body else { return Some(message) };
        let has_accepted = self.negotiation().is_some_and(RailNegotiation::has_peer_accepted);
        if !has_accepted && !dp.home.is_at_home(&dp.domain, message.ballot, usize::from(rail)) {
            return Some(Message { body: Body::Propose { rail, home }, ..message });
        }
        let to = home.map_or(Home { rail, ..Home::default() }, |home| home.moved_to(rail));
        self.move_home(dp, message.ballot, to).then_some(message)
    }

    /// Moves the home to the new rail of a ballot. Returns false in two cases:
    ///
    /// - The domain's home is newer than `to`. This end then proposes the rail of the newer home.
    /// - The NIC of the old home can be neither fenced nor reset. The vQP then closes.
    pub(super) fn move_home(&mut self, dp: &mut Datapath, ballot: Ballot, to: Home) -> bool {
        let (moved, before) = dp.home.bind(&dp.domain, &dp.rails, ballot, to);
        if let Some(before) = before {
            self.reconnect_unused_qp(dp, before, to.rail.into());
        }
        let Some(negotiation) = self.negotiation_mut() else { return false };
        match moved {
            HomeMove::Moved => true,
            HomeMove::Outdated(home) => {
                negotiation.home_is_newer(dp.now(), home);
                false
            }
            HomeMove::Unfenced => {
                negotiation.fence_failed();
                false
            }
        }
    }

    /// Connects the queue pair of a standby rail again. The queue pair was bound for a ballot that
    /// has been superseded. It has carried nothing, and was fenced when the home left its rail.
    fn reconnect_unused_qp(&mut self, dp: &mut Datapath, rail: usize, new_rail: usize) {
        let negotiation = self.negotiation();
        let was_used = negotiation.is_none_or(|n| n.active() == rail || n.is_local_qp_missing(rail));
        if was_used || rail == new_rail || dp.home.view(&dp.domain, rail).is_none() {
            return;
        }
        match dp.rails.get(rail).reconnect_unused(dp.config()) {
            Ok(()) => {
                dp.recv.on_flushed(rail);
                dp.on_qp_connected(rail);
            }
            Err(_) => self.failures.push_back(Failure::Rail { rail, cause: Cause::Device }),
        }
    }
}
