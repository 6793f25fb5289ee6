//! Two software NICs in one process, connected, and the little that tests do with them.
#![allow(dead_code, unreachable_pub)] // each test binary uses its own part

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mitra_softnic::{Config, SoftNic};
use mitra_verbs::*;

/// Long enough for any machine: what takes longer hangs.
pub const PATIENCE: Duration = Duration::from_secs(30);
pub const MEMORY: usize = 1 << 20;

/// A NIC with memory, a completion queue and an RC queue pair.
pub struct End {
    pub nic: Arc<SoftNic>,
    pub pd: PdId,
    pub cq: CqId,
    pub qp: Qpn,
    pub memory: Arc<Buffer>,
    pub mr: Mr,
}

/// What queue pairs are connected with.
#[derive(Clone, Copy)]
pub struct Link {
    pub mtu: Mtu,
    pub timeout: u8,
    pub retry_cnt: u8,
}

impl Default for Link {
    fn default() -> Link {
        // 67 ms per attempt: a busy machine is not a lost packet.
        Link { mtu: Mtu::M4096, timeout: 14, retry_cnt: 7 }
    }
}

pub fn open(config: Config) -> Arc<SoftNic> {
    SoftNic::open(config).unwrap_or_else(|e| panic!("{e}"))
}

/// Two connected ends on NICs of their own.
pub fn pair() -> (End, End) {
    pair_of(Config::loopback(), Config::loopback(), Link::default())
}

pub fn pair_of(a: Config, b: Config, link: Link) -> (End, End) {
    let (a, b) = (End::new(open(a)), End::new(open(b)));
    connect(&a, &b, link);
    (a, b)
}

pub fn connect(a: &End, b: &End, link: Link) {
    a.connect_to(b.gid(), b.qp, link);
    b.connect_to(a.gid(), a.qp, link);
}

impl End {
    pub fn new(nic: Arc<SoftNic>) -> End {
        let memory = Arc::new(Buffer::new(MEMORY));
        let cq = nic.create_cq(1024, None).unwrap();
        End::with(nic, memory, cq)
    }

    pub fn with(nic: Arc<SoftNic>, memory: Arc<Buffer>, cq: CqId) -> End {
        let pd = nic.alloc_pd().unwrap();
        let mr = nic.reg_mr(pd, Arc::clone(&memory), Access::LOCAL_WRITE | Access::REMOTE).unwrap();
        let init = QpInitAttr {
            qp_type: QpType::Rc,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            cap: QpCap { send_wrs: 256, recv_wrs: 256, ..QpCap::default() },
            sq_sig_all: false,
        };
        let qp = nic.create_qp(&init).unwrap();
        End { nic, pd, cq, qp, memory, mr }
    }

    pub fn gid(&self) -> Gid {
        self.nic.query_port().unwrap().gid
    }

    pub fn ip(&self) -> IpAddr {
        self.gid().into()
    }

    pub fn connect_to(&self, gid: Gid, qpn: Qpn, link: Link) {
        let connection = RcConnection {
            path_mtu: link.mtu,
            rq_psn: Psn::new(0xff_fff0),
            sq_psn: Psn::new(0xff_fff0),
            rd_atomic: 16,
            local_ack_timeout: LocalAckTimeout::from_code(link.timeout),
            retry_cnt: link.retry_cnt,
            ..RcConnection::to(gid, qpn)
        };
        connection.connect(&*self.nic, self.qp).unwrap();
    }

    /// A whole send request on this end's memory.
    pub fn post(&self, wr_id: u64, op: SendOp, offset: u64, len: u32) {
        let data = if len == 0 { Data::empty() } else { Data::sge(self.mr.sge(offset, len)) };
        self.nic.post_send(self.qp, &[SendWr::new(wr_id, op, data)]).unwrap();
    }

    pub fn post_recv(&self, wr_id: u64, offset: u64, len: u32) {
        self.nic.post_recv(self.qp, &[RecvWr::new(wr_id, self.mr.sge(offset, len))]).unwrap();
    }

    /// The next completion, whatever it is, polling for it.
    pub fn completion(&self) -> Wc {
        let mut wcs = Vec::new();
        until("a completion", || self.nic.poll_cq(self.cq, 1, &mut wcs).unwrap() == 1);
        wcs[0]
    }

    /// The next completion, which is a success.
    pub fn success(&self) -> Wc {
        let wc = self.completion();
        assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
        wc
    }

    pub fn fill(&self, offset: usize, len: usize, seed: u8) {
        self.memory.write_at(offset, &pattern(len, seed));
    }

    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.memory.read_at(offset, &mut out);
        out
    }

    pub fn counter(&self, name: &str) -> u64 {
        let all = self.nic.counters();
        all.iter().find(|c| c.name == name).unwrap_or_else(|| panic!("no counter {name}")).value
    }
}

pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8 ^ seed).collect()
}

/// Waits, polling, until something holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "waited too long for {what}");
        std::thread::yield_now();
    }
}

/// Waits without driving any NIC from this thread.
pub fn asleep_until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
