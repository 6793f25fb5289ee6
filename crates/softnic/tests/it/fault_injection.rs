//! Fault injection: failures of links and NICs at every stage, and noise.

use std::time::{Duration, Instant};

use crate::common::{
    Endpoint, LinkAttr, TIMEOUT, at, connect, connected_pair, connected_pair_with, loopback, open, pattern,
    sleep_until,
};
use mitra_softnic::fault::{Failure, Noise, Stage, Trigger};
use mitra_verbs::*;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// A connection that exhausts its retries early, with 16 ms per attempt and two retries. On a busy
/// machine, its requests can fail without a fault. Only tests whose requests must fail use it.
const FEW_RETRIES: LinkAttr = LinkAttr { mtu: Mtu::M1024, timeout: 12, retry_cnt: 2 };

fn pair_with_few_retries() -> (Endpoint, Endpoint) {
    connected_pair_with(loopback(), loopback(), FEW_RETRIES)
}

fn is_dead(end: &Endpoint) -> bool {
    end.nic.query_qp(end.qp) == Err(Error::DeviceFatal)
}

#[test]
fn retransmission_succeeds_after_link_recovers() {
    let (a, b) = connected_pair();
    a.post(1, SendOp::Write(b.mr.remote(0)), 0, 8);
    a.wait_success();
    b.nic.faults().fail(Failure::LinkDown);
    assert_eq!(b.nic.query_port().unwrap().state, PortState::Down);
    assert_eq!(next_event(&b), AsyncEvent::PortError);
    a.memory.store(0, 5);
    a.post(2, SendOp::Write(b.mr.remote(0)), 0, 8);
    // The first attempt is lost.
    sleep_until("the packet", || b.counter("fault_dropped") > 0);
    assert_eq!(b.memory.load(0), 0);
    b.nic.faults().heal();
    assert_eq!(b.nic.query_port().unwrap().state, PortState::Active);
    assert_eq!(next_event(&b), AsyncEvent::PortActive);
    // A retransmission succeeds.
    a.wait_success();
    assert_eq!(b.memory.load(0), 5);
}

fn next_event(end: &Endpoint) -> AsyncEvent {
    let fd = PollFd::new(end.nic.async_event_fd(), PollFlags::POLLIN);
    assert_eq!(poll(&mut [fd], PollTimeout::try_from(TIMEOUT).unwrap()).unwrap(), 1, "no event");
    loop {
        match end.nic.poll_async_event().expect("a readable descriptor has an event") {
            AsyncEvent::CommunicationEstablished(_) => continue,
            event => return event,
        }
    }
}

#[test]
fn link_that_stays_down_exhausts_retries() {
    let (a, b) = pair_with_few_retries();
    a.nic.faults().fail(Failure::LinkDown);
    a.post(1, SendOp::Write(b.mr.remote(0)), 0, 8);
    assert_eq!(a.wait_completion().status, WcStatus::RetryExceeded);
}

#[test]
fn dead_nic_rejects_calls_and_accesses_no_memory() {
    let (a, b) = connected_pair();
    b.post_recv(9, 0, 8);
    a.post(1, SendOp::Send, 0, 8);
    a.wait_success();
    b.nic.faults().fail(Failure::NicDead);
    assert_eq!(next_event(&b), AsyncEvent::DeviceFatal);
    a.memory.store(0, 5);
    a.post(2, SendOp::Write(b.mr.remote(64)), 0, 8);
    assert_eq!(a.wait_completion().status, WcStatus::RetryExceeded);
    assert_eq!(b.memory.load(64), 0);

    // Completions that the NIC wrote before the failure stay readable.
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
    assert!(is_dead(&b), "healing must not revive a dead NIC");
    assert_eq!(nic.reset(), Ok(()));
    assert_eq!(nic.poll_cq(b.cq, 8, &mut wcs), Err(dead));
}

#[test]
fn hung_nic_executes_packets_until_reset() {
    let (a, b) = connected_pair();
    // The poller takes the lease; the progress thread must drive the hung NIC nevertheless.
    let mut wcs = Vec::new();
    for _ in 0..1000 {
        b.nic.poll_cq(b.cq, 1, &mut wcs).unwrap();
    }
    b.nic.faults().fail(Failure::NicHung);
    assert!(is_dead(&b));
    a.memory.store(0, 5);
    a.post(1, SendOp::Write(b.mr.remote(0)), 0, 8);
    a.wait_success();
    assert_eq!(b.memory.load(0), 5);

    b.nic.reset().unwrap();
    a.memory.store(0, 6);
    a.post(2, SendOp::Write(b.mr.remote(0)), 0, 8);
    assert_eq!(a.wait_completion().status, WcStatus::RetryExceeded);
    assert_eq!(b.memory.load(0), 5);
}

#[test]
fn completions_written_before_reset_stay_readable() {
    let (a, b) = connected_pair();
    b.post_recv(7, 0, 8);
    a.post(1, SendOp::Send, 0, 8);
    a.wait_success();
    // The SEND is acknowledged, and its receive completion is not polled yet.
    b.nic.faults().fail(Failure::NicDead);
    b.nic.reset().unwrap();
    let mut wcs = Vec::new();
    assert_eq!(b.nic.poll_cq(b.cq, 8, &mut wcs), Ok(1));
    assert_eq!((wcs[0].wr_id, wcs[0].status), (7, WcStatus::Success));
    assert_eq!(b.nic.poll_cq(b.cq, 8, &mut wcs), Err(Error::DeviceFatal));
}

#[test]
fn address_is_free_after_reset() {
    let (a, b) = pair_with_few_retries();
    let ip = b.ip();
    b.nic.reset().unwrap();
    assert!(is_dead(&b));
    let replacement = Endpoint::new(open(at(ip)));
    a.nic.modify_qp(a.qp, &QpAttr::to(QpState::Reset)).unwrap();
    connect(&a, &replacement, LinkAttr::default());
    a.post(1, SendOp::Write(replacement.mr.remote(0)), 0, 8);
    a.wait_success();
}

/// Sends a WRITE of five packets, during which a trigger fires at one end. Checks that exactly
/// `executed` packets are in memory, and that the requester gets no successful completion.
fn check_trigger_during_write(trigger: Trigger, at_requester: bool, executed: usize) {
    let (a, b) = connected_pair_with(loopback(), loopback(), MTU_1024);
    let first = b.nic.query_qp(b.qp).unwrap().rq_psn;
    let failing = if at_requester { &a } else { &b };
    failing.nic.faults().arm(trigger);
    a.fill(0, FIVE_PACKETS, 9);
    a.post(1, SendOp::Write(b.mr.remote(0)), 0, FIVE_PACKETS as u32);
    sleep_until("the failure", || match trigger.failure {
        Failure::LinkDown => failing.nic.query_port().unwrap().state == PortState::Down,
        _ => is_dead(failing),
    });
    // Packets that were in flight at the failure still arrive.
    sleep_until("the packets", || match b.nic.query_qp(b.qp) {
        Ok(status) => status.rq_psn.distance(first) as usize == executed,
        Err(_) => true,
    });
    let placed = executed * MTU_1024.mtu.bytes();
    assert_eq!(b.bytes(0, placed), pattern(FIVE_PACKETS, 9)[..placed], "{trigger:?}");
    assert!(b.bytes(placed, FIVE_PACKETS - placed).iter().all(|&byte| byte == 0), "{trigger:?}");
    if !is_dead(&a) {
        a.nic.modify_qp(a.qp, &QpAttr::to(QpState::Err)).unwrap();
        assert_ne!(a.wait_completion().status, WcStatus::Success, "{trigger:?}");
    }
}

/// The length of a WRITE of five packets on [`MTU_1024`], in bytes.
const FIVE_PACKETS: usize = 5 * 1024;
const MTU_1024: LinkAttr = LinkAttr { mtu: Mtu::M1024, timeout: 14, retry_cnt: 7 };

#[test]
fn failure_at_each_stage_leaves_exact_prefix_executed() {
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
            check_trigger_during_write(Trigger { stage, nth, failure }, at_requester, executed);
        }
    }
}

#[test]
fn deferred_write_is_lost_if_nic_dies() {
    let (a, b) = connected_pair();
    b.nic.faults().arm(Trigger { stage: Stage::NotPlaced, nth: 2, failure: Failure::NicDead });
    for i in 1..=2 {
        a.memory.store(0, i);
        a.post(i, SendOp::Write(b.mr.remote(0)), 0, 8);
        a.wait_success();
    }
    sleep_until("the failure", || is_dead(&b));
    assert_eq!(b.memory.load(0), 1, "the second write was placed");
}

#[test]
fn deferred_writes_are_visible_to_nic_and_placed_after_heal() {
    let nic = open(loopback());
    let channel = nic.create_completion_channel().unwrap();
    let cq = nic.create_cq(64, Some(&channel)).unwrap();
    let b = Endpoint::with(nic, std::sync::Arc::new(Buffer::new(crate::common::MEMORY_SIZE)), cq);
    let a = Endpoint::new(open(loopback()));
    connect(&a, &b, LinkAttr::default());
    b.nic.req_notify_cq(cq, false).unwrap();
    b.post_recv(5, 64, 8);
    b.nic.faults().fail(Failure::NotPlaced);
    a.memory.store(0, 5);
    a.post(1, SendOp::Write(b.mr.remote(0)), 0, 8);
    a.post(2, SendOp::FetchAdd { remote: b.mr.remote(0), add: 2 }, 8, 8);
    a.post(3, SendOp::Read(b.mr.remote(0)), 16, 8);
    a.post(4, SendOp::Send, 0, 8);
    for _ in 0..4 {
        a.wait_success();
    }
    // The NIC applies deferred writes to its own reads. The host sees no data, no completion and no
    // event.
    assert_eq!((a.memory.load(8), a.memory.load(16)), (5, 7));
    assert_eq!((b.memory.load(0), b.memory.load(64)), (0, 0));
    assert_eq!(b.nic.poll_cq(cq, 8, &mut Vec::new()), Ok(0));
    assert_eq!(channel.next_event(), Ok(None));

    b.nic.faults().heal();
    assert_eq!((b.memory.load(0), b.memory.load(64)), (7, 5));
    assert_eq!(b.wait_success().wr_id, 5);
    assert_eq!(channel.next_event(), Ok(Some(cq)));
}

#[test]
fn qp_error_state_places_deferred_writes() {
    let (a, b) = connected_pair();
    b.nic.faults().fail(Failure::NotPlaced);
    a.memory.store(0, 5);
    a.post(1, SendOp::Write(b.mr.remote(0)), 0, 8);
    a.wait_success();
    assert_eq!(b.memory.load(0), 0);
    b.post_recv(7, 0, 8);
    b.nic.modify_qp(b.qp, &QpAttr::to(QpState::Err)).unwrap();
    assert_eq!(b.memory.load(0), 5);
    // The transition to ERR flushes the receive, and the host sees the completion.
    assert_eq!((b.wait_completion().wr_id, a.nic.query_qp(a.qp).unwrap().state), (7, QpState::Rts));
}

#[test]
fn noisy_link_executes_operations_exactly_once() {
    let (a, b) =
        connected_pair_with(loopback(), loopback(), LinkAttr { mtu: Mtu::M1024, ..LinkAttr::default() });
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
            a.wait_success();
        }
        assert_eq!(b.bytes(0, len), pattern(len, seed));
        assert_eq!(a.bytes(100_000, len), pattern(len, seed));
        assert_eq!(a.memory.load(700_000), adds - 1);
        for i in sends - 4..sends {
            let wc = b.wait_success();
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
    a.wait_success();
}
