//! Requests that the peer's NIC refuses.

use mitra_verbs::fault::Failure;

use super::*;

impl End {
    /// An address that the region does not contain.
    fn outside(&self) -> RemoteAddr {
        RemoteAddr { addr: self.remote().addr + 4096, ..self.remote() }
    }
}

#[test]
fn refused_request_reports_the_refusal_when_the_peer_closes_at_once() {
    /// The number of requests before the refused request. It exceeds the number of completions that
    /// one poll of the virtual queue pair takes.
    const BEFORE: u64 = 40;
    let (a, b) = connect(End::with(64, true), End::new());
    a.qp.post_send(&[a.write(100, b.remote())]).expect("the request is valid");
    assert_eq!(completions(&a, &b, 1, || b.answer_peers()), [(100, WcStatus::Success)]);
    let mut wrs: Vec<_> = (0..BEFORE).map(|wr_id| a.write(wr_id, b.remote())).collect();
    wrs.extend([a.write(BEFORE, b.outside()), a.send(BEFORE + 1)]);
    // Without polls in between, one post sends at most 16 requests.
    wrs.chunks(16).for_each(|wrs| a.qp.post_send(wrs).expect("the requests are valid"));
    // In this time all completions arrive at `a`, and also the peer's message that it has closed
    // its end.
    while !b.qp.has_ended() {
        b.device.domain().drive_in_background();
    }
    for _ in 0..50 {
        b.device.domain().drive_in_background();
        thread::sleep(Duration::from_millis(1));
    }
    let found = completions(&a, &b, wrs.len(), || {});
    let mut expected: Vec<_> = (0..BEFORE).map(|wr_id| (wr_id, WcStatus::Success)).collect();
    expected.extend([(BEFORE, WcStatus::RemoteAccess), (BEFORE + 1, WcStatus::Flushed)]);
    assert_eq!(found, expected);
}

/// A NIC's queue pair is in an error state from the refusal on, and flushes what is posted then.
#[test]
fn request_posted_behind_a_refusal_that_no_poll_has_read_is_flushed() {
    let (a, b) = connect(End::with(64, true), End::new());
    a.qp.post_send(&[a.write(1, b.remote())]).expect("the request is valid");
    assert_eq!(completions(&a, &b, 1, || b.answer_peers()), [(1, WcStatus::Success)]);
    a.qp.post_send(&[a.write(2, b.outside())]).expect("the peer refuses, not the post");
    let started = Instant::now();
    loop {
        let mut locked = a.qp.lock();
        locked.vqp.progress();
        if locked.vqp.is_halted() || locked.vqp.close_reason().is_some() {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "the peer does not refuse");
    }
    a.qp.post_send(&[a.send(3)]).expect("a queue pair in an error state takes requests");
    assert_eq!(completions(&a, &b, 2, || {}), [(2, WcStatus::RemoteAccess), (3, WcStatus::Flushed)]);
}

/// The requester moves to the new rail, learns of the refusal first, and closes its end. Two
/// messages then arrive together at the responder: one permits its move, the other ends the
/// connection. The responder handles the end before the move. An event of its NIC tells the
/// responder of the refusal.
#[test]
fn request_refused_on_the_new_rail_flushes_the_receives_of_a_responder_that_has_not_moved() {
    let nics = [nic(), nic()];
    let requester = End::on(device_over(nics.iter().cloned()), QpType::Rc, DEPTH, true);
    let (a, b) = connect(requester, End::new());
    b.post_recv(9);
    a.qp.post_send(&[a.write(1, b.remote())]).expect("the request is valid");
    assert_eq!(completions(&a, &b, 1, || b.answer_peers()), [(1, WcStatus::Success)]);
    nics[0].fault_switch().expect("a software NIC fails on demand").fail(Failure::LinkDown);
    // `a` proposes, `b` fences and sends its evidence, and only `a` moves.
    a.device.domain().drive_in_background();
    for _ in 0..20 {
        b.device.domain().drive_in_background();
        thread::sleep(Duration::from_millis(1));
    }
    let started = Instant::now();
    while a.qp.failovers() == 0 {
        a.device.domain().drive_in_background();
        assert!(started.elapsed() < Duration::from_secs(20), "the requester does not move");
    }
    a.qp.post_send(&[a.write(2, b.outside())]).expect("the peer refuses, not the post");
    let started = Instant::now();
    let mut refused = Vec::new();
    while refused.is_empty() {
        refused = a.poll();
        assert!(started.elapsed() < Duration::from_secs(20), "the request does not complete");
    }
    assert_eq!(refused, [(2, WcStatus::RemoteAccess)]);
    // In this time all messages arrive. If they do not, the responder moves first, and the result
    // is the same.
    thread::sleep(Duration::from_millis(20));
    assert_eq!(completions(&b, &a, 1, || {}), [(9, WcStatus::Flushed)]);
    assert_eq!(b.qp.status().state, QpState::Err);
}
