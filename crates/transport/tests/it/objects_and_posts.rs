//! The lifetime of objects, and the validation of posts.

use crate::common::*;
use mitra_transport::{Nic, NicConfig, TxBatch};
use mitra_verbs::*;
use mitra_wire::Packet;

fn write(p: &NicPair, wr_id: u64, len: u32) -> SendWr {
    SendWr::new(wr_id, SendOp::Write(p.remote(0)), Data::sge(p.sge(0, 0, len)))
}

#[test]
fn used_objects_are_busy_and_stale_handles_are_invalid() {
    let mut p = pair();
    let node = &mut p.nodes[0];
    let nic = &mut node.nic;
    assert!(matches!(nic.destroy_cq(node.send_cq), Err(Error::Busy { .. })));
    assert!(matches!(nic.destroy_cq(node.recv_cq), Err(Error::Busy { .. })));
    assert!(matches!(nic.dealloc_pd(node.pd), Err(Error::Busy { .. })));
    nic.destroy_qp(p.now, node.qp).unwrap();
    assert!(matches!(nic.query_qp(node.qp), Err(Error::NoSuchObject { kind: "queue pair", .. })));
    assert!(nic.destroy_qp(p.now, node.qp).is_err());
    nic.destroy_cq(node.send_cq).unwrap();
    nic.destroy_cq(node.recv_cq).unwrap();
    assert!(nic.poll_cq(node.recv_cq, 1, &mut Vec::new()).is_err());
    assert!(matches!(nic.dealloc_pd(node.pd), Err(Error::Busy { user: "a memory region or window", .. })));
    nic.dereg_mr(p.now, node.mr.id).unwrap();
    let ah = nic.create_ah(node.pd, gid(0)).unwrap();
    assert!(matches!(nic.dealloc_pd(node.pd), Err(Error::Busy { .. })));
    nic.destroy_ah(ah).unwrap();
    nic.dealloc_pd(node.pd).unwrap();
    assert!(nic.create_srq(node.pd, 1).is_err());
    assert_eq!(nic.poll_timeout().map(|t| t > p.now), None, "a destroyed queue pair has no timer");
}

#[test]
fn destroyed_qp_leaves_no_completions_or_timers() {
    let mut p = pair();
    for i in 0..8 {
        p.post(write(&p, i, 3000));
    }
    p.transmit_all();
    for node in &mut p.nodes {
        node.nic.destroy_qp(p.now, node.qp).unwrap();
    }
    p.run();
    assert!(p.send_completions(0).is_empty());
    assert!(p.counter(1, "drop_no_qp") > 0);
}

#[test]
fn qp_numbers_are_not_reused_within_quarantine() {
    let mut config = NicConfig::new("nic", gid(3), [9; 32]);
    config.limits.qps = 4;
    let mut nic = Nic::new(config);
    let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(4).unwrap());
    let init = QpInitAttr {
        qp_type: QpType::Rc,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        cap: QpCap::default(),
        sq_sig_all: false,
    };
    let now = Time::ZERO;
    let mut seen = std::collections::BTreeSet::new();
    let mut last = None;
    for _ in 0..100_000 {
        let qp = nic.create_qp(now, &init).unwrap();
        assert!(seen.insert(qp), "{qp} is reused");
        assert!(![0, 1, 0xff_ffff].contains(&qp.value()));
        if let Some(old) = last.replace(qp) {
            nic.destroy_qp(now, old).unwrap();
        }
    }
    let live: Vec<Qpn> = (0..3).map(|_| nic.create_qp(now, &init).unwrap()).collect();
    let refused = nic.create_qp(now, &init).unwrap_err();
    assert_eq!(refused.to_string(), "queue pairs: 5 exceeds this device's limit; use at most 4");
    nic.destroy_qp(now, live[0]).unwrap();
    nic.create_qp(now, &init).unwrap();
}

#[test]
fn every_bit_of_first_qp_number_varies() {
    let first = |seed| {
        let mut nic = Nic::new(NicConfig::new("nic", gid(3), [seed; 32]));
        let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(4).unwrap());
        let init = QpInitAttr { pd, send_cq: cq, recv_cq: cq, ..pair().status(0).init };
        nic.create_qp(Time::ZERO, &init).unwrap().value()
    };
    let numbers: Vec<u32> = (0..64).map(first).collect();
    assert_eq!(numbers.iter().fold(0, |all, n| all | n), 0xff_ffff);
    assert_eq!(numbers.iter().fold(0xff_ffff, |all, n| all & n), 0);
}

#[test]
fn qp_capacities_beyond_limits_are_refused() {
    let mut p = pair();
    let init = p.status(0).init;
    let nic = &mut p.nodes[0].nic;
    for cap in [
        QpCap { send_wrs: 1 << 20, ..init.cap },
        QpCap { recv_wrs: 1 << 20, ..init.cap },
        QpCap { send_sges: 17, ..init.cap },
        QpCap { recv_sges: 17, ..init.cap },
        QpCap { inline: 257, ..init.cap },
    ] {
        let refused = nic.create_qp(p.now, &QpInitAttr { cap, ..init }).unwrap_err();
        assert!(matches!(refused, Error::Limit { .. }), "{refused}");
    }
    for bad in [
        QpInitAttr { pd: PdId(77), ..init },
        QpInitAttr { send_cq: CqId(77), ..init },
        QpInitAttr { recv_cq: CqId(77), ..init },
        QpInitAttr { srq: Some(SrqId(77)), ..init },
    ] {
        assert!(matches!(nic.create_qp(p.now, &bad), Err(Error::NoSuchObject { .. })));
    }
    // The refused calls hold no reference to the objects that they named.
    let cq = init.send_cq;
    let (qp, recv_cq) = (p.nodes[0].qp, init.recv_cq);
    let nic = &mut p.nodes[0].nic;
    nic.destroy_qp(p.now, qp).unwrap();
    nic.destroy_cq(cq).unwrap();
    nic.destroy_cq(recv_cq).unwrap();
}

#[test]
fn invalid_sends_are_refused_at_posting() {
    let mut p = pair();
    let remote = p.remote(0);
    let one = |len| Data::sge(p.sge(0, 0, len));
    let many = Data::Sges((0..5).map(|_| p.sge(0, 0, 1)).collect());
    let long = Data::Sges(SgeList::from_slice(&[p.sge(0, 0, 1 << 30), p.sge(0, 0, 1)]));
    let faa = SendOp::FetchAdd { remote, add: 1 };
    let to = UdDestination { ah: AhId(0), qpn: Qpn::new(2), qkey: 0 };
    for wr in [
        SendWr::new(1, SendOp::Write(remote), many.clone()),
        SendWr::new(1, faa, many),
        SendWr::new(1, SendOp::Send, one(8)).to(to),
        SendWr::new(1, SendOp::LocalInvalidate(Key(1)), one(8)),
        SendWr::new(1, SendOp::Write(remote), long),
        SendWr::new(1, faa, Data::inline(&[0; 8])),
        SendWr::new(1, SendOp::Read(remote), Data::inline(b"x")),
    ] {
        let refused = p.post_on(0, core::slice::from_ref(&wr));
        assert!(refused.is_err(), "{wr:?}");
    }
}

#[test]
fn fetches_without_resources_complete_with_error() {
    for fetch in 0..2 {
        let mut p = Setup { rd_atomic: 0, ..Setup::default() }.pair();
        let remote = p.remote(0);
        let op = [SendOp::Read(remote), SendOp::FetchAdd { remote, add: 1 }][fetch];
        let write = SendWr::new(1, SendOp::Write(remote), Data::inline(b"x"));
        p.post_on(0, &[write, SendWr::new(2, op, Data::sge(p.sge(0, 0, 8)))]).unwrap();
        p.run();
        let expected = [(1, WcStatus::Success), (2, WcStatus::LocalQpOperation)];
        assert_eq!(statuses(&p.send_completions(0)), expected);
    }
}

#[test]
fn atomics_need_eight_bytes_of_local_memory() {
    let lists: [(&[(u32, u32)], bool); 5] =
        [(&[(0, 4)], false), (&[], false), (&[(0, 8)], true), (&[(0, 16)], true), (&[(0, 4), (4, 4)], true)];
    for (list, succeeds) in lists {
        let mut p = pair();
        let sges = list.iter().map(|&(offset, len)| p.sge(0, offset.into(), len)).collect();
        let faa = SendOp::FetchAdd { remote: p.remote(0), add: 5 };
        p.post(SendWr::new(1, faa, Data::Sges(sges)));
        p.run();
        let status = if succeeds { WcStatus::Success } else { WcStatus::LocalLength };
        assert_eq!(statuses(&p.send_completions(0)), [(1, status)], "{list:?}");
        assert_eq!(p.bytes(1)[0], if succeeds { 5 } else { 0 }, "{list:?}");
    }
}

#[test]
fn nic_can_be_cloned_compared_and_hashed() {
    fn hash(nic: &Nic) -> u64 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        nic.hash(&mut hasher);
        hasher.finish()
    }
    fn sendable<T: Send + Sync>(_: &T) {}
    let mut p = pair();
    p.post(write(&p, 1, 3000));
    let copy = p.nodes[0].nic.clone();
    sendable(&copy);
    assert!(copy == p.nodes[0].nic && hash(&copy) == hash(&p.nodes[0].nic));
    p.transmit_all();
    assert!(copy != p.nodes[0].nic && hash(&copy) != hash(&p.nodes[0].nic));
    // The copy sends the same packets.
    let node = &mut p.nodes[0];
    let (mut batch, mut copy) = (TxBatch::new(), copy);
    assert!(copy.poll_transmit(p.now, &mut node.memory, &mut batch));
    let psns: Vec<_> = batch.datagrams().map(|d| Packet::parse(d).unwrap().psn).collect();
    assert_eq!(psns, p.sent.iter().map(|s| s.psn).collect::<Vec<_>>());
    assert!(copy == p.nodes[0].nic);
}
