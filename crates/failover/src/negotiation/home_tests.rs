//! Tests of vQPs whose atomics are shared at both ends, or at one end only.

use super::*;
use crate::control_message::Body;

const RAILS: usize = 3;
const PEER_TIMEOUT: Duration = Duration::from_secs(4);
const FIRST: Home = Home { generation: 0, rail: 0 };

fn home(generation: u64, rail: u8) -> Home {
    Home { generation, rail }
}

fn end(role: Role) -> RailNegotiation {
    let mut end = RailNegotiation::new(role, RAILS, Duration::from_millis(1), PEER_TIMEOUT);
    end.allow_replacing_active_qps();
    end
}

/// Returns an end whose domain has the home `own`. The vQP was bound on rail 0 before the home
/// moved.
fn end_at(role: Role, own: Home) -> RailNegotiation {
    let mut end = end(role);
    end.set_home(FIRST, true);
    end.set_home(own, false);
    end
}

fn actions(end: &mut RailNegotiation) -> Vec<Action> {
    core::iter::from_fn(|| end.poll_action()).collect()
}

fn sent(end: &mut RailNegotiation) -> Message {
    let mut sent = actions(end).into_iter().filter_map(|action| match action {
        Action::Send(message) => Some(message),
        _ => None,
    });
    sent.next_back().expect("a message")
}

/// The proposed rail, and the home that the proposal names.
fn proposal(message: &Message) -> (u8, Option<Home>) {
    let Body::Propose { rail, home } = message.body else { panic!("no proposal: {message:?}") };
    (rail, home)
}

#[test]
fn failure_at_home_proposes_the_next_generation_on_another_rail() {
    let mut a = end(Role::Zero);
    a.set_home(FIRST, true);
    a.rail_failed(Time::ZERO, 0, RailFailure::QpFailed);
    assert_eq!(proposal(&sent(&mut a)), (1, Some(FIRST)));
    assert_eq!(a.home_of_move(), Some(home(1, 1)));
}

#[test]
fn fenced_vqp_proposes_the_home_as_it_is() {
    let mut a = end_at(Role::Zero, home(3, 2));
    a.rail_failed(Time::ZERO, 0, RailFailure::QpFailed);
    assert_eq!(proposal(&sent(&mut a)), (2, Some(home(3, 2))));
    assert_eq!(a.home_of_move(), Some(home(3, 2)));
}

/// The home has left the rail of the vQP and is back. The queue pair of the vQP was fenced, but the
/// rail works.
#[test]
fn home_that_is_back_is_not_moved_again() {
    let mut a = end_at(Role::Zero, home(2, 0));
    a.rail_failed(Time::ZERO, 0, RailFailure::QpFailed);
    assert_eq!(proposal(&sent(&mut a)), (0, Some(home(2, 0))));
    assert_eq!(a.home_of_move(), Some(home(2, 0)));
}

/// The homes of the two ends are of one generation. Each end proposes its own home, and both ends
/// move to the higher rail.
// Hazard: two processes choose different homes
#[test]
fn newer_home_wins_at_both_ends() {
    let (mut a, mut b) = (end_at(Role::Zero, home(1, 1)), end_at(Role::One, home(1, 2)));
    a.rail_failed(Time::ZERO, 0, RailFailure::QpFailed);
    let outdated = sent(&mut a);
    assert_eq!(proposal(&outdated), (1, Some(home(1, 1))));
    b.handle(Time::ZERO, outdated);
    let refusal = sent(&mut b);
    assert!(matches!(refusal.body, Body::Refuse { home: Some(own), .. } if own == home(1, 2)), "{refusal:?}");
    a.handle(Time::ZERO, refusal);
    let second = sent(&mut a);
    assert_eq!(proposal(&second), (2, Some(home(1, 2))));
    b.handle(Time::ZERO, second);
    assert_eq!([a.home_of_move(), b.home_of_move()], [Some(home(1, 2)); 2]);
}

/// A peer that knows of no home may propose to leave the home rail, because its queue pair failed.
#[test]
fn vqp_at_home_accepts_what_a_peer_proposes_that_knows_of_no_home() {
    let (mut client, mut server) = (end(Role::Zero), end(Role::One));
    server.set_home(home(5, 0), true);
    client.rail_failed(Time::ZERO, 0, RailFailure::QpFailed);
    let proposed = sent(&mut client);
    assert_eq!(proposal(&proposed), (1, None));
    server.handle(Time::ZERO, proposed);
    let accepted = sent(&mut server);
    assert_eq!(proposal(&accepted), (1, Some(home(6, 1))));
    client.handle(Time::ZERO, accepted);
    assert_eq!(client.home_of_move(), Some(home(6, 1)));
}

/// The home of this end is down, so the end accepts another rail from a peer that does not know the
/// home.
#[test]
fn home_that_is_down_is_left() {
    let mut a = end_at(Role::Zero, home(3, 2));
    a.rail_failed(Time::ZERO, 2, RailFailure::LinkDown);
    let ballot = Ballot::FIRST.next(Role::One).expect("an epoch is left");
    a.handle(Time::ZERO, Message { ballot, body: Body::Propose { rail: 1, home: Some(FIRST) } });
    assert_eq!(a.home_of_move(), Some(home(4, 1)));
}

#[test]
fn vqp_does_not_wait_for_a_home_that_is_down() {
    let mut a = end_at(Role::Zero, home(1, 1));
    a.rail_failed(Time::ZERO, 1, RailFailure::LinkDown);
    a.rail_failed(Time::ZERO, 0, RailFailure::QpFailed);
    assert_eq!(proposal(&sent(&mut a)), (2, Some(home(1, 1))));
}

/// Other vQPs may be able to use a home that the peer of this one refuses. The home stays for four
/// retry intervals, so that they can.
#[test]
fn home_that_the_peer_refuses_stays_for_a_short_time() {
    let mut a = end_at(Role::Zero, home(1, 1));
    a.rail_failed(Time::ZERO, 0, RailFailure::QpFailed);
    let Message { ballot, .. } = sent(&mut a);
    // The proposal is sent again, and so is the refusal.
    let mut refuse = |ms| {
        let (now, body) = (
            Time::ZERO + Duration::from_millis(ms),
            Body::Refuse { unusable: 1 << 1, promised_epoch: 2, home: None },
        );
        a.handle_timeout(now);
        a.handle(now, Message { ballot, body });
        actions(&mut a)
    };
    let leaves =
        |action: &Action| matches!(action, Action::Send(Message { body: Body::Propose { rail: 2, .. }, .. }));
    for ms in 0..4 {
        assert!(!refuse(ms).iter().any(leaves), "the home leaves after {ms} ms");
    }
    assert!(refuse(4).iter().any(leaves), "the home stays");
}

/// The peer's home is newer than this end knew. This end binds its queue pair to that home and
/// names it in its evidence.
#[test]
fn evidence_names_the_home_that_the_peer_has_accepted() {
    let mut a = end(Role::Zero);
    a.set_home(FIRST, true);
    a.rail_failed(Time::ZERO, 0, RailFailure::QpFailed);
    let Message { ballot, .. } = sent(&mut a);
    a.handle(Time::ZERO, Message { ballot, body: Body::Propose { rail: 1, home: Some(home(5, 1)) } });
    a.fenced(Time::ZERO, Evidence::default());
    let Body::Evidence { rail, home: named, .. } = sent(&mut a).body else { panic!("no evidence") };
    assert_eq!((rail, named), (1, Some(home(5, 1))));
}

/// Returns the ballot, and an end that has accepted rail 1, has fenced and has the peer's evidence.
fn accepted_and_ready() -> (RailNegotiation, Ballot) {
    let mut a = end(Role::Zero);
    a.set_home(FIRST, true);
    let ballot = Ballot::FIRST.next(Role::One).expect("an epoch is left");
    a.handle(Time::ZERO, Message { ballot, body: Body::Propose { rail: 1, home: Some(FIRST) } });
    a.fenced(Time::ZERO, Evidence::default());
    let evidence = Evidence::default();
    let body = Body::Evidence { rail: 1, home: Some(home(1, 1)), evidence };
    a.handle(Time::ZERO, Message { ballot, body });
    (a, ballot)
}

/// The home moves on before the evidence is sent. The decision of the old ballot is then void,
/// because the peer must decide by the new ballot.
#[test]
fn decision_of_a_superseded_ballot_is_not_requested() {
    let (mut a, ballot) = accepted_and_ready();
    assert!(matches!(a.actions.last(), Some(Action::Decide { rail: 1, .. })));
    a.home_is_newer(Time::ZERO, home(2, 2));
    let actions = actions(&mut a);
    assert!(!actions.iter().any(|action| matches!(action, Action::Decide { .. })), "{actions:?}");
    let Some(Action::Send(message)) = actions.last() else { panic!("no message: {actions:?}") };
    assert!(message.ballot > ballot && matches!(message.body, Body::Evidence { rail: 2, .. }), "{message:?}");
}

/// The peer declines this end's ballot and then proposes its own. This end reads both messages
/// before it sends anything. Evidence for any ballot but the peer's must not be sent, because it
/// would move the home to the rail of that ballot.
#[test]
fn evidence_for_a_superseded_ballot_is_not_sent() {
    let mut a = end(Role::Zero);
    a.set_home(FIRST, true);
    a.rail_failed(Time::ZERO, 0, RailFailure::QpFailed);
    let declined = sent(&mut a).ballot;
    a.fenced(Time::ZERO, Evidence::default());
    drop(actions(&mut a));
    let body = Body::Refuse { unusable: 1 << 1, promised_epoch: declined.epoch, home: Some(home(1, 1)) };
    a.handle(Time::ZERO, Message { ballot: declined, body });
    let ballot = declined.next(Role::One).expect("an epoch is left");
    a.handle(Time::ZERO, Message { ballot, body: Body::Propose { rail: 1, home: Some(home(1, 1)) } });
    let evidence = actions(&mut a).into_iter().filter_map(|action| match action {
        Action::Send(Message { ballot, body: Body::Evidence { rail, .. } }) => Some((ballot, rail)),
        _ => None,
    });
    assert_eq!(evidence.collect::<Vec<_>>(), [(ballot, 1)]);
}

/// The newer home cannot be used yet, and then the old home returns. The move continues with the
/// peer's next evidence.
#[test]
fn move_continues_if_the_home_comes_back() {
    let (mut a, ballot) = accepted_and_ready();
    a.rail_mut(2_u8).insert(RailState::PEER_QP_MISSING);
    a.home_is_newer(Time::ZERO, home(2, 2));
    assert_eq!(a.move_ballot(), Some(ballot));
    drop(actions(&mut a));
    let body = Body::Evidence { rail: 1, home: Some(home(1, 1)), evidence: Evidence::default() };
    a.handle(Time::ZERO, Message { ballot, body });
    assert!(matches!(actions(&mut a)[..], [Action::Decide { rail: 1, .. }]));
}

#[test]
fn home_that_stays_unusable_is_left_after_a_while() {
    let mut a = end_at(Role::Zero, home(1, 1));
    a.rail_mut(1_u8).insert(RailState::PEER_QP_MISSING);
    a.rail_failed(Time::ZERO, 0, RailFailure::QpFailed);
    assert_eq!(actions(&mut a), []);
    a.handle_timeout(Time::ZERO + PEER_TIMEOUT / 8);
    assert_eq!(actions(&mut a), []);
    a.handle_timeout(Time::ZERO + PEER_TIMEOUT / 4);
    assert_eq!(proposal(&sent(&mut a)), (2, Some(home(1, 1))));
    assert_eq!(a.home_of_move(), Some(home(2, 2)));
}

/// A peer names generation `u64::MAX`. This end adopts a much lower generation, so further moves
/// are possible.
#[test]
fn peer_cannot_use_up_the_generations() {
    let mut a = end(Role::Zero);
    a.set_home(FIRST, true);
    let ballot = Ballot::FIRST.next(Role::One).expect("an epoch is left");
    let named = Some(home(u64::MAX, 1));
    a.handle(Time::ZERO, Message { ballot, body: Body::Propose { rail: 1, home: named } });
    assert_eq!(a.home_of_move(), Some(home(1 << 32, 1)));
}

/// A client has followed the home to rail 1, where its queue pair fails later.
#[test]
fn client_leaves_the_home_to_which_it_has_moved() {
    let mut client = end(Role::Zero);
    let ballot = Ballot::FIRST.next(Role::One).expect("an epoch is left");
    let named = Some(home(6, 1));
    client.handle(Time::ZERO, Message { ballot, body: Body::Propose { rail: 1, home: named } });
    client.fenced(Time::ZERO, Evidence::default());
    let body = Body::Evidence { rail: 1, home: named, evidence: Evidence::default() };
    client.handle(Time::ZERO, Message { ballot, body });
    client.moved(Time::ZERO, 0);
    let body = Body::Resume { has_peer_resume: true, partial_imm_bytes: 0 };
    client.handle(Time::ZERO, Message { ballot, body });
    drop(actions(&mut client));
    client.rail_failed(Time::ZERO, 1, RailFailure::QpFailed);
    assert_eq!(proposal(&sent(&mut client)), (2, named));
    assert_eq!(client.home_of_move(), Some(home(7, 2)));
}

/// After the wait, the vQP proposes another rail, which all peers may be able to use.
#[test]
fn home_is_awaited_for_a_part_of_the_peer_timeout_while_it_may_be_usable() {
    let timeout = Duration::from_secs(1);
    let home = Home { generation: 1, rail: 1 };
    let new = || {
        let mut end = RailNegotiation::new(Role::Zero, 3, Duration::from_millis(1), timeout);
        end.set_home(home, false);
        end
    };
    let at = |time: Duration| Time::ZERO + time;
    let mut end = new();
    assert_eq!(end.awaited_home(at(timeout)), Some(1), "it waits for nothing");
    end.rail_failed(Time::ZERO, 0, RailFailure::QpFailed);
    assert_eq!((end.is_active(), end.destination()), (false, 1));
    assert_eq!(end.awaited_home(at(timeout / 5)), Some(1));
    assert_eq!(end.awaited_home(at(timeout / 4)), None);
    for state in [RailState::DOWN, RailState::REFUSED, RailState::DOWN | RailState::REFUSED] {
        let mut end = new();
        end.rail_mut(1_u8).insert(state);
        assert_eq!(end.awaited_home(Time::ZERO), None);
    }
}

#[test]
fn move_is_declined_only_if_the_peer_does_not_know_the_home() {
    let home = |generation| Home { generation, rail: 1 };
    let mut end = RailNegotiation::new(Role::Zero, 3, Duration::from_millis(1), Duration::from_secs(1));
    assert!(!end.has_newer_home(2, None), "this end shares no atomics");
    end.set_home(home(2), false);
    assert!(end.has_newer_home(2, None) && end.has_newer_home(2, Some(home(1))));
    assert!(!end.has_newer_home(2, Some(home(2))), "the peer knows it");
    assert!(!end.has_newer_home(1, None), "the move leads there");
    end.rail_failed(Time::ZERO, 1, RailFailure::LinkDown);
    assert!(!end.has_newer_home(2, None), "it is down");
}

/// Other vQPs still use the old home when this end's fence is done and the peer's evidence arrives.
#[test]
fn step_that_waited_for_the_home_is_repeated() {
    let (mut a, mut b) = (end(Role::Zero), end(Role::One));
    a.set_home(FIRST, true);
    a.rail_failed(Time::ZERO, 0, RailFailure::QpFailed);
    b.handle(Time::ZERO, sent(&mut a));
    a.handle(Time::ZERO, sent(&mut b));
    a.home_may_be_free();
    assert_eq!(actions(&mut a), [], "there is no evidence yet");
    b.fenced(Time::ZERO, Evidence::default());
    a.handle(Time::ZERO, sent(&mut b));
    a.fenced(Time::ZERO, Evidence::default());
    let steps = actions(&mut a);
    assert!(matches!(steps[..], [Action::Send(_), Action::Decide { rail: 1, .. }]), "{steps:?}");
    for _ in 0..2 {
        a.home_may_be_free();
        assert_eq!(actions(&mut a), steps);
    }
    a.moved(Time::ZERO, 0);
    actions(&mut a);
    a.home_may_be_free();
    assert_eq!(actions(&mut a), [], "the vQP has moved");
}
