//! Messages that wait for a receive of a shared receive queue.

use std::sync::Mutex;

use mitra_verbs::QpAttr;

use super::*;
use crate::rails::multi_rail_domain::LINGER;

/// An end with a shared receive queue of eight receives, and the asynchronous events of its queue
/// pair.
fn end_with_srq() -> (End, Arc<VirtualSrq>, Arc<Mutex<Vec<AsyncEvent>>>) {
    let device = device();
    let (pd, cq) = (alloc_pd(&device), virtual_cq(&device, 1 << 10));
    let srq = VirtualSrq::new(&pd, SrqId(0), None, 8, || {});
    let events = Arc::new(Mutex::new(Vec::new()));
    let reported = Arc::clone(&events);
    let init = QpInitAttr {
        qp_type: QpType::Rc,
        pd: PdId(0),
        send_cq: CqId(0),
        recv_cq: CqId(0),
        srq: None,
        cap: QpCap { send_wrs: DEPTH, ..QpCap::default() },
        sq_sig_all: true,
    };
    let params = CreateParams {
        init,
        pd: Some(Arc::clone(&pd)),
        send_cq: Arc::clone(&cq),
        recv_cq: Arc::clone(&cq),
        srq: Some(Arc::clone(&srq)),
        xrc: None,
        on_event: Box::new(move |event| lock(&reported).push(event)),
    };
    let qp = device.create_qp(params).expect("the capacities are within the limits");
    let memory = Arc::new(Buffer::new(64));
    let mr = pd.register(&memory, Access::LOCAL_WRITE).expect("memory can be registered");
    (End { device, pd, cq, qp, memory, mr }, srq, events)
}

/// The sender has seen success, so the receiver keeps the messages in ERR. They take the receives
/// that are posted in ERR.
#[test]
fn waiting_messages_take_receives_posted_in_err() {
    let (b, srq, events) = end_with_srq();
    let receive = |wr_id| RecvWr::new(wr_id, b.mr.sge(wr_id * 8, 8));
    srq.post(&[receive(0)]).expect("the queue has room");
    let (a, b) = connect(End::new(), b);
    for (wr_id, word) in [b"message0", b"message1", b"message2"].into_iter().enumerate() {
        a.memory.write_at(0, word);
        a.qp.post_send(&[a.send(wr_id as u64)]).expect("the queue has room");
        assert_eq!(completions(&a, &b, 1, || {}), [(wr_id as u64, WcStatus::Success)]);
    }
    b.qp.modify(&QpAttr::to(QpState::Err)).expect("every state leads to ERR");
    // A program that posts no more receives waits for this event.
    assert_eq!(*lock(&events), [AsyncEvent::LastWqeReached(b.qp.qpn())]);
    let receive = |wr_id| RecvWr::new(wr_id, b.mr.sge(wr_id * 8, 8));
    srq.post(&[receive(1), receive(2), receive(3)]).expect("the queue has room");
    assert_eq!(b.poll(), [0, 1, 2].map(|wr_id| (wr_id, WcStatus::Success)));
    let mut bytes = [0; 24];
    b.memory.read_at(0, &mut bytes);
    assert_eq!(&bytes, b"message0message1message2");
    assert_eq!(lock(&events).len(), 1);
}

/// A destroyed queue pair takes no receives that are posted for other queue pairs.
#[test]
fn destroyed_queue_pair_takes_no_shared_receives() {
    let (b, srq, _) = end_with_srq();
    let receive = |wr_id| RecvWr::new(wr_id, b.mr.sge(wr_id * 8, 8));
    srq.post(&[receive(0)]).expect("the queue has room");
    let (a, b) = connect(End::new(), b);
    for wr_id in 0..2 {
        a.qp.post_send(&[a.send(wr_id)]).expect("the queue has room");
        assert_eq!(completions(&a, &b, 1, || {}), [(wr_id, WcStatus::Success)]);
    }
    b.device.destroy_qp(Arc::clone(&b.qp));
    srq.post(&[RecvWr::new(1, b.mr.sge(8, 8))]).expect("the queue has room");
    b.device.close_ended(LINGER);
    b.device.domain().drive(|_| true);
    assert_eq!(srq.queue().len(), 1);
}
