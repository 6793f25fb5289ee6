//! Connected software NICs in one process, and helpers for the tests.
#![allow(dead_code, unreachable_pub)] // each test binary uses a part of this module

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mitra_softnic::{Config, Links, SoftNic};
use mitra_verbs::*;

/// The timeout of each wait. It exceeds the duration of every operation in these tests by far, even
/// on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(120);
/// The longest wait for links.
const MAX_LINK_WAIT: Duration = Duration::from_millis(100);
/// The size of each endpoint's registered memory, in bytes.
pub const MEMORY_SIZE: usize = 1 << 20;

pub struct Endpoint {
    pub nic: Arc<SoftNic>,
    pub pd: PdId,
    pub cq: CqId,
    pub qp: Qpn,
    pub memory: Arc<Buffer>,
    pub mr: Mr,
}

#[derive(Clone, Copy)]
pub struct LinkAttr {
    pub mtu: Mtu,
    pub timeout: u8,
    pub retry_cnt: u8,
}

impl Default for LinkAttr {
    fn default() -> LinkAttr {
        // 0.5 s per attempt. On a busy machine a thread may wait for a processor for as long as 8
        // attempts of 67 ms.
        LinkAttr { mtu: Mtu::M4096, timeout: 17, retry_cnt: 7 }
    }
}

/// The configuration of a NIC at a free loopback address, with the links of this test program.
pub fn loopback() -> Config {
    Config { links: crate::LINKS, ..Config::loopback() }
}

/// The configuration of a NIC at an address, with the links of this test program.
pub fn at(address: IpAddr) -> Config {
    Config { address: Some(address), ..loopback() }
}

pub fn open(config: Config) -> Arc<SoftNic> {
    SoftNic::open(config).unwrap_or_else(|e| panic!("{e}"))
}

/// Returns two connected endpoints, each on its own NIC.
pub fn connected_pair() -> (Endpoint, Endpoint) {
    connected_pair_with(loopback(), loopback(), LinkAttr::default())
}

pub fn connected_pair_with(a: Config, b: Config, link: LinkAttr) -> (Endpoint, Endpoint) {
    let (a, b) = (Endpoint::new(open(a)), Endpoint::new(open(b)));
    connect(&a, &b, link);
    (a, b)
}

pub fn connect(a: &Endpoint, b: &Endpoint, link: LinkAttr) {
    a.connect_to(b.gid(), b.qp, link);
    b.connect_to(a.gid(), a.qp, link);
    wait_for_links(a, b);
}

/// Waits until both NICs have links through shared memory, so that the first packet takes one. Some
/// tests open NICs that have none.
fn wait_for_links(a: &Endpoint, b: &Endpoint) {
    let is_linked = |end: &Endpoint| end.counter("rx_links") > 0;
    let started = Instant::now();
    while crate::LINKS == Links::Auto && !(is_linked(a) && is_linked(b)) && started.elapsed() < MAX_LINK_WAIT
    {
        std::thread::sleep(Duration::from_micros(100));
    }
}

impl Endpoint {
    pub fn new(nic: Arc<SoftNic>) -> Endpoint {
        let memory = Arc::new(Buffer::new(MEMORY_SIZE));
        let cq = nic.create_cq(1024, None).unwrap();
        Endpoint::with(nic, memory, cq)
    }

    pub fn with(nic: Arc<SoftNic>, memory: Arc<Buffer>, cq: CqId) -> Endpoint {
        let pd = nic.alloc_pd().unwrap();
        let mr = nic.reg_mr(pd, Arc::clone(&memory), Access::LOCAL_WRITE | Access::REMOTE).unwrap();
        let qp = QpBuilder::rc(pd, cq).send_wrs(256).recv_wrs(256).build(&*nic).unwrap();
        Endpoint { nic, pd, cq, qp, memory, mr }
    }

    pub fn gid(&self) -> Gid {
        self.nic.query_port().unwrap().gid
    }

    pub fn ip(&self) -> IpAddr {
        self.gid().into()
    }

    pub fn connect_to(&self, gid: Gid, qpn: Qpn, link: LinkAttr) {
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

    /// Posts a send request whose local buffer is a range of this endpoint's memory.
    pub fn post(&self, wr_id: u64, op: SendOp, offset: u64, len: u32) {
        let data = if len == 0 { Data::empty() } else { Data::sge(self.mr.sge(offset, len)) };
        self.nic.post_send(self.qp, &[SendWr::new(wr_id, op, data)]).unwrap();
    }

    pub fn post_recv(&self, wr_id: u64, offset: u64, len: u32) {
        self.nic.post_recv(self.qp, &[RecvWr::new(wr_id, self.mr.sge(offset, len))]).unwrap();
    }

    pub fn wait_completion(&self) -> Wc {
        let mut wcs = Vec::new();
        poll_until("a completion", || self.nic.poll_cq(self.cq, 1, &mut wcs).unwrap() == 1);
        wcs[0]
    }

    pub fn wait_success(&self) -> Wc {
        let wc = self.wait_completion();
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

/// Evaluates a condition, which may drive a NIC, in a loop until the condition holds.
pub fn poll_until(description: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < TIMEOUT, "timed out waiting for {description}");
        std::thread::yield_now();
    }
}

/// Evaluates a condition every millisecond until the condition holds. The condition must not poll,
/// so that only progress threads drive the NICs.
pub fn sleep_until(description: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < TIMEOUT, "timed out waiting for {description}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
