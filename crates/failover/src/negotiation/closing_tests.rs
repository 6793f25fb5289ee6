//! The Closed messages of an end that does not know to which rail its peer is bound.

use mitra_verbs::Psn;

use super::*;
use crate::control_message::Body;

const PEER_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(1);
const NEW: u8 = 1;

fn evidence(n: u32) -> Evidence {
    Evidence { psn: Some(Psn::new(n)), ..Evidence::default() }
}

/// The PSNs in the evidence of end 1, which closes.
const OF_FENCE: u32 = 10;
const OF_NEW_RAIL: u32 = 20;

fn sent(end: &mut RailNegotiation) -> Vec<Message> {
    let actions = core::iter::from_fn(|| end.poll_action());
    actions
        .filter_map(|action| if let Action::Send(message) = action { Some(message) } else { None })
        .collect()
}

fn closing(end: &mut RailNegotiation) -> Option<(CloseReason, Option<Evidence>)> {
    core::iter::from_fn(|| end.poll_action()).find_map(|action| match action {
        Action::Close { reason, peer_evidence } => Some((reason, peer_evidence)),
        _ => None,
    })
}

/// End 0 has left rail 0 and waits for the evidence of end 1, which sends it and then closes.
struct HalfMoved {
    end: RailNegotiation,
    /// Has been delayed.
    evidence: Message,
    /// For an end that is still bound to rail 0.
    closed_old: Message,
    /// For an end that has moved.
    closed_new: Message,
}

fn half_moved() -> HalfMoved {
    let [mut end, mut peer] =
        [Role::Zero, Role::One].map(|role| RailNegotiation::new(role, 2, RETRY, PEER_TIMEOUT));
    end.rail_failed(Time::ZERO, 0, RailFailure::QpFailed);
    end.fenced(Time::ZERO, evidence(1));
    sent(&mut end).into_iter().for_each(|message| peer.handle(Time::ZERO, message));
    assert!(closing(&mut peer).is_none());
    peer.fenced(Time::ZERO, evidence(OF_FENCE));
    let delayed = sent(&mut peer).pop().expect("the peer sends its evidence");
    assert!(matches!(delayed.body, Body::Evidence { rail: NEW, .. }));
    peer.close(CloseReason::Closed);
    peer.closed(Some(evidence(OF_NEW_RAIL)));
    let closed: [Message; 2] = sent(&mut peer).try_into().expect("one message for each binding");
    let [closed_old, closed_new] = closed;
    assert_eq!((closed_old.ballot, closed_new.ballot), (Ballot::FIRST, delayed.ballot));
    HalfMoved { end, evidence: delayed, closed_old, closed_new }
}

#[test]
fn end_waits_for_the_closed_message_of_its_own_binding() {
    let HalfMoved { mut end, closed_old, closed_new, .. } = half_moved();
    end.handle(Time::ZERO, closed_new.clone());
    assert_eq!(closing(&mut end), None);
    end.handle(Time::ZERO, closed_new);
    assert_eq!(closing(&mut end), None, "it may arrive twice");
    end.handle(Time::ZERO, closed_old);
    assert_eq!(closing(&mut end), Some((CloseReason::PeerClosed, Some(evidence(OF_FENCE)))));
}

/// The message for the end's own binding is lost, and the closed end still answers. An end that
/// knows nothing of the move asks as well.
#[test]
fn end_asks_for_the_closed_message_of_its_own_binding() {
    let HalfMoved { mut end, closed_new, .. } = half_moved();
    let mut idle = RailNegotiation::new(Role::Zero, 2, RETRY, PEER_TIMEOUT);
    for end in [&mut end, &mut idle] {
        let _ = sent(end);
        end.handle(Time::ZERO, closed_new.clone());
        for _ in 0..3 {
            let now = end.poll_timeout().expect("it waits");
            assert!(now <= Time::ZERO + RETRY * 4);
            end.handle_timeout(now);
            assert_ne!(sent(end), [], "a closed end answers each message");
        }
    }
}

/// The evidence of the peer's fence arrives, so the end moves to the new binding.
#[test]
fn end_that_moves_after_the_closed_message_decides_by_it() {
    let HalfMoved { mut end, evidence: delayed, closed_new, .. } = half_moved();
    end.handle(Time::ZERO, closed_new);
    let _ = sent(&mut end);
    end.handle(Time::ZERO, delayed);
    assert!(matches!(end.poll_action(), Some(Action::Decide { rail: NEW, .. })));
    end.moved(Time::ZERO, 0);
    let mut actions: Vec<_> = core::iter::from_fn(|| end.poll_action()).collect();
    let peer_evidence = Some(evidence(OF_NEW_RAIL));
    assert_eq!(actions.pop(), Some(Action::Close { reason: CloseReason::PeerClosed, peer_evidence }));
    assert!(actions.contains(&Action::PeerMoved { partial_imm_bytes: 0 }), "no Resume will arrive");
}

/// The message for the end's own binding never arrives, because the closed end is gone.
#[test]
fn end_waits_no_longer_than_the_peer_timeout() {
    let HalfMoved { mut end, closed_new, .. } = half_moved();
    end.handle(Time::ZERO, closed_new);
    let mut closed = None;
    while closed.is_none() {
        let now = end.poll_timeout().expect("it waits");
        assert!(now <= Time::ZERO + PEER_TIMEOUT + RETRY);
        end.handle_timeout(now);
        closed = closing(&mut end);
    }
    assert_eq!(closed, Some((CloseReason::PeerClosed, None)), "the peer is known to have closed");
}

/// The detectors of the waiting end report the peer as gone, but the peer has closed.
#[test]
fn silence_of_a_closed_peer_is_its_close() {
    for reason in [CloseReason::PeerUnreachable, CloseReason::PeerExited, CloseReason::NoRail] {
        let HalfMoved { mut end, closed_new, .. } = half_moved();
        end.handle(Time::ZERO, closed_new);
        end.close(reason);
        assert_eq!(closing(&mut end), Some((CloseReason::PeerClosed, None)));
    }
    let HalfMoved { mut end, closed_new, .. } = half_moved();
    end.handle(Time::ZERO, closed_new);
    end.close(CloseReason::Closed);
    assert_eq!(closing(&mut end), Some((CloseReason::Closed, None)));
}

/// The baseline policies and unreliable connections decide nothing by evidence.
#[test]
fn end_that_needs_no_evidence_closes_by_any_message() {
    for idle in [false, true] {
        let HalfMoved { mut end, closed_new, .. } = half_moved();
        if idle {
            end = RailNegotiation::new(Role::Zero, 2, RETRY, PEER_TIMEOUT);
        }
        end.close_without_evidence();
        end.handle(Time::ZERO, closed_new);
        assert_eq!(closing(&mut end), Some((CloseReason::PeerClosed, None)));
        assert_eq!(end.poll_timeout(), None, "nothing is asked");
    }
}
