//! One end of a connection is reset and connects before the other end is reset.

use mitra_verbs::{Mtu, Psn, QpAttr};

use super::*;

/// Ends a connection: both ends are in ERR.
fn ended() -> (End, End) {
    let (a, b) = connected();
    for end in [&a, &b] {
        end.qp.modify(&QpAttr::to(QpState::Err)).expect("every state leads to ERR");
    }
    (a, b)
}

/// Resets `end` and connects it to `peer`, which answers.
pub(super) fn reset_and_connect(end: &End, peer: &End) -> Result<()> {
    reset_and_connect_while(end, peer, || peer.answer_peers())
}

/// Resets `end` and connects it to `peer`. Meanwhile, calls `each` again and again.
pub(super) fn reset_and_connect_while(end: &End, peer: &End, each: impl Fn()) -> Result<()> {
    let init = QpAttr { pkey_index: Some(0), port: Some(1), ..QpAttr::to(QpState::Init) };
    let rtr = QpAttr {
        dest_gid: Some(gids(&peer.device)[0]),
        dest_qpn: Some(peer.qp.qpn()),
        path_mtu: Some(Mtu::M1024),
        rq_psn: Some(Psn::new(0)),
        max_dest_rd_atomic: Some(1),
        min_rnr_timer: Some(1),
        ..QpAttr::to(QpState::Rtr)
    };
    let rts = QpAttr {
        sq_psn: Some(Psn::new(0)),
        timeout: Some(12),
        retry_cnt: Some(7),
        rnr_retry: Some(7),
        max_rd_atomic: Some(1),
        ..QpAttr::to(QpState::Rts)
    };
    end.qp.modify(&QpAttr::to(QpState::Reset))?;
    end.qp.modify(&QpAttr { access: Some(Access::REMOTE), ..init })?;
    thread::scope(|scope| {
        let connected = scope.spawn(|| end.qp.modify(&rtr));
        while !connected.is_finished() {
            each();
            thread::yield_now();
        }
        connected.join().expect("a modification does not panic")
    })?;
    end.qp.modify(&rts)
}

#[test]
fn requests_wait_until_the_peer_is_reset_and_are_executed_in_order() {
    let (a, b) = ended();
    reset_and_connect(&a, &b).expect("the peer says that its connection has ended");
    assert_eq!(a.qp.status().state, QpState::Rts);
    a.memory.write_at(0, b"pioneer!");
    a.qp.post_send(&[a.write(1, b.remote()), a.send(2)]).expect("the requests are valid");
    a.post_recv(3);
    for _ in 0..100 {
        b.answer_peers();
        assert_eq!(a.poll(), []);
    }
    reset_and_connect(&b, &a).expect("the first end answers for its new connection");
    b.post_recv(4);
    b.qp.post_send(&[b.send(5)]).expect("the request is valid");
    let mut found = completions(&a, &b, 3, || {
        a.answer_peers();
        b.answer_peers();
    });
    let sends: Vec<_> = found.extract_if(.., |(wr_id, _)| *wr_id < 3).collect();
    assert_eq!(sends, [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(found, [(3, WcStatus::Success)]);
    let mut bytes = [0; 8];
    b.memory.read_at(32, &mut bytes);
    assert_eq!(&bytes, b"pioneer!");
}

#[test]
fn requests_fail_if_the_peer_is_never_reset() {
    let (a, b) = ended();
    reset_and_connect(&a, &b).expect("the peer says that its connection has ended");
    a.qp.post_send(&[a.send(1), a.send(2)]).expect("the requests are valid");
    let found = completions(&a, &b, 2, || b.answer_peers());
    // As on a NIC without a peer: the oldest request exhausts its retries.
    assert_eq!(found, [(1, WcStatus::RetryExceeded), (2, WcStatus::Flushed)]);
    assert_eq!(a.qp.status().state, QpState::Err);
}

#[test]
fn requests_fail_if_the_peer_is_destroyed_instead() {
    let (a, b) = ended();
    reset_and_connect(&a, &b).expect("the peer says that its connection has ended");
    b.device.destroy_qp(Arc::clone(&b.qp));
    a.qp.post_send(&[a.send(1)]).expect("the request is valid");
    assert_eq!(completions(&a, &b, 1, || b.answer_peers()), [(1, WcStatus::RetryExceeded)]);
}

#[test]
fn waiting_queue_pair_can_be_reset_and_destroyed() {
    let (a, b) = ended();
    for _ in 0..2 {
        reset_and_connect(&a, &b).expect("the peer says that its connection has ended");
        a.qp.post_send(&[a.send(1)]).expect("the request is valid");
    }
    a.qp.modify(&QpAttr::to(QpState::Err)).expect("every state leads to ERR");
    assert_eq!(a.poll(), [(1, WcStatus::Flushed)]);
    reset_and_connect(&a, &b).expect("the peer says that its connection has ended");
    a.device.destroy_qp(Arc::clone(&a.qp));
    b.answer_peers();
    a.device.domain().drive(|_| true);
    assert_eq!(a.poll(), []);
}
