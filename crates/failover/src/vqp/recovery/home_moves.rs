//! The moves that keep the vQPs of a domain on the home rail, if the domain shares atomics.

use mitra_verbs::{Result, WcStatus};

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
    /// Moves the vQP to the home rail after another vQP has moved the home and has stopped this
    /// vQP's queue pair, and fences that queue pair.
    pub(in crate::vqp) fn follow_home(&mut self, dp: &mut Datapath) {
        let Some(view) = self.read_home(dp) else { return };
        // A move in progress may have left the fence to the answer of the peer.
        let is_unfenced = view.is_stopping && self.fence.is_idle();
        if (is_unfenced || self.is_active() && !view.is_bound) && !self.is_stranded() {
            self.rail_failed(dp, self.active_rail(), Cause::Completion(WcStatus::Flushed));
        }
        if dp.termination.is_closed() {
            return;
        }
        if view.is_stopping {
            self.fence_for_home(dp);
        }
        self.fence_standby(dp);
    }

    /// Fences the stopped queue pair of the active rail, also before a move, which may have to wait
    /// for the peer.
    fn fence_for_home(&mut self, dp: &mut Datapath) {
        let rail = self.active_rail();
        if self.is_qp_missing(rail) {
            dp.home.on_fenced(&dp.domain, rail); // the vQP fenced it before its last move, and replaces it
        } else if self.fence.is_idle() {
            self.is_fence_early = true;
            let step = self.fence.start(dp.rails.get(rail).data(), dp.now(), [true; 2]);
            self.on_fence_step(dp, step);
        }
    }

    /// Fences the queue pair on the rail of the move in progress, if the home has left this rail.
    fn fence_standby(&mut self, dp: &mut Datapath) {
        let is_stopping = |rail: &usize| dp.home.view(&dp.domain, *rail).is_some_and(|view| view.is_stopping);
        let bound = dp.home.bound_rail().filter(|&rail| rail != self.active_rail());
        match bound.filter(is_stopping) {
            None => self.standby_fence.end(),
            Some(rail) => {
                if self.standby_fence.drive(rail, dp.rails.get(rail).data(), dp.now()) {
                    dp.home.on_fenced(&dp.domain, rail);
                }
            }
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

    /// Moves the home to the new rail of a ballot. Returns false in three cases:
    ///
    /// - Other vQPs have not fenced their queue pairs on the old home yet. This end then tries
    ///   again ([`Recovery::retry_home_move`]).
    /// - The domain's home is newer than `to`. This end then proposes the rail of the newer home.
    /// - The NIC of the old home can be neither fenced nor reset. The vQP then closes.
    pub(super) fn move_home(&mut self, dp: &mut Datapath, ballot: Ballot, to: Home) -> bool {
        let (now, rail) = (dp.now(), usize::from(to.rail));
        let is_fenced = rail == self.active_rail() && self.fence.is_done();
        // A queue pair on the same rail is kept if the home has not left this rail.
        let is_left = dp.home.view(&dp.domain, rail).is_some_and(|view| !view.is_bound);
        let is_unused = |on: usize| (on != rail || is_left) && self.has_unused_qp(on);
        let (moved, unused) = dp.home.bind(&dp.domain, &dp.rails, (ballot, to, is_fenced), is_unused, now);
        if let Some(unused) = unused {
            self.reconnect_unused_qp(dp, unused);
        }
        let Some(negotiation) = self.negotiation_mut() else { return false };
        match moved {
            HomeMove::Moved => return true,
            HomeMove::Pending => self.waits_for_home = true,
            HomeMove::Outdated(home) => negotiation.home_is_newer(now, home),
            HomeMove::Unfenced => negotiation.fence_failed(),
        }
        false
    }

    /// Tries the step again that waits until other vQPs have fenced their queue pairs.
    pub(super) fn retry_home_move(&mut self) {
        if core::mem::take(&mut self.waits_for_home)
            && let Some(negotiation) = self.negotiation_mut()
        {
            negotiation.home_may_be_free();
        }
    }

    /// Whether the queue pair of a standby rail is connected and has carried nothing.
    fn has_unused_qp(&self, rail: usize) -> bool {
        self.negotiation().is_some_and(|n| n.active() != rail && !n.is_local_qp_missing(rail))
    }

    /// Connects the queue pair of a standby rail again. The queue pair was bound for a ballot that
    /// has been superseded. It has carried nothing, and is in ERR if the vQPs share atomics.
    fn reconnect_unused_qp(&mut self, dp: &mut Datapath, rail: usize) {
        if dp.home.view(&dp.domain, rail).is_none() {
            return;
        }
        match self.reconnect_unused(dp, rail) {
            Ok(()) => dp.recv.on_flushed(rail),
            Err(_) => self.failures.push_back(Failure::Rail { rail, cause: Cause::Device }),
        }
    }

    /// Connects the queue pair of a rail again, which has carried nothing. A queue pair that
    /// another vQP has destroyed stays so: the first operation on this rail fails, and the vQP then
    /// replaces the queue pair.
    pub(in crate::vqp) fn reconnect_unused(&mut self, dp: &mut Datapath, rail: usize) -> Result<()> {
        self.standby_fence.forget(rail);
        match dp.rails.get(rail).reconnect_unused(dp.config()) {
            Err(_) if dp.rails.get(rail).data().is_ended() => {}
            Err(error) => return Err(error),
            Ok(()) => dp.on_qp_connected(rail),
        }
        Ok(())
    }
}
