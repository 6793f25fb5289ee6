//! UC queue pairs whose peer was not heard yet. The tests decide when the peer's device answers,
//! connects and is driven.

use mitra_verbs::{QpAttr, RnrTimer, WindowBind, WindowType};

use super::*;

/// An end in RTS whose peer is in INIT.
fn unheard() -> (End, End) {
    let [a, b] = [(); 2].map(|()| End::of_type(QpType::Uc, DEPTH, true));
    b.qp.lock().state = QpState::Init;
    enter_rts(&a, &b);
    (a, b)
}

/// Connects an end as `ibv_modify_qp` does, without a query.
fn enter_rts(end: &End, peer: &End) {
    let info = peer.qp.local_info();
    let mut locked = end.qp.lock();
    locked.set_access(Some(Access::REMOTE)).expect("the NICs are alive");
    locked.connect_to(&info, Endpoint::Any, RnrTimer::from_code(1)).expect("the configurations agree");
    locked.vqp.modify_to_rts(7).expect("the NICs are alive");
    locked.attr.dest_qpn = Some(peer.qp.qpn());
    locked.state = QpState::Rts;
    *lock(&end.qp.peer) = Peer::of(&info);
}

/// Drives `a` for some time, in which `b` answers queries. Returns the completions of `a`.
fn completions_in_some_time(a: &End, b: &End) -> Vec<(u64, WcStatus)> {
    let started = Instant::now();
    let mut found = Vec::new();
    while started.elapsed() < Duration::from_millis(150) {
        found.extend(a.poll());
        b.answer_peers();
    }
    found
}

/// Polls `a` until it has reported `n` completions, while `b` answers queries and is not driven.
fn completions_of_unheard(a: &End, b: &End, n: usize) -> Vec<(u64, WcStatus)> {
    let started = Instant::now();
    let mut found = Vec::new();
    while found.len() < n {
        found.extend(a.poll());
        b.answer_peers();
        assert!(started.elapsed() < Duration::from_secs(20), "only {found:?} completed");
    }
    found
}

fn successes(wr_ids: impl IntoIterator<Item = u64>) -> Vec<(u64, WcStatus)> {
    wr_ids.into_iter().map(|wr_id| (wr_id, WcStatus::Success)).collect()
}

/// As on a NIC, the requests are sent and complete in order. Invalid requests complete with their
/// errors.
#[test]
fn messages_to_a_peer_that_is_not_connected_are_lost_at_once() {
    let (a, b) = unheard();
    b.post_recv(50);
    a.memory.write_at(0, b"message!");
    for round in 0..3 {
        let first = 10 * round;
        a.qp.post_send(&[a.send(first), a.write(first + 1, b.remote())]).expect("the queue has room");
        assert_eq!(completions_of_unheard(&a, &b, 2), successes([first, first + 1]));
    }
    let read = SendWr::new(60, SendOp::Read(b.remote()), Data::sge(a.mr.sge(0, 8)));
    a.qp.post_send(&[read, a.send(61)]).expect("the queue has room");
    let found = completions_of_unheard(&a, &b, 2);
    assert_eq!(found, [(60, WcStatus::LocalQpOperation), (61, WcStatus::Flushed)]);
    assert_eq!(a.qp.status().state, QpState::Sqe);
    a.qp.modify(&QpAttr::to(QpState::Rts)).expect("SQE leads to RTS");
    // The peer connects. No lost message arrives. A message that is posted now arrives.
    enter_rts(&b, &a);
    a.qp.post_send(&[a.send(70)]).expect("the queue has room");
    assert_eq!(completions(&a, &b, 1, || b.answer_peers()), successes([70]));
    assert_eq!(completions(&b, &a, 1, || {}), successes([50]));
    assert_eq!(b.memory.load(0), 0, "no WRITE was executed");
}

/// Returns a function that makes a bind with a `wr_id` and a key, for a window in the memory of an
/// end. Also returns the window's first key.
fn binds(end: &End) -> (impl Fn(u64, u32) -> SendWr, Key) {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::WINDOW_BIND;
    let mr = end.pd.register(&end.memory, access).expect("memory can be registered");
    let mw = end.pd.failover.alloc_mw(WindowType::Type2).expect("the NICs have room");
    let (mr, mw) = (mr.primary(), mw.primary());
    let bind = move |wr_id, key| {
        let (rkey, access) = (Key(key), Access::REMOTE_WRITE);
        let bind =
            WindowBind { mw: mw.id, rkey, mr: mr.id, addr: mr.addr, len: 8, access, zero_based: false };
        SendWr::new(wr_id, SendOp::BindWindow(bind), Data::empty())
    };
    (bind, mw.rkey)
}

/// Lets the device of `b` answer the first question of `a`. The answer is that the peer is not
/// connected. Returns the next completions of `a`.
fn answer_first_question(a: &End, b: &End) -> Vec<(u64, WcStatus)> {
    let rendezvous = &b.device.domain().rendezvous;
    let started = Instant::now();
    let mut queries = rendezvous.take_received();
    while queries.is_empty() {
        a.device.domain().drive(|_| true);
        queries = rendezvous.take_received();
        assert!(started.elapsed() < Duration::from_secs(20), "no question has arrived");
    }
    queries.iter().for_each(|query| rendezvous.answer(query, None));
    let mut found = Vec::new();
    while found.is_empty() {
        found = a.poll();
        assert!(started.elapsed() < Duration::from_secs(20), "the first message does not complete");
    }
    (0..50).for_each(|_| found.extend(a.poll()));
    found
}

/// The peer has connected, but was not driven since, so it was not heard. Messages to it wait and
/// are not lost.
#[test]
fn messages_to_a_connected_peer_wait_until_it_is_heard() {
    let (a, b) = unheard();
    (50..53).for_each(|wr_id| b.post_recv(wr_id));
    a.qp.post_send(&[a.send(1)]).expect("the queue has room");
    // The peer connects before its device answers.
    enter_rts(&b, &a);
    assert_eq!(completions_in_some_time(&a, &b), []);
    a.qp.post_send(&[a.send(2), a.send(3)]).expect("the queue has room");
    assert_eq!(completions_in_some_time(&a, &b), []);
    assert_eq!(completions(&a, &b, 3, || b.answer_peers()), successes(1..4));
    assert_eq!(completions(&b, &a, 3, || {}), successes(50..53));
}

/// An answer concerns only the messages that were posted before its question. Later messages wait
/// for the next answer.
#[test]
fn messages_after_the_question_are_not_lost_by_its_answer() {
    let (a, b) = unheard();
    b.post_recv(50);
    a.qp.post_send(&[a.send(1)]).expect("the queue has room");
    a.device.domain().drive(|_| true);
    a.qp.post_send(&[a.send(2)]).expect("the queue has room");
    let found = answer_first_question(&a, &b);
    assert_eq!(found, successes([1]), "the second message waits for the answer to the next question");
    enter_rts(&b, &a);
    assert_eq!(completions(&a, &b, 1, || b.answer_peers()), successes([2]));
    assert_eq!(completions(&b, &a, 1, || {}), successes([50]));
}

/// A bind that precedes the message completes before the answer arrives. The answer then concerns
/// only the message.
#[test]
fn messages_after_the_question_are_not_lost_for_a_bind_before_it() {
    let (a, b) = unheard();
    b.post_recv(50);
    let (bind, key) = binds(&a);
    a.qp.post_send(&[bind(1, key.with_consumer_bits(1).0), a.send(2)]).expect("the queue has room");
    assert_eq!(completions(&a, &b, 1, || {}), successes([1]));
    a.qp.post_send(&[a.send(3)]).expect("the queue has room");
    assert_eq!(answer_first_question(&a, &b), successes([2]));
    enter_rts(&b, &a);
    assert_eq!(completions(&a, &b, 1, || b.answer_peers()), successes([3]));
    assert_eq!(completions(&b, &a, 1, || {}), successes([50]));
}

/// The device of the peer does not answer, for example because its process has ended.
#[test]
fn messages_to_a_silent_device_wait_once_only() {
    let (a, b) = unheard();
    let wait = || {
        let started = Instant::now();
        let mut found = Vec::new();
        while found.len() < 2 {
            found.extend(a.poll());
            assert!(started.elapsed() < Duration::from_secs(20), "only {found:?} completed");
        }
        found
    };
    a.qp.post_send(&[a.send(1), a.write(2, b.remote())]).expect("the queue has room");
    assert_eq!(wait(), successes([1, 2]));
    // No further question is asked, not even for the keys of the region.
    let rendezvous = &b.device.domain().rendezvous;
    drop(rendezvous.take_received());
    a.qp.post_send(&[a.send(3), a.write(4, b.remote())]).expect("the queue has room");
    assert_eq!(a.poll(), successes([3, 4]));
    assert_eq!(a.qp.status().state, QpState::Rts);
    // The peer connects later, and is heard.
    b.post_recv(50);
    enter_rts(&b, &a);
    let started = Instant::now();
    while !a.qp.lock().vqp.is_peer_heard() {
        a.device.domain().drive(|_| true);
        b.device.domain().drive_in_background();
        assert!(started.elapsed() < Duration::from_secs(20), "the peer is not heard");
    }
    a.memory.write_at(0, b"message!");
    a.qp.post_send(&[a.write(5, b.remote()), a.send(6)]).expect("the queue has room");
    assert_eq!(completions(&a, &b, 2, || b.answer_peers()), successes([5, 6]));
    assert_eq!(completions(&b, &a, 1, || {}), successes([50]));
    let mut bytes = [0; 8];
    b.memory.read_at(0, &mut bytes);
    assert_eq!(&bytes, b"message!");
}

#[test]
fn peer_that_is_being_connected_is_waited_for() {
    let (a, b) = unheard();
    b.post_recv(50);
    *lock(&b.qp.peer) = Peer::Connecting(gids(&a.device)[0]);
    a.qp.post_send(&[a.send(1)]).expect("the queue has room");
    assert_eq!(completions_in_some_time(&a, &b), []);
    enter_rts(&b, &a);
    assert_eq!(completions(&a, &b, 1, || b.answer_peers()), successes([1]));
    assert_eq!(completions(&b, &a, 1, || {}), successes([50]));
}

/// A bind needs nothing of the peer. A bind that is posted after a message is executed after the
/// message.
#[test]
fn binds_do_not_wait_for_the_peer() {
    let (a, b) = unheard();
    let (bind, key) = binds(&a);
    a.qp.post_send(&[bind(1, key.with_consumer_bits(1).0)]).expect("the queue has room");
    let started = Instant::now();
    let mut found = Vec::new();
    // The peer's device answers nothing.
    while found.is_empty() {
        found = a.poll();
        assert!(started.elapsed() < Duration::from_secs(20), "the bind does not complete");
    }
    assert_eq!(found, successes([1]));
    let invalidate = SendWr::new(3, SendOp::LocalInvalidate(key.with_consumer_bits(1)), Data::empty());
    let wrs = [a.send(2), invalidate, bind(4, key.with_consumer_bits(2).0), a.send(5)];
    a.qp.post_send(&wrs).expect("the queue has room");
    assert_eq!(completions_of_unheard(&a, &b, 4), successes(2..6));
}

/// A queue pair confirms its connection only to the queue pair to which it is connected.
#[test]
fn others_than_the_peer_learn_of_no_connection() {
    let (a, b) = unheard();
    let stranger = device();
    enter_rts(&b, &a);
    let (own, other) = (a.qp.qpn(), b.qp.qpn());
    for (from, asker, is_told) in [(&a.device, own, true), (&a.device, other, false), (&stranger, own, false)]
    {
        let subject = Subject::Connected { qpn: b.qp.qpn(), asker };
        let mut query =
            Query::new(&from.domain().rendezvous, rand_id(), (gids(&b.device), Endpoint::Any), subject, None);
        let answer = loop {
            b.answer_peers();
            from.domain().rendezvous.poll();
            if let Poll::Ready(answer) = query.poll() {
                break answer.expect("every query is answered");
            }
        };
        assert_eq!(answer.is_some(), is_told);
    }
}
