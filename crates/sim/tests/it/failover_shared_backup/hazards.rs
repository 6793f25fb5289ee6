//! Failures of hosts and NICs at chosen moments, members that leave during a failover, and members
//! that no program polls.

use core::time::Duration;
use std::sync::Arc;

use mitra_failover::{BackedQp, CloseReason, Outcome, UnresolvedError};
use mitra_sim::{DurationRange, Failure, Stage, Testbed};
use mitra_verbs::{Access, Buffer, Capabilities, Data, SendFlags, SendOp, SendWr, WcStatus};

use super::pair::BackedPair;
use super::run::config;

const SUCCESS: Outcome = Outcome::Success;
const MS: Duration = Duration::from_millis(1);

fn has_rails(pair: &BackedPair) -> bool {
    pair.qps.iter().flatten().all(BackedQp::has_rail)
}

/// The NIC of the active rail hangs at one end: it no longer answers its host, but still accesses
/// memory.
#[test]
fn hung_nic_is_reset_and_members_go_on() {
    for end in [0, 1] {
        let mut pair = BackedPair::new(2, 3);
        pair.poll(&[0, 1], 400);
        assert!(has_rails(&pair));
        let nic = pair.testbed.nics[end][0].id();
        pair.testbed.world.fail(nic, Failure::NicHung);
        for member in 0..3 {
            pair.recv(member, 32 + member);
            pair.send(member, 1 + member as u64);
        }
        pair.poll(&[0, 1], 8000);
        assert!(has_rails(&pair), "end {end}");
        for member in 0..3 {
            let id = 1 + member as u64;
            assert_eq!(pair.outcomes(0, member), [(id, SUCCESS)], "end {end}");
            assert_eq!(pair.word(32 + member), id, "end {end}");
        }
    }
}

/// A hung NIC that cannot be reset may still execute requests, so no outcome is decided.
#[test]
fn hung_nic_without_reset_ends_the_members_as_unfenced() {
    let capabilities = Capabilities { reset: false, ..mitra_sim::Config::fault_free().capabilities };
    let world = mitra_sim::Config { capabilities, ..mitra_sim::Config::fault_free() };
    let testbed = Testbed::with_config(1, world, 2);
    let mut pair = BackedPair::with(testbed, config(), 2, |backup, _| backup.queue_pair(config()));
    pair.poll(&[0, 1], 400);
    assert!(has_rails(&pair));
    let nic = pair.testbed.nics[0][0].id();
    pair.testbed.world.fail(nic, Failure::NicHung);
    pair.write(0, 1, 1);
    pair.poll(&[0, 1], 8000);
    assert_eq!(pair.backups[0].close_reason(), Some(CloseReason::Unfenced));
    for member in 0..2 {
        assert_eq!(pair.qps[0][member].close_reason(), Some(CloseReason::Unfenced));
        let reason = pair.qps[1][member].close_reason();
        assert!(matches!(reason, Some(CloseReason::PeerClosed | CloseReason::PeerUnreachable)), "{reason:?}");
    }
    let undecided = Outcome::Unresolved(UnresolvedError::Undecided(CloseReason::Unfenced));
    assert_eq!(pair.outcomes(0, 0), [(1, undecided)]);
}

/// Both ends of member 1 sleep while the backup, driven by member 0, moves three times. When the
/// ends wake, their epoch is long over.
#[test]
fn members_that_sleep_through_several_failovers_lose_nothing() {
    for is_used in [false, true] {
        let mut pair = BackedPair::new(2, 2);
        if is_used {
            pair.poll(&[0, 1], 400);
            assert!(has_rails(&pair));
        }
        pair.recv(1, 40);
        pair.send(1, 7);
        pair.write(1, 41, 8);
        for round in 0..3 {
            let nic = pair.testbed.rail(round % 2)[round % 2];
            pair.testbed.world.set_link(nic, false);
            for _ in 0..1600 {
                for h in 0..2 {
                    pair.backups[h].progress();
                    pair.qps[h][0].poll(&mut pair.completions[h][0]);
                }
                pair.testbed.world.run_for(Duration::from_micros(25));
            }
            pair.write(0, 1, round as u64 + 1);
            pair.testbed.world.set_link(nic, true);
            pair.testbed.world.run_for(20 * MS);
        }
        pair.poll(&[0, 1], 4000);
        assert!(pair.backups[0].last_failover().is_some_and(|report| report.epoch >= 3));
        assert!(has_rails(&pair), "used {is_used}: {:?}", pair.qps);
        assert_eq!(pair.outcomes(0, 1), [(7, SUCCESS), (8, SUCCESS)], "used {is_used}");
        assert_eq!((pair.word(40), pair.word(41)), (7, 8), "used {is_used}");
        assert_eq!(pair.outcomes(0, 0), [(1, SUCCESS), (2, SUCCESS), (3, SUCCESS)], "used {is_used}");
        assert_eq!(pair.backups.each_ref().map(|b| b.rejected_messages()), [0, 0], "used {is_used}");
    }
}

/// The application of host b makes no call for member 1. The other members fail over, and member 1
/// continues when it is polled.
#[test]
fn member_that_is_never_polled_does_not_stop_others() {
    let mut pair = BackedPair::new(2, 3);
    pair.poll(&[0, 1], 400);
    let nic = pair.testbed.rail(0)[0];
    pair.testbed.world.set_link(nic, false);
    for member in 0..3 {
        pair.recv(member, 32 + member);
        pair.send(member, 1);
    }
    // Host b makes no queue pair for 100 ms, because it expects the member to recover.
    for _ in 0..14_000 {
        for (h, member) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 2)] {
            pair.qps[h][member].poll(&mut pair.completions[h][member]);
        }
        pair.testbed.world.run_for(Duration::from_micros(25));
    }
    for member in [0, 2] {
        assert_eq!(pair.outcomes(0, member), [(1, SUCCESS)]);
        assert!(pair.qps[0][member].has_rail());
    }
    assert_eq!(pair.outcomes(0, 1), [], "its peer has given no evidence");
    pair.poll(&[0, 1], 1000);
    assert_eq!(pair.outcomes(0, 1), [(1, SUCCESS)]);
    assert!(has_rails(&pair));
}

/// Members leave and other members take their slots while links fail in turn. No message or
/// completion of an earlier member reaches a later member.
#[test]
fn slots_are_used_again_during_failovers() {
    let mut pair = BackedPair::new(2, 3);
    let mut next = 1;
    for round in 0..12_usize {
        let rail = round % 2;
        let nic = pair.testbed.rail(rail)[round / 2 % 2];
        for member in 0..3 {
            pair.write(member, 8 + member, next);
            if round % 3 != 0 {
                pair.recv(member, 40 + member);
                pair.send(member, next);
            }
            next += 1;
        }
        pair.testbed.world.set_link(nic, false);
        pair.poll(&[0, 1], round * 3);
        // Member 1 leaves at both ends, and a new member takes its slot.
        for h in [round % 2, 1 - round % 2] {
            let new = pair.backups[h].queue_pair(config()).expect("a free queue pair");
            drop(core::mem::replace(&mut pair.qps[h][1], new));
            pair.completions[h][1].clear();
        }
        let [a, b] = &mut pair.qps;
        a[1].connect(&b[1].local_info()).expect("the ends match");
        b[1].connect(&a[1].local_info()).expect("the ends match");
        a[1].import(&pair.mr[1].remote()).expect("the queue pair is connected");
        pair.write(1, 20, next);
        pair.poll(&[0, 1], 2000);
        assert_eq!(pair.outcomes(0, 1), [(next, SUCCESS)], "round {round}");
        assert_eq!(pair.word(20), next, "round {round}");
        assert!(pair.completions[1][1].is_empty(), "round {round}: {:?}", pair.completions[1][1]);
        pair.testbed.world.set_link(nic, true);
        pair.poll(&[0, 1], 1200);
        assert!(has_rails(&pair), "round {round}: {:?}", pair.qps);
    }
    for member in [0, 2] {
        assert!(pair.outcomes(0, member).iter().all(|(_, outcome)| *outcome == SUCCESS));
    }
    assert_eq!(pair.backups.each_ref().map(|b| b.rejected_messages()), [0, 0]);
}

/// The other members continue.
#[test]
fn member_may_close_at_any_moment_of_a_failover() {
    for end in [0, 1] {
        for turns in 0..60 {
            let mut pair = BackedPair::new(2, 3);
            pair.poll(&[0, 1], 400);
            for member in 0..3 {
                pair.recv(member, 32 + member);
                pair.send(member, 1);
            }
            let nic = pair.testbed.rail(0)[1 - end];
            pair.testbed.world.set_link(nic, false);
            pair.poll(&[0, 1], turns * 8);
            pair.qps[end][1].shutdown();
            pair.poll(&[0, 1], 4000);
            let reasons = [0, 1].map(|h: usize| pair.qps[h][1].close_reason());
            assert_eq!(reasons[end], Some(CloseReason::Closed), "end {end}, turn {turns}");
            assert_eq!(reasons[1 - end], Some(CloseReason::PeerClosed), "end {end}, turn {turns}");
            let sent = pair.outcomes(0, 1);
            let is_received = pair.completions[1][1].iter().any(|c| c.is_success());
            match sent[..] {
                [(1, SUCCESS)] => assert!(is_received, "end {end}, turn {turns}"),
                [(1, Outcome::Failed(WcStatus::Flushed))] => assert!(!is_received, "end {end}, turn {turns}"),
                [(1, Outcome::Unresolved(UnresolvedError::Undecided(_)))] => {}
                ref other => panic!("end {end}, turn {turns}: {other:?}"),
            }
            for member in [0, 2] {
                assert_eq!(pair.outcomes(0, member), [(1, SUCCESS)], "end {end}, turn {turns}");
                assert!([0, 1].iter().all(|&h| pair.qps[h][member].has_rail()), "end {end}, turn {turns}");
            }
        }
    }
}

/// The dropped member has READs on the backup. The application uses the READs' buffer again, and no
/// late response changes the buffer. The READs of the other member arrive.
#[test]
fn dropped_member_receives_no_data_later() {
    for delay in 0..24 {
        let mut pair = BackedPair::new(2, 2);
        pair.memory[1].store(8, 9);
        pair.poll(&[0], 200);
        assert!(!pair.qps[0][0].has_rail());
        let read = |pair: &BackedPair, word: u64| {
            let op = SendOp::Read(pair.mr[1].remote().at(8));
            SendWr::new(word, op, Data::sge(pair.mr[0].sge(8 * word, 8)))
        };
        let (first, second) = (read(&pair, 3), read(&pair, 4));
        pair.qps[0][0].post_send(first).expect("room");
        pair.qps[0][1].post_send(second).expect("room");
        pair.backups[0].progress();
        pair.testbed.world.run_for(Duration::from_nanos(delay * 400));
        let spare = pair.backups[0].queue_pair(config()).expect("a free queue pair");
        drop(core::mem::replace(&mut pair.qps[0][0], spare));
        pair.memory[0].store(24, 55); // the application uses the memory for something else
        pair.poll(&[0], 2000);
        assert_eq!(pair.memory[0].load(24), 55, "delay {delay}");
        assert_eq!(pair.outcomes(0, 1), [(4, SUCCESS)], "delay {delay}");
        assert_eq!(pair.memory[0].load(32), 9, "delay {delay}");
        assert_eq!(pair.backups[0].close_reason(), None, "delay {delay}");
    }
}

/// The responder refuses a request while one of the two rails is down. The backup replaces its
/// queue pair on the rail that is up.
#[test]
fn refusal_on_the_only_rail_costs_others_nothing() {
    for end in [0, 1] {
        let mut pair = BackedPair::new(2, 2);
        let more = Arc::new(Buffer::new(64));
        let domain = Arc::clone(pair.qps[1][0].domain());
        let mr = domain
            .register(&more, Access::LOCAL_WRITE | Access::REMOTE)
            .expect("the NICs have a free region");
        pair.qps[0][0].import(&mr.remote()).expect("the queue pair is connected");
        pair.poll(&[0], 200);
        let nic = pair.testbed.rail(1)[end];
        pair.testbed.world.set_link(nic, false);
        pair.poll(&[0], 200);
        domain.deregister(&mr).expect("no window is bound");
        let op = SendOp::Write(mr.remote().at(0));
        pair.qps[0][0].post_send(SendWr::new(1, op, Data::inline(&[1]))).expect("room");
        pair.write(1, 2, 3);
        pair.poll(&[0], 4000);
        assert_eq!(pair.outcomes(0, 0), [(1, Outcome::Failed(WcStatus::RemoteAccess))], "end {end}");
        assert_eq!(pair.outcomes(0, 1), [(3, SUCCESS)], "end {end}");
        assert_eq!(pair.backups.each_ref().map(|b| b.close_reason()), [None, None], "end {end}");
        pair.poll(&[0, 1], 1000);
        assert!(pair.qps[0][1].has_rail(), "end {end}");
    }
}

/// The peer grants at most 256 regions at once. Deregistered regions do not count.
#[test]
fn grants_of_deregistered_memory_make_room_for_others() {
    let mut pair = BackedPair::new(1, 1);
    let domain = Arc::clone(pair.qps[1][0].domain());
    let memory = Arc::new(Buffer::new(8));
    for i in 0..600_u64 {
        let mr = domain.register(&memory, Access::LOCAL_WRITE | Access::REMOTE).expect("a free region");
        pair.qps[0][0].import(&mr.remote()).expect("the queue pair is connected");
        pair.poll(&[0], 12);
        let op = SendOp::Write(mr.remote().at(0));
        pair.qps[0][0].post_send(SendWr::new(i, op, Data::inline(&i.to_ne_bytes()))).expect("room");
        pair.poll(&[0], 12);
        assert_eq!((pair.outcomes(0, 0).last(), memory.load(0)), (Some(&(i, SUCCESS)), i), "region {i}");
        domain.deregister(&mr).expect("no window is bound");
    }
}

/// An end has grants for at most 256 regions at once. Its requests to other regions wait for its
/// own queue pair.
#[test]
fn requests_to_the_region_after_the_last_grant_wait() {
    let mut pair = BackedPair::new(2, 1);
    let domain = Arc::clone(pair.qps[1][0].domain());
    let memory = Arc::new(Buffer::new(8));
    let mut regions = Vec::new();
    for _ in 0..256 {
        let mr = domain.register(&memory, Access::LOCAL_WRITE | Access::REMOTE).expect("a free region");
        pair.qps[0][0].import(&mr.remote()).expect("the queue pair is connected");
        regions.push(mr);
    }
    pair.poll(&[0], 400);
    let write = |at: usize| {
        let op = SendOp::Write(regions[at].remote().at(0));
        SendWr::new(at as u64, op, Data::inline(&(at as u64).to_ne_bytes()))
    };
    // The pair already has one imported region.
    [254, 255].iter().for_each(|&at| _ = pair.qps[0][0].post_send(write(at)).expect("room"));
    pair.poll(&[0], 400);
    assert_eq!((pair.outcomes(0, 0), memory.load(0)), (vec![(254, SUCCESS)], 254));
    pair.poll(&[0, 1], 400);
    assert_eq!((pair.outcomes(0, 0), memory.load(0)), (vec![(254, SUCCESS), (255, SUCCESS)], 255));
}

/// The READs before an operation with FENCE may go over the backup while the link fails. Whatever
/// rail repeats a READ, the READ returns the memory as it was before the fenced WRITE.
#[test]
fn fenced_write_overtakes_no_read() {
    for delay in 0..40 {
        for is_polled in [false, true] {
            let mut pair = BackedPair::new(2, 1);
            let ends: &[usize] = if is_polled { &[0, 1] } else { &[0] };
            pair.poll(ends, 300);
            pair.memory[1].store(8, 5);
            let at = pair.mr[1].remote().at(8);
            let read = SendWr::new(1, SendOp::Read(at), Data::sge(pair.mr[0].sge(16, 8)));
            let mut write = SendWr::new(2, SendOp::Write(at), Data::inline(&6_u64.to_ne_bytes()));
            write.flags.set(SendFlags::FENCE, true);
            pair.qps[0][0].post_send(read).expect("room");
            pair.qps[0][0].post_send(write).expect("room");
            pair.backups[0].progress();
            pair.testbed.world.run_for(Duration::from_nanos(delay * 150));
            let nic = pair.testbed.rail(0)[0];
            pair.testbed.world.set_link(nic, false);
            pair.poll(&[0, 1], 3000);
            let label = format!("delay {delay}, polled {is_polled}: {:?}", pair.outcomes(0, 0));
            match pair.outcomes(0, 0)[..] {
                [(1, SUCCESS), (2, SUCCESS)] => assert_eq!(pair.memory[0].load(16), 5, "{label}"),
                [(1, Outcome::Unresolved(UnresolvedError::ValueLost)), ..] => {}
                _ => panic!("{label}"),
            }
        }
    }
}

/// One member posts a READ, and another member posts a fenced WRITE. The NIC of the requester dies
/// when the WRITE was executed and the data of the READ is not in memory. The READ ends in an
/// error. The error belongs to another queue pair than the WRITE, so the WRITE succeeds and is not
/// repeated.
#[test]
fn operation_behind_the_error_of_another_member_is_not_repeated() {
    let mut world = mitra_sim::Config::fault_free();
    world.memory.chunk_delay = DurationRange::micros(50, 50); // longer than the WRITE takes
    let testbed = Testbed::with_config(1, world, 2);
    let mut pair = BackedPair::with(testbed, config(), 2, |backup, _| backup.queue_pair(config()));
    pair.poll(&[0], 400);
    assert!(!pair.qps[0][0].has_rail() && !pair.qps[0][1].has_rail());
    let [requester, responder] = pair.testbed.rail(0);
    let dies = [(requester, Failure::NicDead)];
    pair.testbed.world.fail_at_stage(responder, Stage::Executed, 2, &dies, None);
    let [read_from, written] = [8, 16].map(|at| pair.mr[1].remote().at(at));
    let read = SendWr::new(1, SendOp::Read(read_from), Data::sge(pair.mr[0].sge(24, 8)));
    let write = SendWr::new(2, SendOp::Write(written), Data::inline(&6_u64.to_ne_bytes()));
    pair.qps[0][0].post_send(read).expect("room");
    pair.qps[0][1].post_send(write.with_flags(SendFlags::SIGNALED | SendFlags::FENCE)).expect("room");
    pair.backups[0].progress();
    while pair.word(2) == 0 {
        pair.testbed.world.run_for(Duration::from_nanos(500));
    }
    assert!(pair.testbed.world.stage_reached(responder));
    pair.memory[1].store(16, 9); // a repeated WRITE would overwrite this
    pair.poll(&[0], 4000);
    assert_eq!(pair.outcomes(0, 0), [(1, Outcome::Unresolved(UnresolvedError::ValueLost))]);
    assert_eq!((pair.outcomes(0, 1), pair.word(2)), (vec![(2, SUCCESS)], 9));
}
