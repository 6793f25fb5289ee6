//! In mode `durable`, each end tells the other which operations of the other have reached its
//! memory, as its own processor sees it. An end whose operations wait asks for this. Without
//! heartbeats, an end also asks while a message waits for a receive of the peer, or a receive waits
//! for the peer's confirmation of the last move. An answer shows that the peer's program runs.

use core::time::Duration;

use mitra_mutants::Mutant;
use mitra_verbs::Time;

use crate::ballot::Ballot;
use crate::close_reason::CloseReason;
use crate::control_message::{Body, Message};
use crate::evidence::Placed;
use crate::vqp::datapath::Datapath;
use crate::vqp::recovery::Recovery;

/// The peer counts as unreachable only after this many unanswered questions, even if the peer
/// timeout is over. An end that runs seldom has asked few questions by then.
const MIN_QUESTIONS: u32 = 8;

/// The exchange of [`Placed`]. An end sends its `Placed` when the value changes and when the peer
/// asks. An end whose operations wait repeats its question, because a message may be lost.
///
/// No retry shows that the peer is gone: the rail has acknowledged the operations, or answers with
/// RNR NAKs. A NIC may send RNR NAKs after its program has stopped, or when the NIC hangs. Without
/// heartbeats, a peer that answers no question for the peer timeout is therefore unreachable. A
/// peer that answers stays reachable, even if it never posts a receive for a message.
#[derive(Debug, Default)]
pub(super) struct Durability {
    sent: Option<(Ballot, Placed)>,
    is_asked: bool,
    /// The time of the next question. `None` if nothing waits.
    pub(super) ask_at: Option<Time>,
    /// The sequence number of the oldest operation, if a message waited for a receive at the last
    /// run. A change shows that operations have ended since then.
    awaited_receive: Option<u64>,
    /// The time of the first unanswered question, and the number of unanswered questions. `None` if
    /// nothing waits, or a move is in progress.
    unanswered: Option<(Time, u32)>,
}

impl Durability {
    pub(super) fn on_message(&mut self, message: &Message, recovery: &Recovery, dp: &mut Datapath) {
        match message.body {
            Body::AskPlaced => self.is_asked = true,
            // A `Placed` message of another epoch counts the operations of that epoch, so it is
            // ignored.
            Body::Placed(placed)
                if recovery.ballot(dp) == Some(message.ballot)
                    || Mutant::PlacedOfEarlierEpochTaken.is_on() =>
            {
                self.unanswered = None;
                dp.confirm_sends(placed);
            }
            _ => {}
        }
    }

    pub(super) fn run(&mut self, now: Time, recovery: &mut Recovery, dp: &mut Datapath) {
        let config = *dp.config();
        let Some(ballot) = recovery.ballot(dp) else { return };
        let placed = dp.placed(recovery.active_rail(), ballot.epoch);
        let tells = placed.is_some_and(|placed| {
            let is_new = self.sent.replace((ballot, placed)) != Some((ballot, placed));
            is_new && placed != Placed::default()
        });
        if tells || core::mem::take(&mut self.is_asked) {
            let body = Body::Placed(placed.unwrap_or_default());
            recovery.broadcast(dp, &Message { ballot, body });
        }
        match self.question_interval(recovery, dp) {
            None => self.ask_at = None,
            Some((interval, true)) => {
                (self.ask_at, self.unanswered) = (Some(now + interval), None);
            }
            Some((interval, false)) if self.ask_at.is_none_or(|at| at <= now) => {
                if self.ask_at.is_some() {
                    recovery.broadcast(dp, &Message { ballot, body: Body::AskPlaced });
                    let (since, questions) = self.unanswered.unwrap_or((now, 0));
                    self.unanswered = Some((since, questions + 1));
                }
                self.ask_at = Some(now + interval);
            }
            Some(_) => {}
        }
        if self.ask_at.is_none() || !recovery.is_active() {
            self.unanswered = None;
        }
        let is_overdue = |(since, questions)| {
            questions >= MIN_QUESTIONS && now.saturating_since(since) >= config.peer_timeout
        };
        if !dp.has_heartbeats() && self.unanswered.is_some_and(is_overdue) {
            recovery.close(dp, CloseReason::PeerUnreachable);
        }
    }

    /// Returns the time between two questions, if an operation or a held receive waits for the
    /// peer. Also returns whether the oldest operation has changed since the last run.
    fn question_interval(&mut self, recovery: &Recovery, dp: &Datapath) -> Option<(Duration, bool)> {
        let (ledger, config) = (&dp.send.ledger, dp.config());
        if ledger.awaits_placement() {
            return Some((config.control_retry_interval, false));
        }
        let awaited = ledger.awaited_receive().filter(|_| !dp.has_heartbeats());
        let is_new = core::mem::replace(&mut self.awaited_receive, awaited) != awaited;
        // A receive is held until the peer confirms the move. While the links of this end are down,
        // no question reaches the peer, and the receive waits for a link.
        let holds_receive = !dp.has_heartbeats() && dp.recv.held() > 0 && !recovery.is_stranded();
        (awaited.is_some() || holds_receive).then_some((config.peer_timeout / MIN_QUESTIONS, is_new))
    }
}
