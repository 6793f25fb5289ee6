//! The traffic class of datagrams: from the address handle to the packet, and from the packet to
//! the GRH.

use crate::common::*;
use mitra_transport::{IpPath, Nic, NicConfig, TxBatch, VecMemory};
use mitra_verbs::*;
use mitra_wire::{Deth, Message, Packet, Transport};

/// A class with bits set in both halves of its byte.
const CLASS: u8 = 0xa5;

/// Sends to one address with different classes are in different batches.
#[test]
fn each_batch_has_class_of_its_address_handle() {
    let mut p = Setup { qp_type: QpType::Ud, ..Setup::default() }.pair();
    let node = &mut p.nodes[0];
    let classes = [0, CLASS, CLASS, 7, 0];
    for (wr_id, traffic_class) in (0..).zip(classes) {
        let ah = node.nic.create_ah(node.pd, IpPath { address: gid(1), traffic_class }).unwrap();
        let to = UdDestination { ah, qpn: Qpn::new(9), qkey: 1 };
        let wr = SendWr::new(wr_id, SendOp::Send, Data::inline(&[wr_id as u8; 4])).to(to);
        node.nic.post_send(p.now, node.qp, &[wr]).unwrap();
    }
    let (mut batch, mut sent) = (TxBatch::new(), Vec::new());
    while node.nic.poll_transmit(p.now, &mut node.memory, &mut batch) {
        for datagram in batch.datagrams() {
            let payload = Packet::parse(&datagram[..datagram.len() - 4]).unwrap().payload[0];
            sent.push((payload, batch.destination, batch.traffic_class));
        }
    }
    let expected: Vec<_> = (0..).zip(classes).map(|(i, class)| (i, gid(1), class)).collect();
    assert_eq!(sent, expected);
}

/// Delivers a datagram from `from` to a NIC with the address `to`, and returns the GRH area of the
/// receive buffer.
fn received_grh(from: Gid, to: Gid) -> Vec<u8> {
    let setup = Setup { qp_type: QpType::Ud, ..Setup::default() };
    let (now, mut nic) = (Time::ZERO, Nic::new(NicConfig::new("nic", to, [1; 32])));
    let mut memory = ByteMemory { regions: VecMemory(vec![vec![0; 64]]), ..ByteMemory::default() };
    let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(4).unwrap());
    let mr = nic.reg_mr(now, pd, RegionId(0), BASE, 64, ALL_ACCESS).unwrap();
    let (qp_type, cap) = (QpType::Ud, setup.cap);
    let init = QpInitAttr { qp_type, pd, send_cq: cq, recv_cq: cq, srq: None, cap, sq_sig_all: false };
    let qp = nic.create_qp(now, &init).unwrap();
    nic.modify_qp(now, qp, &setup.to_init()).unwrap();
    nic.modify_qp(now, qp, &QpAttr::to(QpState::Rtr)).unwrap();
    nic.post_recv(qp, &[RecvWr::new(1, mr.sge(0, 64))]).unwrap();
    let deth = Deth { qkey: qkey(QpType::Ud), src_qp: Qpn::new(3) };
    let packet = Packet::new(Transport::Ud(deth), qp, Psn::new(0), Message::SendOnly, b"data");
    nic.handle_packet(now, IpPath { address: from, traffic_class: CLASS }, &packet, &mut memory);
    assert_eq!(nic.cq_len(cq), Ok(1));
    memory.regions.0[0][..40].to_vec()
}

#[test]
fn ipv4_header_contains_class_and_valid_checksum() {
    let grh = received_grh(gid(0), gid(1));
    assert_eq!(grh[21], CLASS);
    let sum: u32 = grh[20..].chunks(2).map(|c| u32::from(c[0]) << 8 | u32::from(c[1])).sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
}

#[test]
fn ipv6_header_contains_class() {
    let [from, to] = [1, 2].map(|last| {
        let mut gid = [0; 16];
        (gid[0], gid[15]) = (0xfd, last);
        Gid(gid)
    });
    let grh = received_grh(from, to);
    assert_eq!(grh[..4], [0x60 | CLASS >> 4, CLASS << 4, 0, 0]);
    assert_eq!((&grh[8..24], &grh[24..]), (&from.0[..], &to.0[..]));
}
