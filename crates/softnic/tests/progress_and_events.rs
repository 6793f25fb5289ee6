//! Who drives the NIC: the poller, the progress thread, and the hand-over between them.

mod common;

use std::os::fd::AsFd;
use std::sync::Arc;

use common::{End, Link, PATIENCE, asleep_until, connect, open, pair, until};
use mitra_softnic::Config;
use mitra_verbs::*;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

fn wait_readable(fd: &impl AsFd) {
    let timeout = PollTimeout::try_from(PATIENCE).unwrap();
    let ready = poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], timeout).unwrap();
    assert_eq!(ready, 1, "nothing came");
}

fn readable(fd: &impl AsFd) -> bool {
    poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() == 1
}

/// Two ends; the second one's completion queue has a channel.
fn with_channel() -> (End, End, Arc<dyn CompletionChannel>) {
    let nic = open(Config::loopback());
    let channel = nic.create_completion_channel().unwrap();
    let cq = nic.create_cq(64, Some(&channel)).unwrap();
    let b = End::with(nic, Arc::new(Buffer::new(common::MEMORY)), cq);
    let a = End::new(open(Config::loopback()));
    connect(&a, &b, Link::default());
    (a, b, channel)
}

#[test]
fn a_passive_process_is_read_and_written() {
    let (a, b) = pair();
    // Nobody polls at b, ever.
    b.memory.store(64, 77);
    for i in 0..100 {
        a.memory.store(0, i);
        a.post(1, SendOp::Write(b.mr.remote(0)), 0, 8);
        a.post(2, SendOp::FetchAdd { remote: b.mr.remote(8), add: 3 }, 8, 8);
        a.post(3, SendOp::Read(b.mr.remote(64)), 16, 8);
        for _ in 0..3 {
            a.success();
        }
        assert_eq!((b.memory.load(0), a.memory.load(8), a.memory.load(16)), (i, i * 3, 77));
    }
}

#[test]
fn nobody_polls_and_data_arrives() {
    let (a, b) = pair();
    // Requests without completions, from a thread that then looks elsewhere.
    for i in 1..=50_u64 {
        a.nic
            .post_send(
                a.qp,
                &[SendWr::new(i, SendOp::Write(b.mr.remote(0)), Data::inline(&i.to_ne_bytes()))
                    .with_flags(SendFlags::empty())],
            )
            .unwrap();
        asleep_until("the write", || b.memory.load(0) == i);
    }
}

#[test]
fn when_a_poller_stops_the_thread_takes_over() {
    let (a, b) = pair();
    for i in 1..=20_u64 {
        // b polls long enough to take the lease, then stops.
        let mut wcs = Vec::new();
        for _ in 0..2000 {
            assert_eq!(b.nic.poll_cq(b.cq, 1, &mut wcs).unwrap(), 0);
        }
        a.memory.store(0, i);
        a.post(i, SendOp::Write(b.mr.remote(0)), 0, 8);
        a.success();
        assert_eq!(b.memory.load(0), i);
    }
}

#[test]
fn a_channel_wakes_who_waits() {
    let (a, b) = {
        let nic = open(Config::loopback());
        let channel = nic.create_completion_channel().unwrap();
        let cq = nic.create_cq(64, Some(&channel)).unwrap();
        let b = End::with(nic, Arc::new(Buffer::new(common::MEMORY)), cq);
        let a = End::new(open(Config::loopback()));
        connect(&a, &b, Link::default());
        ((a, ()), (b, channel))
    };
    let ((a, ()), (b, channel)) = (a, b);
    for i in 0..50 {
        b.post_recv(i, 0, 8);
        b.nic.req_notify_cq(b.cq, false).unwrap();
        assert!(!readable(&channel));
        // Every other time b polls itself into the lease first: arming gives it up.
        if i % 2 == 0 {
            let mut wcs = Vec::new();
            for _ in 0..1000 {
                assert_eq!(b.nic.poll_cq(b.cq, 1, &mut wcs).unwrap(), 0);
            }
        }
        a.post(i, SendOp::Send, 0, 8);
        wait_readable(&channel);
        assert_eq!(channel.next_event().unwrap(), Some(b.cq));
        assert_eq!(channel.next_event().unwrap(), None);
        assert!(!readable(&channel));
        assert_eq!(b.success().wr_id, i);
        a.success();
        // Not armed again: no event.
        b.post_recv(i, 0, 8);
        a.post(i, SendOp::Send, 0, 8);
        a.success();
        until("the receive", || b.nic.query_qp(b.qp).is_ok() && b.success().wr_id == i);
        assert!(!readable(&channel));
    }
}

#[test]
fn arming_after_polling_gives_the_lease_up() {
    let (a, b, channel) = with_channel();
    for i in 0..50 {
        b.post_recv(i, 0, 8);
        let mut wcs = Vec::new();
        for _ in 0..1000 {
            assert_eq!(b.nic.poll_cq(b.cq, 1, &mut wcs).unwrap(), 0);
        }
        b.nic.req_notify_cq(b.cq, false).unwrap();
        a.post(i, SendOp::Send, 0, 8);
        wait_readable(&channel);
        assert_eq!(channel.next_event().unwrap(), Some(b.cq));
        b.success();
        a.success();
    }
}

#[test]
fn solicited_events_only_when_asked() {
    let (a, b, channel) = with_channel();
    b.nic.req_notify_cq(b.cq, true).unwrap();
    b.post_recv(1, 0, 8);
    b.post_recv(2, 0, 8);
    a.post(1, SendOp::Send, 0, 8);
    a.success();
    b.success();
    assert!(!readable(&channel));
    let wr = SendWr::new(2, SendOp::Send, Data::empty());
    a.nic.post_send(a.qp, &[wr.with_flags(SendFlags::SOLICITED | SendFlags::SIGNALED)]).unwrap();
    wait_readable(&channel);
    b.success();
}

/// Nothing acknowledges a datagram: it completes when it has left, and that is an event like any other.
#[test]
fn who_sends_a_datagram_is_woken_at_once() {
    let (a, b, channel) = with_channel();
    let cap = QpCap { send_wrs: 8, recv_wrs: 8, ..QpCap::default() };
    let init = QpInitAttr {
        qp_type: QpType::Ud,
        pd: b.pd,
        send_cq: b.cq,
        recv_cq: b.cq,
        srq: None,
        cap,
        sq_sig_all: true,
    };
    let qp = b.nic.create_qp(&init).unwrap();
    let (pkey_index, port, qkey) = (Some(0), Some(1), Some(1));
    b.nic.modify_qp(qp, &QpAttr { pkey_index, port, qkey, ..QpAttr::to(QpState::Init) }).unwrap();
    b.nic.modify_qp(qp, &QpAttr::to(QpState::Rtr)).unwrap();
    b.nic.modify_qp(qp, &QpAttr { sq_psn: Some(Psn::new(0)), ..QpAttr::to(QpState::Rts) }).unwrap();
    let ah = b.nic.create_ah(b.pd, a.gid()).unwrap();
    b.nic.req_notify_cq(b.cq, false).unwrap();
    let to = UdDestination { ah, qpn: a.qp, qkey: 1 };
    b.nic.post_send(qp, &[SendWr::new(7, SendOp::Send, Data::empty()).to(to)]).unwrap();
    assert!(readable(&channel), "it has left with the call, and so has the event");
    assert_eq!(b.success().wr_id, 7);
}

#[test]
fn a_channel_of_another_nic_is_refused() {
    let (one, other) = (open(Config::loopback()), open(Config::loopback()));
    let channel = other.create_completion_channel().unwrap();
    let refused = one.create_cq(4, Some(&channel)).unwrap_err();
    assert!(refused.to_string().contains("belongs to another NIC"), "{refused}");
}

#[test]
fn callers_on_many_threads_share_a_nic() {
    let hub = open(Config::loopback());
    let far = open(Config::loopback());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (hub, far) = (Arc::clone(&hub), Arc::clone(&far));
            scope.spawn(move || {
                let (a, b) = (End::new(hub), End::new(far));
                connect(&a, &b, Link::default());
                for i in 1..=300 {
                    a.memory.store(0, i);
                    a.post(i, SendOp::Write(b.mr.remote(0)), 0, 8);
                    a.post(i, SendOp::FetchAdd { remote: b.mr.remote(8), add: 1 }, 8, 8);
                    a.success();
                    a.success();
                    assert_eq!((b.memory.load(0), b.memory.load(8)), (i, i));
                }
            });
        }
    });
}

#[test]
fn nics_come_and_go() {
    for _ in 0..50 {
        let (a, b) = pair();
        a.post(1, SendOp::Write(b.mr.remote(0)), 0, 1 << 16);
        drop(b);
        drop(a);
    }
}

#[test]
fn the_last_send_before_a_nic_closes_is_acknowledged() {
    for _ in 0..20 {
        let (a, b) = pair();
        b.post_recv(1, 0, 8);
        a.post(1, SendOp::Send, 0, 8);
        b.success();
        drop(b);
        a.success();
    }
}
