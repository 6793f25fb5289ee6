//! The outcomes when the vQP closes.

use mitra_verbs::{Data, Key, SendOp, SendWr, WcStatus};

use super::{ledger, outcomes, post_all, read, write};
use crate::close_reason::CloseReason;
use crate::completion::{Outcome, UnresolvedError};
use crate::config::{Service, WritePolicy};

const PEER_CLOSED: UnresolvedError = UnresolvedError::Undecided(CloseReason::PeerClosed);
const UNFENCED: UnresolvedError = UnresolvedError::Undecided(CloseReason::Unfenced);

/// No peer is left to receive the messages, which is no error of the sender.
#[test]
fn messages_to_an_unreliable_peer_that_has_closed_are_lost() {
    let flushed = Outcome::Failed(WcStatus::Flushed);
    for (service, error, in_flight, pending) in [
        (Service::Unreliable, PEER_CLOSED, Outcome::Success, Outcome::Success),
        (Service::Unreliable, UNFENCED, Outcome::Unresolved(UNFENCED), flushed),
        (Service::Reliable, PEER_CLOSED, Outcome::Unresolved(PEER_CLOSED), flushed),
    ] {
        let mut ledger = ledger().with_service(service);
        ledger.push(write(false, 8), WritePolicy::Strict);
        post_all(&mut ledger);
        ledger.push(write(false, 8), WritePolicy::Strict);
        ledger.push(read(), WritePolicy::Strict);
        ledger.abandon(error);
        assert_eq!(outcomes(&mut ledger)[..2], [in_flight, pending], "{service:?}, {error:?}");
    }
}

/// A NIC that could be neither fenced nor reset may still use the window of a local operation.
#[test]
fn local_operation_that_one_nic_executed_succeeds_if_all_queue_pairs_have_stopped() {
    for (error, expected) in [(PEER_CLOSED, Outcome::Success), (UNFENCED, Outcome::Unresolved(UNFENCED))] {
        let mut ledger = ledger();
        let invalidate = SendWr::new(9, SendOp::LocalInvalidate(Key(3)), Data::empty());
        ledger.push(invalidate, WritePolicy::Strict);
        post_all(&mut ledger);
        assert!(ledger.execute_locally(0).is_some());
        ledger.abandon(error);
        assert_eq!(outcomes(&mut ledger), [expected]);
    }
}
