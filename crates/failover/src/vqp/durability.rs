//! Mode `durable`: an end tells its peer which of the peer's operations its processor has seen in memory, and asks the peer for the same.

use mitra_verbs::Time;

use crate::ballot::Ballot;
use crate::control_message::{Body, Message};
use crate::evidence::Placed;
use crate::vqp::datapath::Datapath;
use crate::vqp::recovery::Recovery;

/// The exchange of [`Placed`]. An end sends it when it changes, and when the peer asks. A message may be lost, so an end whose operations
/// wait asks again.
#[derive(Debug, Default)]
pub(super) struct Durability {
    /// The last [`Placed`] that this end sent.
    sent: Option<(Ballot, Placed)>,
    /// Whether the peer has asked.
    is_asked: bool,
    /// The time at which this end asks the peer. `None` if no operation waits.
    ask_at: Option<Time>,
}

impl Durability {
    /// Handles a message of the peer that is one of this exchange.
    pub(super) fn on_message(&mut self, message: &Message, recovery: &Recovery, dp: &mut Datapath) {
        match message.body {
            Body::AskPlaced => self.is_asked = true,
            // A message about another epoch counts other operations.
            Body::Placed(placed) if recovery.ballot() == Some(message.ballot) => dp.confirm_sends(placed),
            _ => {}
        }
    }

    /// Sends what is due.
    pub(super) fn run(&mut self, now: Time, recovery: &Recovery, dp: &Datapath) {
        let config = dp.config();
        let Some(ballot) = recovery.ballot().filter(|_| config.durable) else { return };
        if let Some(placed) = dp.placed(recovery.active_rail(), ballot.epoch) {
            let is_new = self.sent.replace((ballot, placed)) != Some((ballot, placed));
            if is_new && placed != Placed::default() || core::mem::take(&mut self.is_asked) {
                recovery.broadcast(dp, &Message { ballot, body: Body::Placed(placed) });
            }
        }
        if !dp.send().ledger().awaits_placement() {
            self.ask_at = None;
        } else if self.ask_at.is_none_or(|at| at <= now) {
            if self.ask_at.is_some() {
                recovery.broadcast(dp, &Message { ballot, body: Body::AskPlaced });
            }
            self.ask_at = Some(now + config.control_retry_interval);
        }
    }

    /// The time at which [`Durability::run`] is due.
    pub(super) fn timeout(&self) -> Option<Time> {
        self.ask_at
    }
}
