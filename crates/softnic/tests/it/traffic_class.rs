//! The traffic class of datagrams between two sockets.

use std::time::Duration;

use crate::common::*;
use mitra_softnic::fault::Noise;
use mitra_verbs::*;

const QKEY: u32 = 7;

/// A UD queue pair in RTS, on the NIC of an endpoint.
fn ud_qp(end: &Endpoint) -> Qpn {
    let qp = QpBuilder::ud(end.pd, end.cq).build(&*end.nic).unwrap();
    let init = QpAttr { pkey_index: Some(0), port: Some(1), qkey: Some(QKEY), ..QpAttr::to(QpState::Init) };
    let rts = QpAttr { sq_psn: Some(Psn::new(0)), ..QpAttr::to(QpState::Rts) };
    for attr in [init, QpAttr::to(QpState::Rtr), rts] {
        end.nic.modify_qp(qp, &attr).unwrap();
    }
    qp
}

/// Sends a datagram with each class, and returns the classes in the received IPv4 headers.
fn received_classes(classes: &[u8], tx: Noise, rx: Noise) -> Vec<u8> {
    let (a, b) =
        (Endpoint::new(open(crate::common::loopback())), Endpoint::new(open(crate::common::loopback())));
    b.nic.receive_traffic_classes().unwrap();
    a.nic.faults().set_noise(tx, Noise::default());
    b.nic.faults().set_noise(Noise::default(), rx);
    let (from, to) = (ud_qp(&a), ud_qp(&b));
    let received = |&class: &u8| {
        let recv = RecvWr::new(1, b.mr.sge(0, 64));
        b.nic.post_recv(to, &[recv]).unwrap();
        let ah = a.nic.create_ah_with_traffic_class(a.pd, b.gid(), class).unwrap();
        let destination = UdDestination { ah, qpn: to, qkey: QKEY };
        a.nic
            .post_send(from, &[SendWr::new(1, SendOp::Send, Data::inline(b"data")).to(destination)])
            .unwrap();
        a.wait_success();
        b.wait_success();
        let mut header = [0; 20];
        b.memory.read_at(20, &mut header);
        assert_eq!(header[0], 0x45);
        header[1]
    };
    classes.iter().map(received).collect()
}

#[test]
fn delayed_datagrams_keep_their_class() {
    let delay = Noise { reorder_ppm: 1_000_000, max_delay: Duration::from_micros(500), ..Noise::default() };
    let classes = [0x28, 0, 0x50, 0];
    for (tx, rx) in [(delay, Noise::default()), (Noise::default(), delay), (delay, delay)] {
        assert_eq!(received_classes(&classes, tx, rx), classes);
    }
}
