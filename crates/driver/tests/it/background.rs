//! vQPs that the background thread drives.

use std::time::Duration;

use mitra_driver::{DrivenQp, Driver};
use mitra_failover::{CloseReason, Completion, Config, VirtualQp};
use mitra_softnic::fault::Failure;
use mitra_verbs::{Data, RecvWr, SendOp, SendWr};

use crate::common::Host;

fn connect([a, b]: [&Host; 2], driver: &Driver) -> [DrivenQp; 2] {
    connect_with([a, b], driver, Config::default())
}

fn connect_with([a, b]: [&Host; 2], driver: &Driver, config: Config) -> [DrivenQp; 2] {
    let ends =
        [a, b].map(|host| driver.serve(VirtualQp::builder(&host.domain).config(config)).expect("a free vQP"));
    let infos = ends.each_ref().map(|end| end.lock().local_info());
    ends[0].lock().connect(&infos[1]).expect("the ends match");
    ends[1].lock().connect(&infos[0]).expect("the ends match");
    ends[0].lock().import(&b.region()).expect("the vQP is connected");
    ends
}

#[test]
fn passive_end_survives_failure_without_being_polled() {
    for fail_passive in [false, true] {
        let (active, passive) = (Host::open(), Host::open());
        let driver = Driver::start().expect("a free thread");
        let served = driver.serve(VirtualQp::builder(&passive.domain)).expect("a free vQP");
        let mut vqp = VirtualQp::builder(&active.domain).build().expect("a free vQP");
        let info = served.lock().local_info();
        served.lock().connect(&vqp.local_info()).expect("the ends match");
        vqp.connect(&info).expect("the ends match");
        vqp.import(&passive.region()).expect("the vQP is connected");
        let mut completions: Vec<Completion> = Vec::new();
        for i in 0..200 {
            if i == 100 {
                let failed = if fail_passive { &passive } else { &active };
                failed.nics[0].faults().fail(Failure::LinkDown);
            }
            vqp.post_send(active.add(i, &passive.region())).expect("the vQP is open");
            while completions.len() as u64 <= i {
                vqp.poll(&mut completions);
            }
            completions[i as usize].into_result().expect("each addition is executed");
        }
        assert_eq!(passive.memory.load(0), 200);
        assert_eq!(vqp.last_failover().map(|report| (report.from, report.to)), Some((0, 1)));
    }
}

/// The NIC of rail 0 is dead at one end or at both ends. The ends are made and reset nevertheless.
#[test]
fn vqps_are_made_on_the_rails_that_are_left() {
    for both in [false, true] {
        let (a, b) = (Host::open(), Host::open());
        let driver = Driver::start().expect("a free thread");
        a.nics[0].faults().fail(Failure::NicDead);
        if both {
            b.nics[0].faults().fail(Failure::NicDead);
        }
        let ends = connect([&a, &b], &driver);
        ends[0].lock().post_send(a.add(1, &b.region())).expect("the vQP is open");
        let mut completions = Vec::new();
        ends[0].wait(&mut completions).expect("the vQP stays open");
        completions[0].into_result().expect("the addition is executed");
        let numbers = ends.each_ref().map(|end| end.lock().qpn());
        let replaced = ends.each_ref().map(|end| end.lock().reset_replacement().expect("a rail is left"));
        assert_eq!(replaced.each_ref().map(VirtualQp::qpn), numbers);
        assert_eq!(b.memory.load(0), 1);
    }
}

/// No end polls, and heartbeats are off: only events and timers drive the ends.
#[test]
fn both_ends_wait_while_rail_fails() {
    let (a, b) = (Host::open(), Host::open());
    let driver = Driver::start().expect("a free thread");
    let mut config = Config::default();
    config.detector.max_missed_heartbeats = 0;
    let ends = connect_with([&a, &b], &driver, config);
    let mut completions = Vec::new();
    for i in 0..500 {
        if i == 250 {
            a.nics[0].faults().fail(Failure::NicDead);
        }
        ends[0].lock().post_send(a.add(i, &b.region())).expect("the vQP is open");
        ends[0].wait(&mut completions).expect("the vQP stays open");
        completions[i as usize].into_result().expect("each addition is executed");
    }
    assert_eq!(b.memory.load(0), 500);
}

#[test]
fn messages_wake_receiver() {
    let (a, b) = (Host::open(), Host::open());
    let driver = Driver::start().expect("a free thread");
    let [sender, receiver] = connect([&a, &b], &driver);
    for i in 0..64 {
        receiver.lock().post_recv(RecvWr::new(i, b.mr.sge(i * 8, 8))).expect("the queue has room");
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..64_u64 {
                let data = Data::inline(&(1000 + i).to_ne_bytes());
                sender.lock().post_send(SendWr::new(i, SendOp::Send, data)).expect("the vQP is open");
            }
        });
        let mut received = Vec::new();
        while received.len() < 64 {
            receiver.wait(&mut received).expect("the vQP stays open");
        }
        assert!(received.iter().map(|c| c.wr_id).eq(0..64));
    });
    assert!((0..64).all(|i| b.memory.load(i * 8) == 1000 + i as u64));
}

#[test]
fn end_of_peer_wakes_both_waits() {
    let (a, b) = (Host::open(), Host::open());
    let driver = Driver::start().expect("a free thread");
    let [ending, waiting] = connect([&a, &b], &driver);
    assert_eq!(waiting.wait_timeout(&mut Vec::new(), Duration::from_millis(1)), Ok(0));
    std::thread::scope(|scope| {
        let closed = scope.spawn(|| waiting.wait_closed());
        let waited = scope.spawn(|| waiting.wait(&mut Vec::new()));
        drop(ending);
        assert_eq!(closed.join().expect("no panic"), CloseReason::PeerClosed);
        assert_eq!(waited.join().expect("no panic"), Err(CloseReason::PeerClosed));
    });
}

#[test]
fn local_shutdown_wakes_waiting_thread() {
    let (a, b) = (Host::open(), Host::open());
    let driver = Driver::start().expect("a free thread");
    let mut config = Config::default();
    config.detector.max_missed_heartbeats = 0;
    let [ending, _peer] = connect_with([&a, &b], &driver, config);
    std::thread::scope(|scope| {
        let closed = scope.spawn(|| ending.wait_closed());
        // Most probably the thread waits by then. Without heartbeats, only the guard wakes it.
        std::thread::sleep(Duration::from_millis(100));
        ending.lock().shutdown();
        assert_eq!(closed.join().expect("no panic"), CloseReason::Closed);
    });
}

#[test]
fn dropped_vqps_are_forgotten() {
    let (a, b) = (Host::open(), Host::open());
    let driver = Driver::start().expect("a free thread");
    let ends = connect([&a, &b], &driver);
    assert!(format!("{driver:?}").contains("(2 virtual"));
    drop(ends);
    assert!(format!("{driver:?}").contains("(0 virtual"));
}

/// The thread lives as long as a vQP, and ends with the last vQP.
#[test]
fn vqps_outlive_their_driver() {
    let (a, b) = (Host::open(), Host::open());
    let driver = Driver::start().expect("a free thread");
    let pairs: Vec<_> = (0..8).map(|_| connect([&a, &b], &driver)).collect();
    drop(driver);
    for (i, [active, _]) in (0..).zip(&pairs) {
        let mut completions = Vec::new();
        active.lock().post_send(a.add(i, &b.region())).expect("the vQP is open");
        active.wait(&mut completions).expect("the vQP stays open");
        completions[0].into_result().expect("the addition is executed");
    }
    assert_eq!(b.memory.load(0), 8);
}

/// The address of a NIC changes at one end and then at the other, on the active rail and on the
/// standby rail.
#[test]
fn rails_follow_changes_of_addresses() {
    let (a, b) = (Host::open(), Host::open());
    let driver = Driver::start().expect("a free thread");
    let ends = connect([&a, &b], &driver);
    let mut completions = Vec::new();
    for i in 0..400_u64 {
        if i % 100 == 50 {
            let host = [&a, &b][(i / 100 % 2) as usize];
            let nic = &host.nics[ends[0].lock().active_rail()];
            let free = mitra_softnic::SoftNic::open(mitra_softnic::Config::loopback())
                .expect("a free address")
                .address();
            nic.change_address(free).expect("the address is free");
        }
        ends[0].lock().post_send(a.add(i, &b.region())).expect("the vQP is open");
        while completions.len() as u64 <= i {
            ends[0].wait(&mut completions).expect("the vQP stays open");
        }
        completions[i as usize].into_result().expect("each addition is executed");
    }
    assert_eq!(b.memory.load(0), 400);
    assert!(a.domain.activity().failovers >= 4);
}

/// Linux lets no more than 500 instances of epoll inside another one watch the descriptor of a
/// NIC's asynchronous events. The thread tells each vQP of these events: nothing is posted and
/// heartbeats are off, so the last vQP would otherwise stay on the failed rail.
#[test]
fn one_driver_serves_many_vqps_over_the_same_nics() {
    let (host, peer) = (Host::open(), Host::open());
    let driver = Driver::start().expect("a free thread");
    let mut config = Config { send_wrs: 4, recv_wrs: 4, ..Config::default() };
    config.detector.max_missed_heartbeats = 0;
    let serve = |_| driver.serve(VirtualQp::builder(&host.domain).config(config)).expect("a free vQP");
    let _unconnected: Vec<DrivenQp> = (0..520).map(serve).collect();
    let [end, _peer_end] = connect_with([&host, &peer], &driver, config);
    host.nics[0].faults().fail(Failure::LinkDown);
    while end.lock().active_rail() == 0 {
        std::thread::yield_now();
    }
    end.lock().post_send(host.add(1, &peer.region())).expect("the vQP is open");
    let mut completions = Vec::new();
    end.wait(&mut completions).expect("the vQP stays open");
    completions[0].into_result().expect("the addition is executed");
    assert_eq!(peer.memory.load(0), 1);
}
