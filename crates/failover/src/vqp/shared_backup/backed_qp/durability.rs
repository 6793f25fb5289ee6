//! Mode `durable`: an end tells its peer which of the peer's operations its processor has seen in memory. The backup delivers these messages exactly
//! once and in order, so nobody asks for them.

use super::super::message::Body;
use super::super::state::State;
use super::BackedQp;
use crate::evidence::Placed;

impl BackedQp {
    /// Tells the peer what this end's processor has seen of its operations on the own queue pair, if that has changed and the peer waits for it.
    pub(super) fn tell_placed(&mut self, state: &mut State) {
        if !self.config.durable {
            return;
        }
        let Some(own) = self.own.as_ref().filter(|own| own.is_connected && own.fence.is_idle()) else {
            return;
        };
        if own.qp().provider().attr().capabilities.ack_after_placement {
            return;
        }
        let log = self.log.as_ref().and_then(|log| log.last_seq(own.epoch));
        let (epoch, placed) = (own.epoch, Placed { log, received: self.recv.received_in_epoch() });
        let is_new = self.told.replace((epoch, placed)) != Some((epoch, placed));
        if is_new && placed != Placed::default() {
            state.tell(self.id, Body::Placed { epoch, placed });
        }
    }

    /// Tells the backup whether operations wait for the peer's confirmation, or for a receive.
    pub(super) fn note_waiting(&self, state: &mut State) {
        let ledger = self.send.ledger();
        let awaits_receive = !state.has_heartbeats() && ledger.awaited_receive().is_some();
        state.set_awaits_program(self.id, ledger.awaits_placement() || awaits_receive);
    }

    /// Completes the operations that the peer has confirmed. Those of an earlier queue pair are decided by the evidence.
    pub(super) fn on_placed(&mut self, epoch: u16, placed: Placed) {
        if self.own.as_ref().is_some_and(|own| own.epoch == epoch) {
            self.send.confirm(placed);
            self.send.take_completions(&mut self.ready);
        }
    }
}
