//! Tests of the moves that follow failures of rails at one end.

use super::*;

const PEER_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(1);
/// Long enough that no pause delays the next move.
const CALM: Duration = Duration::from_secs(10);

fn ends(rails: usize) -> [RailNegotiation; 2] {
    [Role::Zero, Role::One].map(|role| RailNegotiation::new(role, rails, RETRY, PEER_TIMEOUT))
}

fn actions(end: &mut RailNegotiation) -> Vec<Action> {
    core::iter::from_fn(|| end.poll_action()).collect()
}

fn fences(end: &mut RailNegotiation) -> bool {
    actions(end).iter().any(|action| matches!(action, Action::Fence { .. }))
}

/// Runs both drivers and the network until nothing is left to do.
fn settle(now: Time, ends: &mut [RailNegotiation; 2]) {
    loop {
        let pending = [0, 1].map(|i| actions(&mut ends[i]));
        if pending.iter().all(Vec::is_empty) {
            break;
        }
        for (i, actions) in pending.into_iter().enumerate() {
            for action in actions {
                match action {
                    Action::Send(message) => ends[1 - i].handle(now, message),
                    Action::Fence { .. } => ends[i].fenced(now, Evidence::default()),
                    Action::Decide { .. } => ends[i].moved(now, 0),
                    _ => {}
                }
            }
        }
    }
    for end in ends {
        for rail in 0..usize::from(end.rail_count) {
            end.local_qp_connected(rail);
            end.peer_qp_connected(now, rail);
        }
    }
}

/// Returns two ends of a vQP with three rails that is bound to `rail`, and the time.
fn ends_on(rail: usize) -> (Time, [RailNegotiation; 2]) {
    let (mut now, mut ends) = (Time::ZERO, ends(3));
    for from in 0..rail {
        now += CALM;
        ends[0].rail_failed(now, from, RailFailure::QpFailed);
        settle(now, &mut ends);
    }
    assert_eq!(ends.each_ref().map(|end| (end.active(), end.is_move_confirmed())), [(rail, true); 2]);
    (now + CALM, ends)
}

#[test]
fn failed_rail_is_unusable_until_it_recovers() {
    let [mut end, _] = ends(4);
    let now = Time::ZERO;
    assert_eq!(end.local_unusable(), 0b0001);
    end.rail_failed(now, 1, RailFailure::LinkDown);
    end.rail_failed(now, 2, RailFailure::QpFailed);
    end.rail_failed(now, 3, RailFailure::NicDead);
    assert_eq!(end.local_unusable(), 0b1111);
    end.rail_recovered(now, 2);
    assert_eq!(end.local_unusable(), 0b1011);
    end.rail_recovered(now, 3);
    assert_eq!(end.local_unusable(), 0b0011);
}

/// The rail may still work. It is fenced only when the peer has accepted, or when its queue pair
/// fails.
#[test]
fn silent_rail_is_fenced_when_its_queue_pair_fails() {
    for active in [0, 1] {
        let (now, [mut end, _]) = ends_on(active);
        assert!(end.has_peer_accepted(), "there is no move");
        end.rail_failed(now, active, RailFailure::Silent);
        assert_eq!((end.is_active(), end.destination()), (false, active + 1));
        assert!(!end.has_peer_accepted());
        end.rail_failed(now, 1 - active, RailFailure::QpFailed);
        assert!(!fences(&mut end) && end.may_post(), "another rail has failed");
        end.rail_failed(now, active, RailFailure::QpFailed);
        assert!(fences(&mut end) && !end.may_post());
    }
}

#[test]
fn another_move_follows_if_the_new_rail_has_failed_meanwhile() {
    for active in [0, 1] {
        for failure in [RailFailure::LinkDown, RailFailure::QpFailed, RailFailure::NicDead] {
            let (now, [mut end, _]) = ends_on(active);
            end.rail_failed(now, active, RailFailure::QpFailed);
            end.rail_failed(now, active + 1, failure);
            end.moved(now, 0);
            // The peer has not confirmed the move.
            assert!(end.is_stranded() && end.awaits_peer_moved());
        }
        let (now, [mut end, _]) = ends_on(active);
        end.rail_failed(now, active, RailFailure::QpFailed);
        end.moved(now, 0);
        assert_eq!((end.active(), end.is_stranded()), (active + 1, false));
    }
}

/// The fence had already made the evidence final, and the queue pair is replaced anyway.
#[test]
fn queue_pair_that_fails_after_its_fence_began_does_not_exclude_its_rail() {
    let (now, mut ends) = ends_on(1);
    ends[0].rail_failed(now, 1, RailFailure::QpFailed);
    assert!(fences(&mut ends[0]));
    ends[0].rail_failed(now, 1, RailFailure::QpFailed);
    ends[0].moved(now, 0);
    ends[0].rail_failed(now, 1, RailFailure::LinkDown);
    assert_eq!(ends[0].local_unusable(), 0b110, "for two reasons");
    ends[0].rail_recovered(now, 1);
    assert_eq!(ends[0].local_unusable(), 0b110, "the new queue pair is missing");
    ends[0].local_qp_connected(1);
    assert_eq!((ends[0].active(), ends[0].local_unusable()), (2, 0b100));
}

fn closing(end: &mut RailNegotiation) -> Option<CloseReason> {
    actions(end).into_iter().find_map(|action| match action {
        Action::Close { reason, .. } => Some(reason),
        _ => None,
    })
}

#[test]
fn move_ends_when_the_last_nic_dies() {
    let now = Time::ZERO;
    let [mut end, _] = ends(2);
    end.rail_failed(now, 0, RailFailure::NicDead);
    assert_eq!(closing(&mut end), None);
    end.rail_failed(now, 1, RailFailure::NicDead);
    assert_eq!(closing(&mut end), Some(CloseReason::FailedDuringRecovery));

    let [mut end, _] = ends(1);
    end.rail_failed(now, 0, RailFailure::NicDead);
    assert_eq!(closing(&mut end), Some(CloseReason::NoRail));

    // The NIC of rail 1 was dead and works again.
    let [mut end, _] = ends(2);
    end.rail_failed(now, 1, RailFailure::NicDead);
    end.rail_recovered(now, 1);
    end.rail_failed(now, 0, RailFailure::NicDead);
    end.rail_failed(now, 0, RailFailure::NicDead);
    assert_eq!(closing(&mut end), None);
}

#[test]
fn link_that_recovers_does_not_repair_its_queue_pair() {
    let [mut end, _] = ends(1);
    end.rail_failed(Time::ZERO, 0, RailFailure::LinkDown);
    assert!(end.is_stranded());
    end.rail_recovered(Time::ZERO, 0);
    assert!(!end.is_stranded(), "the queue pair still works");
    end.rail_failed(Time::ZERO, 0, RailFailure::QpFailed);
    end.rail_recovered(Time::ZERO, 0);
    assert!(end.is_stranded());
}

/// Nothing is posted on the queue pairs, so no retries show that the peer is gone.
#[test]
fn replaced_queue_pairs_fail_if_they_are_not_connected_in_time() {
    for active in [0, 1] {
        let (now, [mut end, _]) = ends_on(active);
        end.allow_replacing_active_qps();
        for other in (0..3).filter(|&rail| rail != active) {
            end.rail_failed(now, other, RailFailure::LinkDown);
        }
        end.rail_failed(now, active, RailFailure::QpFailed);
        assert!(fences(&mut end) && end.destination() == active);
        end.moved(now, 0);
        let deadline = now + PEER_TIMEOUT / 2;
        end.handle_timeout(now + (PEER_TIMEOUT / 2 - RETRY));
        assert!(!end.is_stranded());
        end.handle_timeout(deadline);
        assert!(end.is_stranded());
        assert_eq!(end.connect_deadline(), None, "they have failed");
        end.local_qp_connected(active);
        assert!(!end.may_post(), "the peer's is missing");
        end.peer_qp_connected(now, active);
        assert!(end.may_post());
    }
}

#[test]
fn refused_rail_is_proposed_when_the_peer_has_connected_its_queue_pair() {
    let [mut end, _] = ends(3);
    let now = Time::ZERO;
    end.rail_failed(now, 0, RailFailure::QpFailed);
    let body = Body::Refuse { unusable: 0b111, promised_epoch: 1, home: None };
    let ballot = end.promised();
    end.handle(now, Message { ballot, body });
    assert_eq!(end.destination(), 1, "no other rail can be proposed");
    end.peer_qp_connected(now, 2);
    assert_eq!(end.destination(), 2);
}

/// After the pause, the peer may be able to use the rails.
#[test]
fn refused_rails_are_proposed_again_after_a_pause() {
    let pause = PEER_TIMEOUT / ATTEMPTS_PER_TIMEOUT;
    let at = |time: Duration| Time::ZERO + time;
    let [mut end, _] = ends(2);
    end.rail_failed(Time::ZERO, 0, RailFailure::QpFailed);
    let ballot = end.promised();
    let body = Body::Refuse { unusable: 0b11, promised_epoch: 1, home: None };
    end.handle(Time::ZERO, Message { ballot, body });
    end.handle_timeout(at(RETRY));
    end.handle_timeout(at(pause));
    assert_eq!(end.promised(), ballot, "the pause began with the first retry");
    end.handle_timeout(at(pause + 2 * RETRY));
    assert!(end.promised() > ballot);

    // The other rail was not refused, but the peer's heartbeat has named it as unusable.
    let [mut end, _] = ends(2);
    end.handle(Time::ZERO, Message { ballot: Ballot::FIRST, body: Body::Heartbeat { unusable: 0b10 } });
    end.rail_failed(Time::ZERO, 0, RailFailure::QpFailed);
    end.handle_timeout(at(RETRY));
    assert!(end.is_stranded());
    end.handle_timeout(at(pause + 2 * RETRY));
    assert_eq!((end.is_stranded(), end.destination()), (false, 1));
}

/// A link that is down may come up, but a queue pair that has failed is not repaired.
#[test]
fn vqp_without_a_usable_rail_closes_if_its_queue_pair_has_failed() {
    for active in [0, 1] {
        for (failure, expected) in
            [(RailFailure::LinkDown, None), (RailFailure::QpFailed, Some(CloseReason::NoRail))]
        {
            let (now, [mut end, _]) = ends_on(active);
            for other in (0..3).filter(|&rail| rail != active) {
                end.rail_failed(now, other, RailFailure::LinkDown);
            }
            end.rail_failed(now, active, failure);
            end.handle_timeout(now + PEER_TIMEOUT / 2);
            assert_eq!(closing(&mut end), None);
            end.handle_timeout(now + PEER_TIMEOUT);
            assert_eq!(closing(&mut end), expected);
        }
    }
}

/// All links may be down for longer than the peer timeout.
#[test]
fn unanswered_resume_is_sent_less_often_after_the_peer_timeout() {
    let (now, [mut end, _]) = ends_on(0);
    end.rail_failed(now, 0, RailFailure::QpFailed);
    end.moved(now, 0);
    end.local_qp_connected(1);
    let late = now + PEER_TIMEOUT;
    for (time, pause) in [(now + RETRY, RETRY), (late, PEER_TIMEOUT / ATTEMPTS_PER_TIMEOUT)] {
        actions(&mut end);
        end.handle_timeout(time);
        let resumes =
            |action: &Action| matches!(action, Action::Send(Message { body: Body::Resume { .. }, .. }));
        assert_eq!(actions(&mut end).iter().filter(|&action| resumes(action)).count(), 1);
        assert_eq!(end.poll_timeout(), Some(time + pause));
    }
}

/// The Resume that named the bytes may have been lost.
#[test]
fn end_that_closes_repeats_the_bytes_of_its_last_resume() {
    let (now, [mut end, _]) = ends_on(0);
    end.rail_failed(now, 0, RailFailure::QpFailed);
    end.moved(now, 512);
    end.close(CloseReason::Closed);
    assert_eq!(end.final_ballot(), Some(end.ballot()));
    actions(&mut end);
    end.closed(Some(Evidence::default()));
    let expected = Evidence { partial_imm_bytes: 512, ..Evidence::default() };
    let closed =
        |ballot, evidence| Action::Send(Message { ballot, body: Body::Closed { evidence: Some(evidence) } });
    // The peer may not have moved yet.
    let messages = [closed(Ballot::FIRST, Evidence::default()), closed(end.ballot(), expected)];
    assert_eq!(actions(&mut end), messages);
}

#[test]
fn failback_waits_longer_after_a_short_stay() {
    let delay = Duration::from_secs(2);
    let (mut now, mut ends) = ends_on(1);
    ends[0].prefer(0, delay);
    for wait in [delay, 2 * delay] {
        ends[0].drive_failback(now);
        assert_eq!(ends[0].failback_at(), Some(now + wait));
        now += wait;
        ends[0].drive_failback(now);
        settle(now, &mut ends);
        assert_eq!(ends[0].active(), 0);
        ends[0].drive_failback(now);
        now += RETRY;
        ends[0].rail_failed(now, 0, RailFailure::QpFailed);
        settle(now, &mut ends);
        assert_eq!(ends[0].active(), 1);
    }
}

/// If the active rail worked, the refusal would end the failback, and no other rail would be
/// proposed.
#[test]
fn another_rail_is_proposed_if_the_active_one_fails_before_a_failback_is_refused() {
    let (now, [mut end, _]) = ends_on(1);
    end.prefer(0, RETRY);
    end.drive_failback(now);
    end.drive_failback(now + RETRY);
    assert_eq!((end.is_active(), end.destination()), (false, 0));
    end.rail_failed(now, 1, RailFailure::LinkDown);
    let body = Body::Refuse { unusable: 0b001, promised_epoch: 1, home: None };
    let ballot = end.promised();
    end.handle(now, Message { ballot, body });
    assert_eq!(end.destination(), 2);
}

#[test]
fn proposal_of_a_rail_that_does_not_exist_is_refused() {
    let [_, mut end] = ends(3);
    let ballot = Ballot { epoch: 2, proposer: Role::Zero };
    end.handle(Time::ZERO, Message { ballot, body: Body::Propose { rail: 3, home: None } });
    assert!(end.is_active());
    assert!(matches!(&actions(&mut end)[..], [Action::Send(Message { body: Body::Refuse { .. }, .. })]));
}

#[test]
fn refused_failback_leaves_the_vqp_on_its_rail() {
    let (now, [mut end, _]) = ends_on(1);
    end.prefer(0, RETRY);
    end.drive_failback(now);
    end.drive_failback(now + RETRY);
    let body = Body::Refuse { unusable: 0b001, promised_epoch: 1, home: None };
    let ballot = end.promised();
    end.handle(now, Message { ballot, body });
    assert!(end.is_active() && actions(&mut end).contains(&Action::Stay));
}

/// The peer would have to fence a rail that may work.
#[test]
fn silent_rail_is_not_replaced_by_itself() {
    let [mut end, _] = ends(2);
    end.allow_replacing_active_qps();
    end.rail_failed(Time::ZERO, 1, RailFailure::LinkDown);
    end.rail_failed(Time::ZERO, 0, RailFailure::Silent);
    assert!(end.is_active());
    end.rail_failed(Time::ZERO, 0, RailFailure::QpFailed);
    assert_eq!((end.is_active(), end.destination()), (false, 0));
}

#[test]
fn rail_is_usable_only_if_nothing_excludes_it() {
    for (down, refused, peer_unusable) in [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (0, 1, 1), (1, 0, 1)] {
        let [mut end, _] = ends(2);
        assert!(end.is_usable(1));
        let states = [
            (RailState::DOWN, down),
            (RailState::REFUSED, refused),
            (RailState::PEER_UNUSABLE, peer_unusable),
        ];
        for (state, is_set) in states {
            end.rail_mut(1_u8).set(state, is_set == 1);
        }
        assert!(!end.is_usable(1), "{down} {refused} {peer_unusable}");
    }
}

#[test]
fn vqp_that_has_moved_often_waits_before_the_next_move() {
    let [mut end, _] = ends(2);
    let now = Time::ZERO + CALM;
    (0..10).for_each(|_| end.move_pauses.on_move(now, PEER_TIMEOUT, false));
    end.rail_failed(now, 0, RailFailure::QpFailed);
    assert!(end.is_stranded());
    end.handle_timeout(now + PEER_TIMEOUT / 2);
    assert_eq!((end.is_stranded(), end.destination()), (false, 1));
}

/// Each proposal uses up an epoch.
#[test]
fn pauses_between_proposals_of_refused_rails_double() {
    let [mut end, _] = ends(2);
    let pause = PEER_TIMEOUT / ATTEMPTS_PER_TIMEOUT;
    let proposals: Vec<u32> = (0..=63).filter(|&n| end.forgets_refusals(Time::ZERO + pause * n)).collect();
    assert_eq!(proposals, [1, 3, 7, 15, 31, 63]);
}

#[test]
fn rail_that_the_vqp_left_gets_new_queue_pairs_after_the_move() {
    let (now, [mut end, _]) = ends_on(0);
    end.rail_failed(now, 0, RailFailure::QpFailed);
    end.moved(now, 0);
    assert_eq!(end.left_by(0), None, "the peer has not confirmed the move");
    let ballot = end.ballot();
    end.handle(now, Message { ballot, body: Body::Resume { has_peer_resume: true, partial_imm_bytes: 0 } });
    assert_eq!([0, 1, 2].map(|rail| end.left_by(rail)), [Some(ballot), None, None]);
    assert_eq!([0, 1, 2].map(|rail| end.awaits_new_qps(rail)), [true, false, false]);
    end.peer_qp_connected(now, 0);
    assert!(!end.awaits_new_qps(0));
    end.local_qp_connected(0);
    // The vQP returns. The queue pairs of its active rail are not replaced.
    end.rail_failed(now + CALM, 2, RailFailure::LinkDown);
    end.rail_failed(now + CALM, 1, RailFailure::QpFailed);
    end.moved(now + CALM, 0);
    let ballot = end.ballot();
    end.handle(now, Message { ballot, body: Body::Resume { has_peer_resume: true, partial_imm_bytes: 0 } });
    assert!(end.is_move_confirmed());
    assert_eq!((end.active(), end.left_by(0)), (0, None));
}

#[test]
fn refusal_ends_when_a_heartbeat_shows_a_change() {
    let [mut end, _] = ends(2);
    end.rail_failed(Time::ZERO, 0, RailFailure::QpFailed);
    let ballot = end.promised();
    let mut is_refused_after = |body| {
        end.handle(Time::ZERO, Message { ballot, body });
        end.is_refused()
    };
    assert!(is_refused_after(Body::Refuse { unusable: 0b11, promised_epoch: 1, home: None }));
    assert!(is_refused_after(Body::Heartbeat { unusable: 0 }), "it may be older than the refusal");
    assert!(is_refused_after(Body::Heartbeat { unusable: 0b10 }));
    assert!(!is_refused_after(Body::Heartbeat { unusable: 0 }));
}

#[test]
fn nic_that_cannot_be_fenced_closes_the_vqp() {
    let [mut end, _] = ends(2);
    end.rail_failed(Time::ZERO, 0, RailFailure::QpFailed);
    end.fence_failed();
    assert_eq!(closing(&mut end), Some(CloseReason::Unfenced));
}
