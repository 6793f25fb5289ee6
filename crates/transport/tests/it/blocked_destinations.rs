//! Destinations whose links are full: the NIC sends to others, and continues later without a loss.

use crate::common::*;
use mitra_transport::TxBatch;
use mitra_verbs::*;

/// Returns the destinations of all batches that node 0 sends now, and the number of their packets.
fn batches(p: &mut NicPair) -> Vec<(Gid, usize)> {
    let (mut batch, mut found) = (TxBatch::new(), Vec::new());
    let node = &mut p.nodes[0];
    while node.nic.poll_transmit(p.now, &mut node.memory, &mut batch) {
        found.push((batch.destination, batch.ends.len()));
    }
    found
}

/// Adds a queue pair to node 0 that is connected to a NIC at `address`.
fn connect_to(p: &mut NicPair, address: Gid) -> Qpn {
    let (setup, init) = (Setup::default(), p.status(0).init);
    let rtr = QpAttr { dest_gid: Some(address), ..setup.to_rtr(&p.nodes[1], 0) };
    let node = &mut p.nodes[0];
    let qp = node.nic.create_qp(p.now, &init).unwrap();
    for attr in [setup.to_init(), rtr, setup.to_rts(0)] {
        node.nic.modify_qp(p.now, qp, &attr).unwrap();
    }
    qp
}

#[test]
fn blocked_destination_gets_nothing_until_it_is_unblocked() {
    let mut p = pair();
    let (full, other) = (gid(1), gid(7));
    let to_other = connect_to(&mut p, other);
    p.nodes[0].nic.block(p.now, full, false);
    p.post(write(&p, 1, 0, 100));
    let wr = write(&p, 2, 0, 100);
    p.nodes[0].nic.post_send(p.now, to_other, std::slice::from_ref(&wr)).unwrap();
    assert_eq!(batches(&mut p), [(other, 1)]);
    p.post(write(&p, 3, 0, 100));
    assert_eq!(batches(&mut p), []);
    p.nodes[0].nic.unblock(p.now, full);
    assert_eq!(batches(&mut p), [(full, 2)]);
    p.nodes[0].nic.unblock(p.now, full);
    assert_eq!(batches(&mut p), []);
}

/// A queue pair that waits for a blocked destination is destroyed, and another takes its place.
#[test]
fn destroyed_queue_pair_waits_no_more() {
    let mut p = pair();
    let full = gid(7);
    let qp = connect_to(&mut p, full);
    p.nodes[0].nic.block(p.now, full, false);
    let wr = write(&p, 2, 0, 100);
    p.nodes[0].nic.post_send(p.now, qp, std::slice::from_ref(&wr)).unwrap();
    assert_eq!(batches(&mut p), []);
    p.nodes[0].nic.destroy_qp(p.now, qp).unwrap();
    let qp = connect_to(&mut p, gid(8));
    p.nodes[0].nic.post_send(p.now, qp, std::slice::from_ref(&wr)).unwrap();
    p.nodes[0].nic.unblock(p.now, full);
    assert_eq!(batches(&mut p), [(gid(8), 1)]);
}

/// A queue pair that waits is reset and connected to another destination.
#[test]
fn queue_pair_of_another_destination_waits_no_more() {
    let mut p = pair();
    let (full, other) = (gid(7), gid(8));
    let qp = connect_to(&mut p, full);
    p.nodes[0].nic.block(p.now, full, false);
    let wr = write(&p, 2, 0, 100);
    p.nodes[0].nic.post_send(p.now, qp, std::slice::from_ref(&wr)).unwrap();
    assert_eq!(batches(&mut p), []);
    let setup = Setup::default();
    let rtr = QpAttr { dest_gid: Some(other), ..setup.to_rtr(&p.nodes[1], 0) };
    let node = &mut p.nodes[0];
    for attr in [QpAttr::to(QpState::Reset), setup.to_init(), rtr, setup.to_rts(0)] {
        node.nic.modify_qp(p.now, qp, &attr).unwrap();
    }
    node.nic.post_send(p.now, qp, std::slice::from_ref(&wr)).unwrap();
    node.nic.block(p.now, full, false);
    assert_eq!(batches(&mut p), [(other, 1)]);
}

/// The first request is acknowledged while the second waits, which stops the timer. The driver
/// repeats the call.
#[test]
fn request_that_waits_behind_an_acknowledged_one_is_timed() {
    let mut p = pair();
    p.post(write(&p, 1, 0, 100));
    p.transmit_all();
    p.nodes[0].nic.block(p.now, gid(1), false);
    p.post(write(&p, 2, 0, 100));
    assert_eq!(batches(&mut p), []);
    let mut completed = Vec::new();
    while completed.is_empty() {
        assert!(p.step());
        completed = p.send_completions(0);
    }
    p.nodes[0].nic.block(p.now, gid(1), false);
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(2, WcStatus::RetryExceeded)]);
}

/// A packet is lost although its link is full at each timeout, for example by an injected fault.
#[test]
fn lost_packet_is_sent_again_although_the_destination_is_blocked_at_each_timeout() {
    let mut p = pair();
    p.post(write(&p, 1, 0, 100));
    assert_eq!(batches(&mut p), [(gid(1), 1)]);
    for _ in 0..2 {
        p.nodes[0].nic.block(p.now, gid(1), false);
        p.now = p.nodes[0].nic.poll_timeout().expect("the request waits");
        p.nodes[0].nic.handle_timeout(p.now);
        p.nodes[0].nic.unblock(p.now, gid(1));
    }
    assert_eq!(batches(&mut p), [(gid(1), 1)]);
    assert_eq!(p.counter(0, "retransmitted_packets"), 1);
}

/// A destination that has stopped still gets what needs no acknowledgement. The driver drops it.
#[test]
fn stopped_destination_gets_unacknowledged_messages_only() {
    let mut p = Setup { qp_type: QpType::Uc, ..Setup::default() }.pair();
    let full = gid(1);
    p.nodes[0].nic.block(p.now, full, false);
    p.post(write(&p, 1, 0, 100));
    assert_eq!(batches(&mut p), []);
    p.nodes[0].nic.block(p.now, full, true);
    assert_eq!(batches(&mut p), [(full, 1)]);
    p.nodes[0].nic.block(p.now, full, false);
    p.post(write(&p, 2, 0, 100));
    assert_eq!(batches(&mut p), []);

    let mut p = pair();
    p.nodes[0].nic.block(p.now, full, true);
    p.post(write(&p, 1, 0, 100));
    assert_eq!(batches(&mut p), []);
    p.nodes[0].nic.unblock(p.now, full);
    assert_eq!(batches(&mut p), [(full, 1)]);
}

/// A destination that stays blocked counts as one that does not answer, whether it got the request
/// before or not. Nothing is sent again.
#[test]
fn request_to_a_destination_that_stays_blocked_ends() {
    for is_sent in [false, true] {
        let mut p = pair();
        if !is_sent {
            p.nodes[0].nic.block(p.now, gid(1), false);
        }
        p.post(write(&p, 1, 0, 100));
        assert_eq!(batches(&mut p).len(), usize::from(is_sent));
        p.nodes[0].nic.block(p.now, gid(1), false);
        p.run();
        assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::RetryExceeded)]);
        assert_eq!(p.counter(0, "retransmitted_packets"), 0);
        assert_eq!(p.counter(0, "timeouts"), 8);
    }
}

/// The destination takes packets again before the retries are used up.
#[test]
fn request_completes_once_its_destination_takes_packets_again() {
    let mut p = pair();
    p.nodes[0].nic.block(p.now, gid(1), false);
    p.post(write(&p, 1, 0, 3000));
    assert_eq!(batches(&mut p), []);
    let timeout = p.nodes[0].nic.poll_timeout().expect("the request waits");
    for retries in 1..=3 {
        p.now = p.nodes[0].nic.poll_timeout().expect("the request waits");
        p.nodes[0].nic.handle_timeout(p.now);
        assert_eq!(p.counter(0, "timeouts"), retries);
    }
    assert!(p.now > timeout && batches(&mut p).is_empty());
    p.nodes[0].nic.unblock(p.now, gid(1));
    p.run();
    assert_eq!(statuses(&p.send_completions(0)), [(1, WcStatus::Success)]);
    assert_eq!((p.counter(0, "retransmitted_packets"), p.counter(0, "timeouts")), (0, 3));
}
