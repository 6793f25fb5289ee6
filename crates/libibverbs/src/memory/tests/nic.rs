//! Lent memory behind a whole NIC.

use std::time::{Duration, Instant};

use mitra_softnic::{Config, SoftNic};
use mitra_verbs::*;

use super::*;

/// A NIC, a queue pair, and two pages of the program's.
struct End {
    nic: Arc<SoftNic>,
    cq: CqId,
    qp: Qpn,
    mr: Mr,
    pages: Pages,
}

impl End {
    fn new() -> End {
        End::on(SoftNic::open(Config::loopback()).unwrap())
    }

    /// Another, on the same NIC.
    fn again(self) -> End {
        self.nic.dereg_mr(self.mr.id).unwrap();
        End::on(self.nic)
    }

    fn on(nic: Arc<SoftNic>) -> End {
        let cq = nic.create_cq(64, None).unwrap();
        let pd = nic.alloc_pd().unwrap();
        let pages = Pages::new(2);
        let mr = nic.reg_mr(pd, pages.lend(0), Access::LOCAL_WRITE | Access::REMOTE).unwrap();
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
        End { nic, cq, qp, mr, pages }
    }

    fn connect_to(&self, peer: &End) {
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

fn pair() -> (End, End) {
    let (a, b) = (End::new(), End::new());
    a.connect_to(&b);
    b.connect_to(&a);
    (a, b)
}

/// Every operation that meets the peer's memory, and how many bytes.
fn operations(remote: RemoteAddr) -> [(SendOp, u32); 4] {
    [
        (SendOp::Write(remote), 5000),
        (SendOp::Read(remote), 5000),
        (SendOp::FetchAdd { remote, add: 1 }, 8),
        (SendOp::CompareSwap { remote, compare: 0, swap: 1 }, 8),
    ]
}

#[test]
fn the_programs_memory_is_written_and_read_where_it_lies() {
    let (a, b) = pair();
    for end in [&a, &b] {
        assert_eq!(end.mr.addr, end.pages.start.addr() as u64);
    }
    let word = |end: &End, at: usize| end.pages.at(at).cast::<u64>();
    // SAFETY: the pages are there, and only the NICs touch them besides.
    unsafe { word(&a, 4096).write_volatile(77) };
    for (op, len) in operations(b.mr.remote(0)) {
        assert_eq!(a.run(op, len), WcStatus::Success, "{op:?}");
    }
    // SAFETY: as above.
    let seen =
        unsafe { [word(&a, 0).read_volatile(), word(&b, 0).read_volatile(), word(&b, 4096).read_volatile()] };
    assert_eq!(seen, [1, 1, 77], "1 was added to 0, and swapped for 1 only if it were 0");
}

#[test]
fn who_uses_memory_that_its_peer_unmapped_gets_an_error_and_both_live() {
    for at in 0..4 {
        let (a, b) = pair();
        // The second page of what is written and read; all that an atomic wants.
        b.pages.unmap(if at < 2 { 1 } else { 0 });
        let (op, len) = operations(b.mr.remote(0))[at];
        assert_eq!(a.run(op, len), WcStatus::RemoteOperation, "{op:?}");
        // Both NICs go on, each way, with new queue pairs and on memory that is there.
        let (a, b) = (a.again(), b.again());
        a.connect_to(&b);
        b.connect_to(&a);
        assert_eq!(a.run(SendOp::Write(b.mr.remote(0)), 5000), WcStatus::Success);
        assert_eq!(b.run(SendOp::Read(a.mr.remote(0)), 5000), WcStatus::Success);
    }
}

#[test]
fn who_unmaps_its_own_memory_gets_an_error() {
    for at in 0..2 {
        let (a, b) = pair();
        a.pages.unmap(1);
        let (op, len) = operations(b.mr.remote(0))[at];
        assert_eq!(a.run(op, len), WcStatus::LocalProtection, "{op:?}");
    }
}
