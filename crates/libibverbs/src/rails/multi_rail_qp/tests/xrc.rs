//! XRC connections. Polls of the completion queues in which the domain's shared receive queues
//! complete drive the receiver.

use mitra_verbs::{Srqn, XrcdId};

use super::*;

/// The receiving end of a connection: a domain on a device, and the protection domain of its
/// queues.
struct Receiver {
    device: Arc<MultiRail>,
    pd: Arc<MultiRailPd>,
    domain: Arc<VirtualXrcDomain>,
    memory: Arc<Buffer>,
    mr: VirtualMr,
}

impl Receiver {
    fn new() -> Receiver {
        let device = device();
        let pd = alloc_pd(&device);
        let memory = Arc::new(Buffer::new(64));
        let mr = pd.register(&memory, Access::LOCAL_WRITE).expect("memory can be registered");
        Receiver { device, pd, domain: Arc::default(), memory, mr }
    }

    /// Adds a shared receive queue that completes in `cq`.
    fn add_srq(&self, number: u32, cq: &Arc<VirtualCq>) -> Arc<VirtualSrq> {
        self.try_add_srq(number, &self.pd, cq).expect("the queue is in the protection domain of the others")
    }

    fn try_add_srq(
        &self,
        number: u32,
        pd: &Arc<MultiRailPd>,
        cq: &Arc<VirtualCq>,
    ) -> Result<Arc<VirtualSrq>> {
        let srq = VirtualSrq::new(pd, SrqId(number), None, DEPTH, || {});
        self.domain.add_srq(Srqn::new(number), pd, &srq, cq).map(|()| srq)
    }

    fn create_qp(&self) -> Arc<MultiRailQp> {
        let no_completions = virtual_cq(&self.device, DEPTH);
        let params = CreateParams {
            init: QpInitAttr {
                qp_type: QpType::XrcRecv(XrcdId(0)),
                pd: PdId(0),
                send_cq: CqId(0),
                recv_cq: CqId(0),
                srq: None,
                cap: QpCap::default(),
                sq_sig_all: false,
            },
            pd: None,
            send_cq: Arc::clone(&no_completions),
            recv_cq: no_completions,
            srq: None,
            xrc: Some(Arc::clone(&self.domain)),
            on_event: Box::new(|_| {}),
        };
        self.device.create_qp(params).expect("the capacities are within the limits")
    }

    /// Creates a sender and a receive queue pair, and connects them.
    fn connect(&self) -> (End, Arc<MultiRailQp>) {
        let (a, qp) = (End::of_type(QpType::XrcSend, DEPTH, true), self.create_qp());
        assert_eq!(qp.enter_pd_of_xrc_domain(), Ok(true));
        for (end, peer) in [(&a.qp, &qp), (&qp, &a.qp)] {
            let info = peer.local_info();
            let mut locked = end.lock();
            locked.vqp.connect(&info).expect("the configurations agree");
            locked.attr.dest_qpn = Some(peer.qpn());
            locked.state = QpState::Rts;
            *lock(&end.peer) = Peer::of(&info);
        }
        (a, qp)
    }

    fn post_recv(&self, srq: &VirtualSrq, wr_id: u64) {
        srq.post(&[RecvWr::new(wr_id, self.mr.sge(0, 8))]).expect("the queue has room");
    }
}

/// Posts a message for the shared receive queue with this number.
fn send(a: &End, wr_id: u64, number: u32) {
    let wr = SendWr { remote_srq: Srqn::new(number), ..a.send(wr_id) };
    a.qp.post_send(&[wr]).expect("the queue has room");
}

/// Drives the sender and the receiver until `holds` returns true.
fn drive_until(a: &End, b: &Receiver, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        a.device.domain().drive(|_| true);
        b.device.answer_queries();
        b.device.domain().drive(|_| true);
        assert!(started.elapsed() < Duration::from_secs(5), "the ends have nothing more to do");
    }
}

/// Polls a completion queue of the receiver until it has a completion, and drives the sender.
/// Returns the `wr_id`.
fn next_receive(cq: &VirtualCq, a: &End, b: &Receiver) -> u64 {
    let (started, mut wcs) = (Instant::now(), Vec::new());
    while wcs.is_empty() {
        a.device.domain().drive(|_| true);
        b.device.answer_queries();
        cq.poll(1, &mut wcs).expect("no NIC is polled");
        assert!(started.elapsed() < Duration::from_secs(5), "no message has arrived");
    }
    assert_eq!(wcs[0].status, WcStatus::Success);
    wcs[0].wr_id
}

/// Only the thread that polls drives the receiver.
#[test]
fn poll_of_a_completion_queue_drives_the_receivers_of_the_domain() {
    let b = Receiver::new();
    let [early, late] = [(); 2].map(|()| virtual_cq(&b.device, DEPTH));
    let first = b.add_srq(1, &early);
    let (a, _qp) = b.connect();
    let second = b.add_srq(2, &late); // after the queue pair
    b.post_recv(&first, 10);
    b.post_recv(&second, 20);
    for (number, cq, wr_id) in [(1, &early, 10), (2, &late, 20)] {
        send(&a, wr_id, number);
        assert_eq!(next_receive(cq, &a, &b), wr_id);
    }
}

/// A message that has arrived before its receive takes the receive as soon as the receive is
/// posted.
#[test]
fn posted_receive_is_taken_at_once_by_a_message_that_waits() {
    let b = Receiver::new();
    let cq = virtual_cq(&b.device, DEPTH);
    let first = b.add_srq(1, &cq);
    let (a, qp) = b.connect();
    let second = b.add_srq(2, &cq);
    b.post_recv(&first, 9);
    for (number, srq) in [(1, &first), (2, &second)] {
        if number == 1 {
            send(&a, 1, 1);
            assert_eq!(next_receive(&cq, &a, &b), 9);
        }
        send(&a, 2, number);
        let started = Instant::now();
        while qp.lock().vqp.waiting_messages() == 0 {
            a.device.domain().drive(|_| true);
            b.device.answer_queries();
            b.device.domain().drive(|_| true);
            assert!(started.elapsed() < Duration::from_secs(5), "no message has arrived");
        }
        b.post_recv(srq, 10);
        assert_eq!(qp.lock().vqp.waiting_messages(), 0, "queue {number}");
        assert_eq!(next_receive(&cq, &a, &b), 10);
    }
}

/// The queue pair is idle otherwise, so only the end of the queue can wake it.
#[test]
fn destroyed_queue_ends_the_messages_that_wait_for_its_receives() {
    let b = Receiver::new();
    let cq = virtual_cq(&b.device, DEPTH);
    let first = b.add_srq(1, &cq);
    let (a, qp) = b.connect();
    b.post_recv(&first, 9); // so that messages have a place to wait
    send(&a, 1, 1);
    assert_eq!(next_receive(&cq, &a, &b), 9);
    let _second = b.add_srq(2, &cq);
    send(&a, 2, 2);
    drive_until(&a, &b, || qp.lock().vqp.waiting_messages() > 0);
    b.domain.remove_srq(Srqn::new(2));
    b.device.domain().drive(|_| true);
    assert_eq!(qp.lock().vqp.waiting_messages(), 0);
}

/// Two shared receive queues complete in one completion queue, and one of the two is destroyed.
#[test]
fn destroyed_queue_leaves_the_completion_queue_of_another_as_it_is() {
    let b = Receiver::new();
    let (shared, own) = (virtual_cq(&b.device, DEPTH), virtual_cq(&b.device, DEPTH));
    let srq = b.add_srq(1, &shared);
    let _others = [(2, &shared), (3, &own)].map(|(number, cq)| b.add_srq(number, cq));
    let (a, _qp) = b.connect();
    [2, 3].into_iter().for_each(|number| b.domain.remove_srq(Srqn::new(number)));
    assert!(own.users.is_empty() && !shared.users.is_empty());
    assert!(b.domain.queues.queue(Srqn::new(2)).is_none(), "messages for it are refused");
    b.post_recv(&srq, 10);
    send(&a, 1, 1);
    assert_eq!(next_receive(&shared, &a, &b), 10);
}

/// As on a NIC, a queue pair fails if its completion queue has lost a completion.
#[test]
fn overflow_of_a_completion_queue_of_the_domain_ends_the_receiver() {
    let b = Receiver::new();
    let small = virtual_cq(&b.device, 1);
    let srq = b.add_srq(1, &small);
    let (a, qp) = b.connect();
    for wr_id in 1..3 {
        b.post_recv(&srq, wr_id);
        send(&a, wr_id, 1);
    }
    drive_until(&a, &b, || qp.status().state == QpState::Err);
    assert_eq!(b.memory.load(0), 0);
}

/// All queues and queue pairs of an XRC domain are in the protection domain of the first queue,
/// until the XRC domain is empty.
#[test]
fn domain_keeps_its_protection_domain_until_it_is_empty() {
    for qp_goes_first in [false, true] {
        let b = Receiver::new();
        let (cq, other) = (virtual_cq(&b.device, DEPTH), alloc_pd(&b.device));
        let add_foreign = || b.try_add_srq(2, &other, &cq).map(drop);
        let _srq = b.add_srq(1, &cq);
        // `qp` lives on, like a queue pair that lingers or that a thread still drives.
        let qp = b.create_qp();
        assert!(add_foreign().is_err());
        let remove_srq = || b.domain.remove_srq(Srqn::new(1));
        if qp_goes_first {
            b.device.destroy_qp(Arc::clone(&qp));
            assert!(add_foreign().is_err(), "a queue is left");
            remove_srq();
        } else {
            remove_srq();
            assert!(add_foreign().is_err(), "a queue pair is left");
            b.device.destroy_qp(Arc::clone(&qp));
        }
        assert_eq!(add_foreign(), Ok(()), "{qp_goes_first}");
    }
}
