//! Tests of a software NIC's operations on registered program memory, mapped and unmapped.

use std::time::{Duration, Instant};

use mitra_nics::NicKind;
use mitra_verbs::*;

use super::*;

/// A NIC with a queue pair and two registered pages of program memory.
struct Endpoint {
    nic: Arc<dyn Nic>,
    cq: CqId,
    qp: Qpn,
    mr: Mr,
    pages: Pages,
}

impl Endpoint {
    fn new() -> Endpoint {
        Endpoint::on(NicKind::Soft.open_free().unwrap())
    }

    /// Deregisters the memory and creates another endpoint on the same NIC.
    fn recreate(self) -> Endpoint {
        self.nic.dereg_mr(self.mr.id).unwrap();
        Endpoint::on(self.nic)
    }

    fn on(nic: Arc<dyn Nic>) -> Endpoint {
        let cq = nic.create_cq(64, None).unwrap();
        let pd = nic.alloc_pd().unwrap();
        let pages = Pages::new(2);
        let mr = nic.reg_mr(pd, pages.buffer(0), Access::LOCAL_WRITE | Access::REMOTE).unwrap();
        let init = QpInitAttr {
            qp_type: QpType::Rc,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            cap: QpCap { send_wrs: 4, recv_wrs: 4, ..QpCap::default() },
            sq_sig_all: false,
        };
        let qp = nic.create_qp(&init).unwrap();
        Endpoint { nic, cq, qp, mr, pages }
    }

    fn connect_to(&self, peer: &Endpoint) {
        let connection =
            RcConnection { rd_atomic: 4, ..RcConnection::to(peer.nic.query_port().unwrap().gid, peer.qp) };
        connection.connect(&*self.nic, self.qp).unwrap();
    }

    fn run(&self, op: SendOp, len: u32) -> WcStatus {
        self.nic.post_send(self.qp, &[SendWr::new(1, op, Data::sge(self.mr.sge(0, len)))]).unwrap();
        let (mut wcs, started) = (Vec::new(), Instant::now());
        while self.nic.poll_cq(self.cq, 1, &mut wcs).unwrap() == 0 {
            assert!(started.elapsed() < Duration::from_secs(30), "no completion");
            thread::yield_now();
        }
        wcs[0].status
    }
}

fn pair() -> (Endpoint, Endpoint) {
    let (a, b) = (Endpoint::new(), Endpoint::new());
    a.connect_to(&b);
    b.connect_to(&a);
    (a, b)
}

/// The operations that access the peer's memory, and their lengths in bytes.
fn operations(remote: RemoteAddr) -> [(SendOp, u32); 4] {
    [
        (SendOp::Write(remote), 5000),
        (SendOp::Read(remote), 5000),
        (SendOp::FetchAdd { remote, add: 1 }, 8),
        (SendOp::CompareSwap { remote, compare: 0, swap: 1 }, 8),
    ]
}

#[test]
fn operations_access_program_memory_in_place() {
    let (a, b) = pair();
    for end in [&a, &b] {
        assert_eq!(end.mr.addr, end.pages.start.addr() as u64);
    }
    let word = |end: &Endpoint, at: usize| end.pages.at(at).cast::<u64>();
    // SAFETY: the pages are mapped, and the NICs do not access them at this time.
    unsafe { word(&a, 4096).write_volatile(77) };
    for (op, len) in operations(b.mr.remote(0)) {
        assert_eq!(a.run(op, len), WcStatus::Success, "{op:?}");
    }
    // SAFETY: the pages are mapped, and all operations have completed.
    let words =
        unsafe { [word(&a, 0).read_volatile(), word(&b, 0).read_volatile(), word(&b, 4096).read_volatile()] };
    assert_eq!(
        words,
        [1, 1, 77],
        "the fetch-and-add adds 1 to 0; the compare-and-swap expects 0 and changes nothing"
    );
}

#[test]
fn access_to_unmapped_remote_memory_completes_with_an_error() {
    for at in 0..4 {
        let (a, b) = pair();
        // The second of the two pages that a WRITE or READ covers, or the page with an atomic's
        // operand.
        b.pages.unmap(if at < 2 { 1 } else { 0 });
        let (op, len) = operations(b.mr.remote(0))[at];
        assert_eq!(a.run(op, len), WcStatus::RemoteOperation, "{op:?}");
        // Both NICs still work with new queue pairs and mapped memory.
        let (a, b) = (a.recreate(), b.recreate());
        a.connect_to(&b);
        b.connect_to(&a);
        assert_eq!(a.run(SendOp::Write(b.mr.remote(0)), 5000), WcStatus::Success);
        assert_eq!(b.run(SendOp::Read(a.mr.remote(0)), 5000), WcStatus::Success);
    }
}

#[test]
fn access_to_unmapped_local_memory_completes_with_an_error() {
    for at in 0..2 {
        let (a, b) = pair();
        a.pages.unmap(1);
        let (op, len) = operations(b.mr.remote(0))[at];
        assert_eq!(a.run(op, len), WcStatus::LocalProtection, "{op:?}");
    }
}
