//! Tests of whom an atomic is atomic against: a hook between its load and its store makes the race certain.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use mitra_verbs::*;

use crate::{Config, SoftNic};

/// A NIC with the shared word registered, a queue pair, and its completions.
struct Rail {
    nic: Arc<SoftNic>,
    mr: Mr,
    cq: CqId,
    qp: Qpn,
}

impl Rail {
    fn new(memory: &Arc<Buffer>, atomics: AtomicScope) -> Rail {
        let nic = SoftNic::open(Config { atomics, ..Config::loopback() }).unwrap();
        let pd = nic.alloc_pd().unwrap();
        let mr = nic.reg_mr(pd, Arc::clone(memory), Access::LOCAL_WRITE | Access::REMOTE).unwrap();
        let cq = nic.create_cq(16, None).unwrap();
        let (qp_type, cap) = (QpType::Rc, QpCap::default());
        let init = QpInitAttr { qp_type, pd, send_cq: cq, recv_cq: cq, srq: None, cap, sq_sig_all: false };
        let qp = nic.create_qp(&init).unwrap();
        // Each rail's requester is its own responder.
        let access = Some(Access::REMOTE);
        let init = QpAttr { pkey_index: Some(0), port: Some(1), access, ..QpAttr::to(QpState::Init) };
        let rtr = QpAttr {
            dest_gid: Some(nic.query_port().unwrap().gid),
            dest_qpn: Some(qp),
            path_mtu: Some(Mtu::M1024),
            rq_psn: Some(Psn::new(1)),
            max_dest_rd_atomic: Some(4),
            min_rnr_timer: Some(1),
            ..QpAttr::to(QpState::Rtr)
        };
        let rts = QpAttr {
            sq_psn: Some(Psn::new(1)),
            timeout: Some(18),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(4),
            ..QpAttr::to(QpState::Rts)
        };
        for attr in [init, rtr, rts] {
            nic.modify_qp(qp, &attr).unwrap();
        }
        Rail { nic, mr, cq, qp }
    }

    /// Adds 1 to the word; the old value goes to `result`.
    fn add(&self, result: u64) {
        let op = SendOp::FetchAdd { remote: self.mr.remote(0), add: 1 };
        self.nic.post_send(self.qp, &[SendWr::new(1, op, Data::sge(self.mr.sge(result, 8)))]).unwrap();
        let (mut wcs, started) = (Vec::new(), Instant::now());
        while self.nic.poll_cq(self.cq, 1, &mut wcs).unwrap() == 0 {
            assert!(started.elapsed() < Duration::from_secs(30), "no completion");
        }
        assert_eq!(wcs[0].status, WcStatus::Success);
    }
}

/// Adds once through each of two rails at the same time.
fn add_through_both(rails: &[Rail; 2]) {
    std::thread::scope(|scope| {
        for (rail, result) in rails.iter().zip([8, 16]) {
            scope.spawn(move || rail.add(result));
        }
    });
}

#[test]
fn two_rails_lose_an_increment() {
    let memory = Arc::new(Buffer::new(64));
    let rails = [Rail::new(&memory, AtomicScope::Nic), Rail::new(&memory, AtomicScope::Nic)];
    let both_loaded = Arc::new(Barrier::new(2));
    for rail in &rails {
        rail.nic.meet_in_atomics(Some(Arc::clone(&both_loaded)));
    }
    add_through_both(&rails);
    assert_eq!(memory.load(0), 1, "two increments, both acknowledged, one lost");
    assert_eq!((memory.load(8), memory.load(16)), (0, 0));

    // One rail's own atomics do not interleave: its lock is around load and store.
    for rail in &rails {
        rail.nic.meet_in_atomics(None);
    }
    for _ in 0..10 {
        rails[0].add(8);
    }
    assert_eq!(memory.load(0), 11);
}

#[test]
fn globally_atomic_rails_lose_none() {
    let memory = Arc::new(Buffer::new(64));
    let rails = [Rail::new(&memory, AtomicScope::Global), Rail::new(&memory, AtomicScope::Global)];
    assert_eq!(rails[0].nic.attr().capabilities.atomic_scope, AtomicScope::Global);
    for _ in 0..500 {
        add_through_both(&rails);
    }
    assert_eq!(memory.load(0), 1000);
}
