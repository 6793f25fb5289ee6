//! Hazards that others met, and those that a second pair of eyes found: each a small play with both ends driven by hand, so that
//! the schedule is exactly the one that hurts. Random schedules are in `failover_storms`.

mod duo;

use core::time::Duration;
use std::sync::Arc;

use mitra_failover::{Cause, CloseReason, Config, Domain, LocalNic, Outcome, UnresolvedError, VirtualQp};
use mitra_sim::{Failure, Rig};
use mitra_verbs::{
    AhId, Buffer, Data, Error, Provider, QpCap, QpInitAttr, QpType, RecvWr, SendFlags, SendOp, SendWr,
    UdDestination, WcStatus,
};

use duo::{ALL, Duo, SIZE, config};

fn inline(value: u64) -> Data {
    Data::inline(&value.to_ne_bytes())
}

/// The next rail is unusable at the peer, which says so only after this end has fenced and posted its receives there.
#[test]
fn receives_follow_to_the_rail_that_is_taken_not_the_one_that_was_refused() {
    let mut d = Duo::new(4, config());
    for i in 0..16 {
        d.recv(0, i, 64);
        d.recv(1, i, 64);
    }
    d.turns(&[0, 1], 10);
    d.unplug(1, 1);
    d.turns(&[1], 5);
    d.unplug(0, 0);
    d.turns(&[0], 20); // this end proposes rail 1, fences, and is ready for it
    d.turns(&[0, 1], 200);
    assert_eq!([d.v[0].active_rail(), d.v[1].active_rail()], [2, 2]);
    for i in 0..4 {
        d.send(1, 100 + i, SendOp::Send, inline(1000 + i));
        d.turns(&[0, 1], 20);
        assert_eq!(d.outcome(0, i, true), Some(Outcome::Success), "message {i} was not received");
        assert_eq!(d.memory[0].load(i as usize * 256), 1000 + i);
    }
    // The rail that was refused heals, and the next move goes there: nothing of the first attempt may be left.
    d.plug(1, 1);
    d.turns(&[0, 1], 10);
    for rail in [2, 3] {
        d.unplug(0, rail);
        d.turns(&[0, 1], 200);
    }
    assert_eq!([d.v[0].active_rail(), d.v[1].active_rail()], [1, 1], "{:?}", d.v[0].close_reason());
    for i in 4..16 {
        d.send(1, 100 + i, SendOp::Send, inline(1000 + i));
        d.turns(&[0, 1], 20);
        assert_eq!(d.outcome(0, i, true), Some(Outcome::Success), "message {i} was not received");
        assert_eq!(d.memory[0].load(i as usize * 256), 1000 + i, "message {i} is in another's buffer");
    }
}

/// The sender was told that its messages arrived; that it leaves then does not take them back.
#[test]
fn messages_that_arrived_before_the_peer_closed_are_received() {
    let mut d = Duo::new(2, config());
    for i in 0..60 {
        d.recv(1, i, 64);
    }
    for i in 0..60 {
        d.send(0, i, SendOp::Send, inline(i));
    }
    d.turns(&[0], 40);
    assert!((0..60).all(|i| d.outcome(0, i, false) == Some(Outcome::Success)), "all were sent");
    d.v[0].shutdown();
    d.turns(&[0], 4);
    d.v[0].close().expect("close");
    d.turns(&[1], 40);
    assert_eq!(d.v[1].close_reason(), Some(CloseReason::PeerClosed));
    let received = (0..60).filter(|&i| d.outcome(1, i, true) == Some(Outcome::Success)).count();
    assert_eq!(received, 60);
}

/// A key that was revoked while its operation waited fails that operation, and says nothing about those before it.
#[test]
fn an_operation_that_cannot_be_posted_claims_nothing_for_those_before_it() {
    let mut d = Duo::new(2, config());
    let other = Arc::new(Buffer::new(4096));
    let domain = Arc::clone(d.v[0].domain());
    let mr = domain.register(&other, ALL).expect("register");
    d.turns(&[0, 1], 5);
    d.unplug(0, 0);
    d.turns(&[0], 5);
    assert!(!d.v[0].is_active());
    let to = d.remote(1, 0);
    d.send(0, 1, SendOp::Write(to), inline(7));
    d.send(0, 2, SendOp::Write(d.remote(1, 8)), Data::sge(mr.sge(0, 8)));
    domain.deregister(&mr).expect("deregister");
    d.turns(&[0, 1], 400);
    assert_eq!(d.v[0].close_reason(), Some(CloseReason::RequestError));
    let (first, second) = (d.outcome(0, 1, false), d.outcome(0, 2, false));
    assert_eq!(second, Some(Outcome::Failed(WcStatus::LocalProtection)));
    if first == Some(Outcome::Success) {
        assert_eq!(d.memory[1].load(0), 7, "success was claimed for a WRITE that never happened");
    }
    assert!(first.is_some());
}

/// What a READ's own memory refuses says nothing about the WRITE behind it: that was executed.
#[test]
fn behind_a_local_error_nothing_is_called_flushed_that_was_executed() {
    let mut d = Duo::new(2, config());
    let other = Arc::new(Buffer::new(4096));
    let domain = Arc::clone(d.v[0].domain());
    let mr = domain.register(&other, ALL).expect("register");
    d.turns(&[0, 1], 5);
    d.send(0, 1, SendOp::Read(d.remote(1, 1024)), Data::sge(mr.sge(0, 2048)));
    d.send(0, 2, SendOp::Write(d.remote(1, 0)), inline(7));
    domain.deregister(&mr).expect("deregister");
    d.turns(&[0, 1], 100);
    assert_eq!(d.v[0].close_reason(), Some(CloseReason::RequestError));
    assert_eq!(d.outcome(0, 1, false), Some(Outcome::Failed(WcStatus::LocalProtection)));
    let behind = d.outcome(0, 2, false);
    let executed = d.memory[1].load(0) == 7;
    assert!(executed, "the test needs a WRITE that was executed");
    assert_ne!(behind, Some(Outcome::Failed(WcStatus::Flushed)), "it was executed");
}

/// A receive whose memory was revoked ends the vQP on the next rail; it does not leave the sender knocking for ever.
#[test]
fn a_receive_without_memory_does_not_hang_the_sender() {
    let mut d = Duo::new(2, config());
    let other = Arc::new(Buffer::new(4096));
    let domain = Arc::clone(d.v[0].domain());
    let mr = domain.register(&other, ALL).expect("register");
    d.v[0].post_recv(RecvWr::new(1, mr.sge(0, 64))).expect("post_recv");
    d.turns(&[0, 1], 5);
    domain.deregister(&mr).expect("deregister");
    d.unplug(0, 0);
    d.send(1, 9, SendOp::Send, inline(1));
    d.turns(&[0, 1], 2000);
    assert!(d.outcome(1, 9, false).is_some(), "the sender waits for ever");
    assert_eq!(d.outcome(0, 1, true), Some(Outcome::Failed(WcStatus::LocalProtection)));
    assert_eq!(d.v[0].close_reason(), Some(CloseReason::RequestError));
}

/// A host that sleeps in the middle of its fence, between two polls or inside one, has not seen a NIC stall: it must not
/// reset one that is alive.
#[test]
fn a_pause_in_the_middle_of_a_fence_is_not_a_stalled_nic() {
    let asleep = Duration::from_millis(100);
    for reading in std::iter::once(None).chain((0..24).map(Some)) {
        let mut d = Duo::new(2, config());
        for i in 0..60 {
            d.recv(0, i, 64); // flushed by the fence: more than one poll takes
            d.recv(1, i, 64);
        }
        d.turns(&[0, 1], 5);
        d.memory[0].store(32768, 5);
        let faa = SendOp::FetchAdd { remote: d.remote(0, 32768), add: 1 };
        d.send(1, 1, faa, Data::sge(d.mr[1].sge(32768, 8)));
        d.unplug(0, 0);
        let clock = d.rig.nics[0][0].id();
        match reading {
            Some(reading) => d.rig.world.sleep_at_reading(clock, reading, asleep),
            None => {
                d.turns(&[0], 1);
                d.rig.world.run_for(asleep);
            }
        }
        d.turns(&[0, 1], 400);
        assert!(
            d.rig.nics[0][0].query_port().is_ok(),
            "asleep at {reading:?}: a NIC was reset that was alive"
        );
        assert_eq!(d.outcome(1, 1, false), Some(Outcome::Success), "asleep at {reading:?}");
        assert_eq!(d.memory[1].load(32768), 5);
    }
}

/// A bad rkey is the request's fault, not the rail's: nobody moves.
#[test]
fn a_bad_key_ends_both_ends_and_moves_neither() {
    let mut d = Duo::new(2, config());
    for i in 0..8 {
        d.recv(1, i, 64);
    }
    let gone = Arc::new(Buffer::new(4096));
    let region = d.v[1].domain().register(&gone, ALL).expect("register");
    d.v[0].import(&region.remote()).expect("import");
    d.v[1].domain().deregister(&region).expect("deregister");
    d.turns(&[0, 1], 5);
    d.send(0, 1, SendOp::Write(d.remote(1, 0)), inline(7));
    d.send(0, 2, SendOp::Write(region.remote().at(0)), inline(8));
    d.send(0, 3, SendOp::Write(d.remote(1, 8)), inline(9));
    d.turns(&[0, 1], 200);
    assert_eq!(d.outcome(0, 1, false), Some(Outcome::Success));
    assert_eq!(d.outcome(0, 2, false), Some(Outcome::Failed(WcStatus::RemoteAccess)));
    assert_eq!(d.outcome(0, 3, false), Some(Outcome::Failed(WcStatus::Flushed)));
    assert_eq!([d.memory[1].load(0), d.memory[1].load(8)], [7, 0]);
    assert_eq!(d.v[0].close_reason(), Some(CloseReason::RequestError));
    assert!(
        matches!(d.v[1].close_reason(), Some(CloseReason::RequestError | CloseReason::PeerClosed)),
        "{:?}",
        d.v[1].close_reason()
    );
    assert_eq!([d.v[0].active_rail(), d.v[1].active_rail()], [0, 0]);
}

/// Notice of a failure is measured on one clock, whatever the NICs' own clocks show.
#[test]
fn a_failover_is_timed_by_one_clock() {
    let mut d = Duo::new(2, config());
    d.turns(&[0, 1], 5);
    for i in 0..8 {
        d.send(0, i, SendOp::Write(d.remote(1, i * 8)), inline(i + 1));
    }
    d.unplug(0, 0);
    d.turns(&[0, 1], 400);
    let report = d.v[0].last_failover().expect("moved");
    assert_eq!((report.cause, report.from, report.to), (Cause::Device, 0, 1));
    let completed = report.completed_at.expect("completed");
    assert!(report.detected_at <= report.fenced_at && report.fenced_at <= report.decided_at, "{report:?}");
    assert!(report.decided_at <= completed, "{report:?}");
}

/// Both links fail one after the other, at once or later: each end ends in a word, and soon.
#[test]
fn when_both_rails_fail_both_ends_end_named_and_in_time() {
    for gap in [0, 1, 2, 3, 5, 10, 40, 100, 400] {
        for second in [0, 1] {
            let mut c = config();
            c.detector.max_missed_heartbeats = 5;
            c.detector.heartbeat_interval = Duration::from_millis(1);
            c.peer_timeout = Duration::from_millis(200);
            let mut d = Duo::new(2, c);
            d.turns(&[0, 1], 5);
            for i in 0..40 {
                d.send(0, i, SendOp::Write(d.remote(1, i * 8)), inline(i + 1));
            }
            d.unplug(0, 0);
            d.turns(&[0, 1], gap);
            d.unplug(second, 1);
            d.turns(&[0, 1], 40 * 600);
            let ended = [d.v[0].close_reason(), d.v[1].close_reason()];
            assert!(ended.iter().all(Option::is_some), "gap {gap}: {ended:?}");
            for i in 0..40 {
                let outcome = d.outcome(0, i, false);
                let there = d.memory[1].load(i as usize * 8);
                match outcome {
                    Some(Outcome::Success) => assert_eq!(there, i + 1),
                    Some(Outcome::Failed(WcStatus::Flushed)) => assert_eq!(there, 0),
                    Some(Outcome::Unresolved(UnresolvedError::Undecided(_))) => {}
                    other => panic!("gap {gap}: operation {i} ended in {other:?}"),
                }
            }
        }
    }
}

/// A READ behind which a fenced operation was executed is not read again: late bytes would be others'.
#[test]
fn a_read_before_an_executed_fence_keeps_its_bytes() {
    let mut d = Duo::new(2, config());
    d.turns(&[0, 1], 5);
    d.memory[1].store(0, 1);
    d.send(0, 1, SendOp::Read(d.remote(1, 0)), Data::sge(d.mr[0].sge(0, 8)));
    let fenced = SendWr::new(2, SendOp::Write(d.remote(1, 0)), inline(2))
        .with_flags(SendFlags::SIGNALED | SendFlags::FENCE);
    d.v[0].post_send(fenced).expect("post");
    d.rig.world.run_for(Duration::from_micros(60)); // both are executed; nobody has polled
    assert_eq!(d.memory[1].load(0), 2);
    d.unplug(0, 0);
    d.turns(&[0, 1], 400);
    assert_eq!(d.outcome(0, 1, false), Some(Outcome::Success));
    assert_eq!(d.memory[0].load(0), 1, "it was read again behind the fence");
}

/// The peer has moved, and has sent the rest of a torn WRITE with immediate; this end ends before it has moved too. How long the
/// whole message was, it never learns: the length of the rest must not pass for it.
#[test]
fn a_torn_message_whose_rest_came_before_the_end_claims_no_length() {
    const LEN: usize = 40_000;
    let mut d = Duo::new(2, config());
    d.recv(1, 7, 0);
    d.turns(&[0, 1], 5);
    d.memory[0].write_at(0, &[0x55; LEN]);
    let whole = Data::sge(d.mr[0].sge(0, LEN as u32));
    d.send(0, 1, SendOp::WriteWithImm(d.remote(1, 8192), 9), whole);
    while d.memory[1].load(8192) == 0 {
        d.rig.world.run_for(Duration::from_nanos(500));
    }
    assert_eq!(d.memory[1].load(8192 + LEN - 8), 0, "it is not torn any more");
    d.unplug(1, 0);
    d.turns(&[1], 40); // this end fences, and gives evidence
    d.turns(&[0], 100);
    assert_eq!(d.outcome(0, 1, false), Some(Outcome::Success));
    d.v[1].shutdown();
    d.turns(&[1], 4);
    assert_eq!(d.memory[1].load(8192 + LEN - 8), 0x5555_5555_5555_5555);
    assert_eq!(d.outcome(1, 7, true), Some(Outcome::Unresolved(UnresolvedError::ValueLost)));
}

/// An end that polls as often as it is to be heard of is not silent.
#[test]
fn an_end_that_polls_once_for_each_heartbeat_is_not_silent() {
    let mut c = config();
    c.detector.heartbeat_interval = Duration::from_millis(1);
    c.detector.max_missed_heartbeats = 3;
    let mut d = Duo::new(2, c);
    d.turns(&[0, 1], 10);
    for _ in 0..100 {
        d.turns(&[0], 41); // a little more than a millisecond
        d.v[1].poll(&mut d.got[1]);
    }
    assert_eq!([d.v[0].last_failover(), d.v[1].last_failover()], [None, None], "a false alarm");
    let due = d.v[1].poll_timeout().expect("heartbeats");
    assert!(due > d.rig.nics[1][0].now(), "it has polled, and what was due is due still");
}

/// An end that polls seldom takes part in a recovery before its peer gives up.
#[test]
fn an_end_that_polls_seldom_answers_a_proposal() {
    let mut c = config();
    c.peer_timeout = Duration::from_millis(100);
    let mut d = Duo::new(2, c);
    d.turns(&[0, 1], 16);
    d.unplug(0, 0);
    for _ in 0..40 {
        d.turns(&[0], 400);
        d.turn(&[1]);
    }
    assert_eq!([d.v[0].close_reason(), d.v[1].close_reason()], [None, None]);
    assert_eq!([d.v[0].active_rail(), d.v[1].active_rail()], [1, 1]);
}

/// The same, if it never polls but attends.
#[test]
fn an_end_that_attends_seldom_answers_a_proposal() {
    let mut c = config();
    c.peer_timeout = Duration::from_millis(35);
    let mut d = Duo::new(2, c);
    d.turns(&[0, 1], 16);
    d.unplug(0, 0);
    for _ in 0..40 {
        d.turns(&[0], 400);
        d.v[1].progress();
    }
    assert_eq!([d.v[0].close_reason(), d.v[1].close_reason()], [None, None]);
    assert_eq!([d.v[0].active_rail(), d.v[1].active_rail()], [1, 1]);
}

/// What was posted behind a failure goes out when the end only attends, whether or not the last of it is signalled.
#[test]
fn an_end_that_only_attends_sends_what_waited_for_the_replay() {
    let mut d = Duo::new(2, config());
    d.turns(&[0, 1], 10);
    let unsignaled = |d: &mut Duo, i: u64| {
        let wr =
            SendWr::new(i, SendOp::Write(d.remote(1, i * 8)), inline(i + 1)).with_flags(SendFlags::empty());
        d.v[0].post_send(wr).expect("post");
    };
    d.unplug(0, 0);
    (0..5).for_each(|i| unsignaled(&mut d, i));
    for _ in 0..400 {
        d.v[0].progress();
        d.turn(&[1]);
    }
    assert_eq!(d.v[0].active_rail(), 1);
    (5..45).for_each(|i| unsignaled(&mut d, i));
    for _ in 0..400 {
        d.v[0].progress();
        d.turn(&[1]);
    }
    for i in 0..45 {
        assert_eq!(d.memory[1].load(i as usize * 8), i + 1, "operation {i} was not sent");
    }
}

/// The NICs of one host, in a domain; `resets`: whether a dead one can be reset.
fn nics(resets: bool) -> (Rig, Arc<Domain>) {
    let mut world = mitra_sim::Config::calm();
    world.capabilities.reset = resets;
    let rig = Rig::with(1, world, 2);
    let nics = rig.nics[0].iter().map(|n| Arc::clone(n) as Arc<dyn Provider>).collect();
    (rig, Domain::new(nics).expect("domain"))
}

/// Whether a rail's NIC has nothing left in the domain's protection domain.
fn is_empty(domain: &Domain, rail: usize) -> bool {
    let nic = &domain.nics()[rail];
    nic.provider.dealloc_pd(nic.pd).is_ok()
}

#[test]
fn a_dead_nic_does_not_keep_the_others_from_revoking() {
    let (mut rig, domain) = nics(false);
    let mr = domain.register(&Arc::new(Buffer::new(SIZE)), ALL).expect("register");
    let dead = rig.nics[0][0].id();
    rig.world.fail(dead, Failure::NicDead);
    assert!(matches!(domain.deregister(&mr), Err(Error::Unsupported(_))));
    assert!(is_empty(&domain, 1), "the memory is still registered with the NIC that lives");
}

/// Memory can be registered as long as one NIC lives, and connections over that one use it; the memory that was there before
/// keeps its name, and no other gets it.
#[test]
fn memory_is_registered_on_the_rails_that_live() {
    for dead in 0..2 {
        let mut d = Duo::new(2, config());
        d.turns(&[0, 1], 20);
        for h in 0..2 {
            let nic = d.rig.nics[h][dead].id();
            d.rig.world.fail(nic, Failure::NicDead);
        }
        d.turns(&[0, 1], 1200);
        assert_eq!([d.v[0].active_rail(), d.v[1].active_rail()], [1 - dead; 2]);
        let memory = [0, 1].map(|_| Arc::new(Buffer::new(4096)));
        let domains = [0, 1].map(|h: usize| Arc::clone(d.v[h].domain()));
        let mr = [0, 1].map(|h: usize| domains[h].register(&memory[h], ALL).expect("one NIC lives"));
        assert_ne!(mr[0].primary().lkey, d.mr[0].primary().lkey);
        d.v[0].import(&mr[1].remote()).expect("import");
        memory[0].store(8, 4711);
        d.send(0, 1, SendOp::Write(mr[1].remote().at(16)), Data::sge(mr[0].sge(8, 8)));
        d.v[1].post_recv(RecvWr::new(7, mr[1].sge(64, 8))).expect("post_recv");
        d.send(0, 2, SendOp::Send, inline(4712));
        d.turns(&[0, 1], 100);
        assert_eq!(d.outcome(0, 1, false), Some(Outcome::Success));
        assert_eq!((memory[1].load(16), memory[1].load(64)), (4711, 4712));
        domains[1].deregister(&mr[1]).expect("deregister");
        d.send(0, 3, SendOp::Write(mr[1].remote().at(16)), Data::sge(mr[0].sge(8, 8)));
        d.turns(&[0, 1], 100);
        assert_eq!(d.outcome(0, 3, false), Some(Outcome::Failed(WcStatus::RemoteAccess)));
        let last = d.rig.nics[0][1 - dead].id();
        d.rig.world.fail(last, Failure::NicDead);
        assert_eq!(domains[0].register(&memory[0], ALL).err(), Some(Error::DeviceFatal));
    }
}

/// The name that the next NIC gives may be one that the first gave before it died.
#[test]
fn no_two_regions_have_one_name() {
    let (mut rig, domain) = nics(true);
    let memory = Arc::new(Buffer::new(64));
    let dead = rig.nics[0][0].id();
    let before: Vec<_> = (0..64).map(|_| domain.register(&memory, ALL).expect("register")).collect();
    rig.world.fail(dead, Failure::NicDead);
    let behind: Vec<_> = (0..64).map(|_| domain.register(&memory, ALL).expect("register")).collect();
    let mut names: Vec<_> = before.iter().chain(&behind).map(|mr| mr.primary().lkey).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 128);
}

#[test]
fn what_cannot_be_made_whole_leaves_nothing_behind() {
    let (mut rig, domain) = nics(true);
    let dead = rig.nics[0][1].id();
    rig.world.fail(dead, Failure::NicDead);
    assert_eq!(VirtualQp::new(Arc::clone(&domain), config(), [1, 2]).err(), Some(Error::DeviceFatal));
    assert!(is_empty(&domain, 0), "queue pairs are left on the first rail");
}

/// The ends may be of different depths: a completion log has room for the peer's requests, or the ends say why they do not connect.
#[test]
fn a_log_is_as_deep_as_the_peer_needs() {
    let (_rig, domain) = nics(true);
    let end = |secret, send_wrs, completion_log_entries| {
        let config = Config { completion_log: true, send_wrs, completion_log_entries, ..config() };
        VirtualQp::new(Arc::clone(&domain), config, [secret, 9]).expect("make")
    };
    let info = |vqp: &VirtualQp| vqp.local_info().expect("it lives");
    let (mut deep, flat, other) = (end(1, 64, None), end(2, 8, None), end(3, 8, Some(64)));
    assert!(
        matches!(deep.connect(&info(&flat)), Err(Error::Invalid(why)) if why.contains("completion_log_entries"))
    );
    deep.connect(&info(&other)).expect("there is room");
}

/// The NIC has room for a rail's first queue pair, and none for the one of its control messages.
#[test]
fn half_a_rail_leaves_nothing_behind() {
    let (_rig, domain) = nics(true);
    let LocalNic { provider, pd, .. } = &domain.nics()[0];
    let cq = provider.create_cq(1, None).expect("cq");
    let cap = QpCap { send_wrs: 1, recv_wrs: 1, ..QpCap::default() };
    let (qp_type, pd) = (QpType::Rc, *pd);
    let init = QpInitAttr { qp_type, pd, send_cq: cq, recv_cq: cq, srq: None, cap, sq_sig_all: false };
    let mut all: Vec<_> = core::iter::from_fn(|| provider.create_qp(&init).ok()).collect();
    provider.destroy_qp(all.pop().expect("one")).expect("destroy");
    assert!(VirtualQp::new(Arc::clone(&domain), config(), [1, 2]).is_err());
    provider.create_qp(&init).expect("the rail's first queue pair is left");
}

/// What no rail would take is refused when it is posted, as a queue pair refuses it, and harms nothing else.
#[test]
fn what_no_rail_would_take_is_refused_at_once() {
    let mut d = Duo::new(2, config());
    let (to, own) = (d.remote(1, 0), d.mr[0].sge(0, 8));
    let (wide, long) = (d.mr[0].sge(0, 16), d.mr[0].sge(0, 1 << 31));
    let ah = UdDestination { ah: AhId(0), qpn: d.v[1].qpn(), qkey: 0 };
    for wr in [
        SendWr::new(1, SendOp::Read(to), inline(0)),
        SendWr::new(2, SendOp::FetchAdd { remote: to, add: 1 }, inline(0)),
        SendWr::new(3, SendOp::FetchAdd { remote: to, add: 1 }, Data::sge(wide)),
        SendWr::new(4, SendOp::CompareSwap { remote: to, compare: 0, swap: 1 }, Data::empty()),
        SendWr::new(5, SendOp::Write(to), Data::sge(long)),
        SendWr::new(6, SendOp::Write(to), Data::sge(own)).to(ah),
    ] {
        assert!(d.v[0].post_send(wr).is_err());
        d.turns(&[0, 1], 5);
        assert_eq!([d.v[0].close_reason(), d.v[1].close_reason()], [None, None]);
    }
    let many = RecvWr { wr_id: 1, sges: [own; 17].into_iter().collect() };
    assert!(d.v[0].post_recv(many).is_err(), "it is in the way of all receives behind it");
    assert!(d.v[0].post_recv(RecvWr { wr_id: 1, sges: [long; 2].into_iter().collect() }).is_err());
    d.recv(0, 2, 64);
    d.send(1, 9, SendOp::Send, inline(7));
    d.turns(&[0, 1], 400);
    assert_eq!(d.outcome(0, 2, true), Some(Outcome::Success));
    assert_eq!((d.v[0].outstanding(), d.got[0].len()), (0, 1));
}
