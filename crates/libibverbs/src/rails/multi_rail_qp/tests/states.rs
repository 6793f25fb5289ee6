//! The state SQD, and the first packet in RTR.

use std::sync::Mutex;

use mitra_verbs::{QpAttr, SqDrain};

use super::*;

/// An end whose queue pair collects its asynchronous events.
fn end_with_events() -> (End, Arc<Mutex<Vec<AsyncEvent>>>) {
    let device = device();
    let (pd, cq) = (alloc_pd(&device), virtual_cq(&device, 1 << 10));
    let events = Arc::new(Mutex::new(Vec::new()));
    let reported = Arc::clone(&events);
    let init = QpInitAttr {
        qp_type: QpType::Rc,
        pd: PdId(0),
        send_cq: CqId(0),
        recv_cq: CqId(0),
        srq: None,
        cap: QpCap { send_wrs: DEPTH, recv_wrs: DEPTH, ..QpCap::default() },
        sq_sig_all: false,
    };
    let params = CreateParams {
        init,
        pd: Some(Arc::clone(&pd)),
        send_cq: Arc::clone(&cq),
        recv_cq: Arc::clone(&cq),
        srq: None,
        xrc: None,
        on_event: Box::new(move |event| lock(&reported).push(event)),
    };
    let qp = device.create_qp(params).expect("the capacities are within the limits");
    let memory = Arc::new(Buffer::new(64));
    let mr = pd.register(&memory, Access::LOCAL_WRITE).expect("memory can be registered");
    (End { device, pd, cq, qp, memory, mr }, events)
}

/// In SQD, requests that have begun are completed, even unsignalled requests. Requests that are
/// posted in SQD wait.
#[test]
fn send_queue_drains_and_restarts() {
    let (a, events) = end_with_events();
    let (a, b) = connect(a, End::new());
    (10..13).for_each(|wr_id| b.post_recv(wr_id));
    a.qp.post_send(&[a.send(1).with_flags(SendFlags::empty())]).expect("the queue has room");
    a.qp.modify(&QpAttr::to(QpState::Sqd)).expect("RTS leads to SQD");
    let started = Instant::now();
    while lock(&events).is_empty() {
        a.device.domain().drive_in_background();
        b.device.domain().drive_in_background();
        assert!(started.elapsed() < Duration::from_secs(20), "the queue does not drain");
    }
    assert_eq!(*lock(&events), [AsyncEvent::SqDrained(a.qp.qpn())]);
    assert_eq!((a.qp.status().state, a.qp.status().sq_drain), (QpState::Sqd, SqDrain::Drained));
    assert!(a.qp.modify(&QpAttr { dest_gid: Some(Gid([9; 16])), ..QpAttr::to(QpState::Sqd) }).is_err());
    a.qp.post_send(&[a.send(2)]).expect("the queue takes requests in SQD");
    for _ in 0..100 {
        a.device.domain().drive_in_background();
        b.device.domain().drive_in_background();
    }
    let before_restart = b.poll();
    a.qp.modify(&QpAttr::to(QpState::Rts)).expect("SQD leads to RTS");
    assert_eq!(completions(&a, &b, 1, || {}), [(2, WcStatus::Success)]);
    assert_eq!(
        before_restart.iter().filter(|(_, status)| *status == WcStatus::Success).count(),
        before_restart.len()
    );
    assert!(before_restart.len() <= 1);
    let after_restart = completions(&b, &a, 2 - before_restart.len(), || {});
    let all: Vec<_> = before_restart.into_iter().chain(after_restart).collect();
    assert_eq!(all, [(10, WcStatus::Success), (11, WcStatus::Success)]);
    assert_eq!((lock(&events).len(), a.qp.status().sq_drain), (1, SqDrain::NotInSqd));
    a.qp.modify(&QpAttr::to(QpState::Sqd)).expect("RTS leads to SQD");
    assert_eq!(lock(&events).len(), 2, "an idle queue has drained");
    a.qp.modify(&QpAttr::to(QpState::Err)).expect("every state leads to ERR");
}

/// A sender in RTS, a receiver in RTR, and the receiver's events.
fn connected_in_rtr() -> (End, End, Arc<Mutex<Vec<AsyncEvent>>>) {
    let (b, events) = end_with_events();
    let a = End::new();
    let (to_a, to_b) = (a.qp.local_info(), b.qp.local_info());
    a.qp.lock().vqp.connect(&to_b).expect("the ends match");
    a.qp.lock().state = QpState::Rts;
    {
        let mut locked = b.qp.lock();
        locked.vqp.modify_to_rtr(&to_a, mitra_verbs::RnrTimer::from_code(1)).expect("the ends match");
        locked.state = QpState::Rtr;
    }
    (a, b, events)
}

#[test]
fn first_packet_in_rtr_is_reported_once() {
    let (a, b, events) = connected_in_rtr();
    (10..12).for_each(|wr_id| b.post_recv(wr_id));
    b.device.domain().drive_in_background();
    assert_eq!(*lock(&events), []);
    for wr_id in 1..3 {
        a.qp.post_send(&[a.send(wr_id)]).expect("the queue has room");
        assert_eq!(
            completions(&a, &b, 1, || b.device.domain().drive_in_background()),
            [(wr_id, WcStatus::Success)]
        );
    }
    b.device.domain().drive_in_background();
    assert_eq!(*lock(&events), [AsyncEvent::CommunicationEstablished(b.qp.qpn())]);
}

/// The first packet and its completion are found by one poll of the completion queue.
#[test]
fn first_packet_in_rtr_is_reported_before_its_completion_is_returned() {
    let (a, b, events) = connected_in_rtr();
    b.post_recv(10);
    a.qp.post_send(&[a.send(1)]).expect("the queue has room");
    let (started, mut found) = (Instant::now(), Vec::new());
    while found.is_empty() {
        b.cq.poll(1, &mut found).expect("no NIC is polled");
        assert!(started.elapsed() < Duration::from_secs(60), "no message has arrived");
    }
    assert_eq!(*lock(&events), [AsyncEvent::CommunicationEstablished(b.qp.qpn())]);
}

/// In ERR, receives are flushed even if the queue pair was never connected (IBTA volume 1,
/// 10.3.1.5).
#[test]
fn receives_of_an_unconnected_queue_pair_are_flushed_in_err() {
    let end = End::new();
    let access = Some(Access::empty());
    let init = QpAttr { pkey_index: Some(0), port: Some(1), access, ..QpAttr::to(QpState::Init) };
    end.qp.modify(&init).expect("RESET leads to INIT");
    (1..4).for_each(|wr_id| end.post_recv(wr_id));
    assert_eq!(end.poll(), []);
    end.qp.modify(&QpAttr::to(QpState::Err)).expect("every state leads to ERR");
    let flushed = |wr_id| (wr_id, WcStatus::Flushed);
    assert_eq!(end.poll(), [1, 2, 3].map(flushed));
    end.post_recv(4);
    assert_eq!(end.poll(), [flushed(4)]);
}
