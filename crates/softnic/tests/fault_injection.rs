//! Faults on demand: links, NICs and noise, at every stage.

mod common;

use std::time::{Duration, Instant};

use common::{End, Link, PATIENCE, asleep_until, connect, open, pair, pair_of, pattern};
use mitra_softnic::Config;
use mitra_softnic::fault::{Failure, Noise, Stage, Trigger};
use mitra_verbs::*;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Gives up soon: 16 ms per attempt. Not for requests that must succeed, on a busy machine.
const BRIEF: Link = Link { mtu: Mtu::M1024, timeout: 12, retry_cnt: 2 };

fn brief_pair() -> (End, End) {
    pair_of(Config::loopback(), Config::loopback(), BRIEF)
}

fn is_dead(end: &End) -> bool {
    end.nic.query_qp(end.qp) == Err(Error::DeviceFatal)
}

#[test]
fn a_link_goes_down_and_comes_up() {
    let (a, b) = pair();
    a.post(1, SendOp::Write(b.mr.remote(0)), 0, 8);
    a.success();
    b.nic.faults().fail(Failure::LinkDown);
    assert_eq!(b.nic.query_port().unwrap().state, PortState::Down);
    assert_eq!(next_event(&b), AsyncEvent::PortError);
    a.memory.store(0, 5);
    a.post(2, SendOp::Write(b.mr.remote(0)), 0, 8);
    // Time enough for the first attempt to get lost.
    asleep_until("the packet", || b.counter("fault_dropped") > 0);
    assert_eq!(b.memory.load(0), 0);
    b.nic.faults().heal();
    assert_eq!(b.nic.query_port().unwrap().state, PortState::Active);
    assert_eq!(next_event(&b), AsyncEvent::PortActive);
    // The retransmission gets through.
    a.success();
    assert_eq!(b.memory.load(0), 5);
}

fn next_event(end: &End) -> AsyncEvent {
    let fd = PollFd::new(end.nic.async_event_fd(), PollFlags::POLLIN);
    assert_eq!(poll(&mut [fd], PollTimeout::try_from(PATIENCE).unwrap()).unwrap(), 1, "no event");
    loop {
        match end.nic.poll_async_event().expect("an event waits") {
            AsyncEvent::CommunicationEstablished(_) => continue,
            event => return event,
        }
    }
}

#[test]
fn a_link_that_stays_down_exhausts_the_retries() {
    let (a, b) = brief_pair();
    a.nic.faults().fail(Failure::LinkDown);
    a.post(1, SendOp::Write(b.mr.remote(0)), 0, 8);
    assert_eq!(a.completion().status, WcStatus::RetryExceeded);
}

#[test]
fn a_dead_nic_answers_nobody_and_touches_nothing() {
    let (a, b) = pair();
    b.post_recv(9, 0, 8);
    a.post(1, SendOp::Send, 0, 8);
    a.success();
    b.nic.faults().fail(Failure::NicDead);
    assert_eq!(next_event(&b), AsyncEvent::DeviceFatal);
    a.memory.store(0, 5);
    a.post(2, SendOp::Write(b.mr.remote(64)), 0, 8);
    assert_eq!(a.completion().status, WcStatus::RetryExceeded);
    assert_eq!(b.memory.load(64), 0);

    // What was written before the death can be read.
    let mut wcs = Vec::new();
    assert_eq!(b.nic.poll_cq(b.cq, 8, &mut wcs), Ok(1));
    assert_eq!(wcs[0].wr_id, 9);
    assert_eq!(b.nic.poll_cq(b.cq, 8, &mut wcs), Ok(0));

    let dead = Error::DeviceFatal;
    let nic = &b.nic;
    assert_eq!(nic.query_port().unwrap_err(), dead);
    assert_eq!(nic.alloc_pd().unwrap_err(), dead);
    assert_eq!(nic.dereg_mr(b.mr.id).unwrap_err(), dead);
    assert_eq!(nic.create_cq(1, None).unwrap_err(), dead);
    assert!(nic.create_completion_channel().is_err());
    assert_eq!(nic.req_notify_cq(b.cq, false).unwrap_err(), dead);
    assert_eq!(nic.modify_qp(b.qp, &QpAttr::to(QpState::Err)).unwrap_err(), dead);
    assert_eq!(nic.saved_results(b.qp).unwrap_err(), dead);
    let refused = nic.post_recv(b.qp, &[RecvWr::new(1, b.mr.sge(0, 8))]).unwrap_err();
    assert_eq!((refused.index, refused.error), (0, dead.clone()));
    nic.faults().heal();
    assert!(is_dead(&b), "nothing brings a NIC back");
    assert_eq!(nic.reset(), Ok(()));
    assert_eq!(nic.poll_cq(b.cq, 8, &mut wcs), Err(dead));
}

#[test]
fn a_hung_nic_goes_on_without_its_host_until_it_is_reset() {
    let (a, b) = pair();
    // Its poller had the lease: the thread must take over.
    let mut wcs = Vec::new();
    for _ in 0..1000 {
        b.nic.poll_cq(b.cq, 1, &mut wcs).unwrap();
    }
    b.nic.faults().fail(Failure::NicHung);
    assert!(is_dead(&b));
    a.memory.store(0, 5);
    a.post(1, SendOp::Write(b.mr.remote(0)), 0, 8);
    a.success();
    assert_eq!(b.memory.load(0), 5);

    b.nic.reset().unwrap();
    a.memory.store(0, 6);
    a.post(2, SendOp::Write(b.mr.remote(0)), 0, 8);
    assert_eq!(a.completion().status, WcStatus::RetryExceeded);
    assert_eq!(b.memory.load(0), 5);
}

#[test]
fn completions_that_were_written_outlive_the_reset() {
    let (a, b) = pair();
    b.post_recv(7, 0, 8);
    a.post(1, SendOp::Send, 0, 8);
    a.success();
    // Acknowledged, so received; nobody has polled for it.
    b.nic.faults().fail(Failure::NicDead);
    b.nic.reset().unwrap();
    let mut wcs = Vec::new();
    assert_eq!(b.nic.poll_cq(b.cq, 8, &mut wcs), Ok(1));
    assert_eq!((wcs[0].wr_id, wcs[0].status), (7, WcStatus::Success));
    assert_eq!(b.nic.poll_cq(b.cq, 8, &mut wcs), Err(Error::DeviceFatal));
}

#[test]
fn after_a_reset_the_address_is_free() {
    let (a, b) = brief_pair();
    let ip = b.ip();
    b.nic.reset().unwrap();
    assert!(is_dead(&b));
    let reborn = End::new(open(Config::at(ip)));
    a.nic.modify_qp(a.qp, &QpAttr::to(QpState::Reset)).unwrap();
    connect(&a, &reborn, Link::default());
    a.post(1, SendOp::Write(reborn.mr.remote(0)), 0, 8);
    a.success();
}

/// A WRITE of five packets meets a failure. Waits until that has struck and `executed` packets were executed, and checks that
/// these are in memory, that no others are, and that the requester does not know.
fn strikes(trigger: Trigger, at_requester: bool, executed: usize) {
    let (a, b) = pair_of(Config::loopback(), Config::loopback(), FIVE_PACKETS);
    let first = b.nic.query_qp(b.qp).unwrap().rq_psn;
    let struck = if at_requester { &a } else { &b };
    struck.nic.faults().arm(trigger);
    a.fill(0, FIVE, 9);
    a.post(1, SendOp::Write(b.mr.remote(0)), 0, FIVE as u32);
    asleep_until("the failure", || match trigger.failure {
        Failure::LinkDown => struck.nic.query_port().unwrap().state == PortState::Down,
        _ => is_dead(struck),
    });
    // What was on the way when the failure struck still arrives.
    asleep_until("the packets", || match b.nic.query_qp(b.qp) {
        Ok(status) => status.rq_psn.distance(first) as usize == executed,
        Err(_) => true,
    });
    let placed = executed * FIVE_PACKETS.mtu.bytes();
    assert_eq!(b.bytes(0, placed), pattern(FIVE, 9)[..placed], "{trigger:?}");
    assert!(b.bytes(placed, FIVE - placed).iter().all(|&byte| byte == 0), "{trigger:?}");
    if !is_dead(&a) {
        a.nic.modify_qp(a.qp, &QpAttr::to(QpState::Err)).unwrap();
        assert_ne!(a.completion().status, WcStatus::Success, "{trigger:?}");
    }
}

const FIVE: usize = 5 * 1024;
const FIVE_PACKETS: Link = Link { mtu: Mtu::M1024, timeout: 14, retry_cnt: 7 };

#[test]
fn failures_at_every_stage() {
    for failure in [Failure::LinkDown, Failure::NicDead] {
        for (stage, nth, at_requester, executed) in [
            (Stage::Posted, 1, true, 0),
            (Stage::RequestOnWire, 3, true, 2),
            (Stage::Arrived, 3, false, 2),
            (Stage::PartlyExecuted, 3, false, 3),
            (Stage::Executed, 1, false, 5),
            (Stage::AckOnWire, 1, false, 5),
            (Stage::Acknowledged, 1, true, 5),
        ] {
            strikes(Trigger { stage, nth, failure }, at_requester, executed);
        }
    }
}

#[test]
fn acknowledged_but_not_placed_is_lost_when_the_nic_dies() {
    let (a, b) = pair();
    b.nic.faults().arm(Trigger { stage: Stage::NotPlaced, nth: 2, failure: Failure::NicDead });
    for i in 1..=2 {
        a.memory.store(0, i);
        a.post(i, SendOp::Write(b.mr.remote(0)), 0, 8);
        a.success();
    }
    asleep_until("the death", || is_dead(&b));
    assert_eq!(b.memory.load(0), 1, "the second was acknowledged, and is lost");
}

#[test]
fn what_is_held_back_is_seen_through_the_nic_and_placed_when_healthy() {
    let nic = open(Config::loopback());
    let channel = nic.create_completion_channel().unwrap();
    let cq = nic.create_cq(64, Some(&channel)).unwrap();
    let b = End::with(nic, std::sync::Arc::new(Buffer::new(common::MEMORY)), cq);
    let a = End::new(open(Config::loopback()));
    connect(&a, &b, Link::default());
    b.nic.req_notify_cq(cq, false).unwrap();
    b.post_recv(5, 64, 8);
    b.nic.faults().fail(Failure::NotPlaced);
    a.memory.store(0, 5);
    a.post(1, SendOp::Write(b.mr.remote(0)), 0, 8);
    a.post(2, SendOp::FetchAdd { remote: b.mr.remote(0), add: 2 }, 8, 8);
    a.post(3, SendOp::Read(b.mr.remote(0)), 16, 8);
    a.post(4, SendOp::Send, 0, 8);
    for _ in 0..4 {
        a.success();
    }
    // The NIC sees its own writes; the host sees neither data nor completion nor event.
    assert_eq!((a.memory.load(8), a.memory.load(16)), (5, 7));
    assert_eq!((b.memory.load(0), b.memory.load(64)), (0, 0));
    assert_eq!(b.nic.poll_cq(cq, 8, &mut Vec::new()), Ok(0));
    assert_eq!(channel.next_event(), Ok(None));

    b.nic.faults().heal();
    assert_eq!((b.memory.load(0), b.memory.load(64)), (7, 5));
    assert_eq!(b.success().wr_id, 5);
    assert_eq!(channel.next_event(), Ok(Some(cq)));
}

#[test]
fn a_fence_places_what_was_held_back() {
    let (a, b) = pair();
    b.nic.faults().fail(Failure::NotPlaced);
    a.memory.store(0, 5);
    a.post(1, SendOp::Write(b.mr.remote(0)), 0, 8);
    a.success();
    assert_eq!(b.memory.load(0), 0);
    b.post_recv(7, 0, 8);
    b.nic.modify_qp(b.qp, &QpAttr::to(QpState::Err)).unwrap();
    assert_eq!(b.memory.load(0), 5);
    // The fence flushes, and what it flushes is seen.
    assert_eq!((b.completion().wr_id, a.nic.query_qp(a.qp).unwrap().state), (7, QpState::Rts));
}

#[test]
fn a_noisy_rail_delivers_exactly_once() {
    let (a, b) = pair_of(Config::loopback(), Config::loopback(), Link { mtu: Mtu::M1024, ..Link::default() });
    let noise = Noise {
        drop_ppm: 25_000,
        duplicate_ppm: 25_000,
        reorder_ppm: 25_000,
        corrupt_ppm: 25_000,
        max_delay: Duration::from_micros(300),
    };
    a.nic.faults().set_noise(noise, noise);
    let started = Instant::now();
    let (mut adds, mut sends) = (0, 0);
    let mut round: u64 = 0;
    while round < 400 && started.elapsed() < Duration::from_secs(4) {
        let len = (round as usize * 977) % 20_000;
        let seed = round as u8;
        a.fill(0, len, seed);
        for _ in 0..4 {
            b.post_recv(sends, 400_000 + sends % 128 * 8, 8);
            a.memory.store(600_000 + 8 * (sends % 128) as usize, sends);
            a.post(1, SendOp::Send, 600_000 + 8 * (sends % 128), 8);
            sends += 1;
            a.post(2, SendOp::FetchAdd { remote: b.mr.remote(700_000), add: 1 }, 700_000, 8);
            adds += 1;
        }
        a.post(3, SendOp::Write(b.mr.remote(0)), 0, len as u32);
        a.post(4, SendOp::Read(b.mr.remote(0)), 100_000, len as u32);
        for _ in 0..10 {
            a.success();
        }
        assert_eq!(b.bytes(0, len), pattern(len, seed));
        assert_eq!(a.bytes(100_000, len), pattern(len, seed));
        assert_eq!(a.memory.load(700_000), adds - 1);
        for i in sends - 4..sends {
            let wc = b.success();
            assert_eq!(wc.wr_id, i);
            assert_eq!(b.memory.load(400_000 + 8 * (i % 128) as usize), i);
        }
        round += 1;
    }
    assert_eq!(b.memory.load(700_000), adds);
    for name in
        ["fault_dropped", "fault_duplicated", "fault_delayed", "fault_corrupted", "retransmitted_packets"]
    {
        assert!(a.counter(name) > 0, "{name} after {round} rounds");
    }
    a.nic.faults().set_noise(Noise::default(), Noise::default());
    a.post(1, SendOp::Write(b.mr.remote(0)), 0, 8);
    a.success();
}
