//! The states of a member's queue pair, the rights of the peer, and memory that is registered
//! again.

use std::sync::Arc;

use mitra_failover::{Config, Outcome};
use mitra_sim::Testbed;
use mitra_verbs::{Access, Data, Error, RnrTimer, SendOp, SendWr, WcStatus};

use super::pair::BackedPair;
use super::run::config;

const SUCCESS: Outcome = Outcome::Success;

fn inline_write(pair: &BackedPair, wr_id: u64, word: u64) -> SendWr {
    SendWr::new(wr_id, SendOp::Write(pair.mr[1].remote().at(8 * word)), Data::inline(&wr_id.to_ne_bytes()))
}

/// Fails the link of rail 0, and drives both ends until they use the other rail.
fn fail_over(pair: &mut BackedPair) {
    let nic = pair.testbed.rail(0)[0];
    pair.testbed.world.set_link(nic, false);
    pair.poll(&[0, 1], 8000);
    assert!(pair.qps.iter().flatten().all(|qp| qp.has_rail()));
}

/// An end in RTR receives but does not send, even if a failover replaces the queue pair between RTR
/// and RTS.
#[test]
fn end_in_rtr_receives_and_sends_only_from_rts_on() {
    for fails_over in [false, true] {
        let mut pair = BackedPair::new(2, 1);
        let [mut a, mut b] = [0, 1].map(|h: usize| pair.backups[h].queue_pair(config()).expect("room"));
        a.connect(&b.local_info()).expect("the ends match");
        b.modify_to_rtr(&a.local_info(), RnrTimer::from_code(1)).expect("the ends match");
        (pair.qps[0][0], pair.qps[1][0]) = (a, b);
        pair.recv(0, 1);
        pair.send(0, 7);
        pair.poll(&[0, 1], 400);
        assert!(pair.qps[1][0].take_established());
        if fails_over {
            fail_over(&mut pair);
        }
        assert_eq!((pair.word(1), pair.outcomes(0, 0)), (7, vec![(7, SUCCESS)]));
        let wr = SendWr::new(8, SendOp::Send, Data::inline(&8_u64.to_ne_bytes()));
        let b = &mut pair.qps[1][0];
        assert!(matches!(b.post_send(wr.clone()), Err(Error::Invalid(_))));
        b.modify_to_rts(7).expect("the queue pair is connected");
        b.post_send(wr).expect("the queue pair is in RTS");
        let at = pair.mr[0].sge(0, 8);
        pair.qps[0][0].post_recv(mitra_verbs::RecvWr::new(3, at)).expect("room");
        pair.poll(&[0, 1], 400);
        assert_eq!((pair.memory[0].load(0), pair.outcomes(1, 0)), (8, vec![(8, SUCCESS)]));
    }
}

#[test]
fn list_with_a_refused_request_posts_nothing() {
    let mut pair = BackedPair::new(2, 1);
    let mut wrs: Vec<_> = (1..4).map(|id| inline_write(&pair, id, id)).collect();
    wrs[2].data = Data::inline(&[0; 4096]);
    let refused = pair.qps[0][0].post_send_all(wrs.clone()).expect_err("too much inline data");
    assert_eq!((refused.index, pair.qps[0][0].outstanding()), (2, 0));
    wrs.pop();
    pair.qps[0][0].post_send_all(wrs).expect("both fit");
    pair.poll(&[0, 1], 400);
    assert_eq!(pair.outcomes(0, 0), [(1, SUCCESS), (2, SUCCESS)]);
    assert_eq!([pair.word(1), pair.word(2), pair.word(3)], [1, 2, 0]);
}

/// Memory that is registered again, here with fewer rights, keeps its keys and grants. A WRITE in
/// flight when a rail fails reaches the memory.
#[test]
fn write_of_a_failover_reaches_memory_that_was_registered_again() {
    let mut pair = BackedPair::new(2, 1);
    pair.write(0, 1, 1);
    pair.poll(&[0, 1], 400);
    let domain = Arc::clone(pair.qps[1][0].domain());
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    pair.mr[1] = domain.reregister(&pair.mr[1], &domain, &pair.memory[1], access).expect("the NICs work");
    let nic = pair.testbed.rail(0)[0];
    pair.testbed.world.set_link(nic, false);
    pair.write(0, 2, 5);
    pair.poll(&[0, 1], 8000);
    assert_eq!(pair.outcomes(0, 0), [(1, SUCCESS), (5, SUCCESS)]);
    assert_eq!(pair.word(2), 5);
}

#[test]
fn end_without_receives_learns_of_a_refused_request() {
    let mut pair = BackedPair::new(2, 1);
    pair.poll(&[0, 1], 400);
    let beyond = pair.mr[1].remote().at(8 * super::pair::WORDS as u64);
    let wr = SendWr::new(1, SendOp::Write(beyond), Data::inline(&[1; 8]));
    pair.qps[0][0].post_send(wr).expect("the queue pair is connected");
    pair.poll(&[0, 1], 400);
    assert_eq!(pair.outcomes(0, 0), [(1, Outcome::Failed(WcStatus::RemoteAccess))]);
    let event = pair.qps[1][0].qp_error_event();
    assert!(matches!(event, Some(mitra_verbs::AsyncEvent::QpAccessError(_))), "{event:?}");
}

/// The right ends on the queue pair and on the backup. The other rights stay.
#[test]
fn right_that_is_taken_away_ends_on_the_backup_too() {
    // A queue pair without a right refuses the request. A key without a right refuses the access.
    let refused = [WcStatus::RemoteInvalidRequest, WcStatus::RemoteAccess].map(Outcome::Failed);
    for (access, expected) in [(Access::REMOTE_READ, &refused[..]), (Access::REMOTE_WRITE, &[SUCCESS])] {
        for at_failover in [false, true] {
            let testbed = Testbed::with_config(1, mitra_sim::Config::fault_free(), 2);
            let make = Config { access: Access::LOCAL_WRITE | Access::REMOTE, ..config() };
            let mut pair = BackedPair::with(testbed, config(), 1, |backup, _| backup.queue_pair(make));
            pair.write(0, 1, 1);
            pair.poll(&[0, 1], 400);
            pair.qps[1][0].set_access(access).expect("the NICs work");
            if at_failover {
                let nic = pair.testbed.rail(0)[0];
                pair.testbed.world.set_link(nic, false);
            }
            pair.write(0, 2, 5);
            pair.poll(&[0, 1], 8000);
            let outcomes = pair.outcomes(0, 0);
            let [(1, SUCCESS), (5, outcome)] = outcomes[..] else { panic!("{outcomes:?}") };
            assert!(expected.contains(&outcome), "{access:?}, {at_failover}: {outcome:?}");
            assert_eq!(pair.word(2), if outcome == SUCCESS { 5 } else { 0 });
        }
    }
}
