//! The test harness: two NICs with memory, a virtual clock, and a link whose behaviour a closure
//! decides.
#![allow(dead_code, unreachable_pub)] // each test binary uses a part of the harness

pub mod rc_requests;

use core::time::Duration;
use std::collections::BTreeMap;

use mitra_transport::{AtomicOp, Memory, MemoryFault, Nic, NicConfig, TxBatch, VecMemory};
use mitra_verbs::*;
use mitra_wire::{ICRC_LEN, Packet};

/// The latency of the link in one direction.
pub const LATENCY: Duration = Duration::from_micros(2);

#[derive(Clone, Default)]
pub struct ByteMemory {
    pub regions: VecMemory,
    pub unmapped: Vec<u32>,
    /// The number of accesses, including failed ones.
    pub accesses: u64,
}

impl ByteMemory {
    /// Counts an access, even to unmapped memory.
    fn mapped(&mut self, region: RegionId) -> Result<&mut VecMemory, MemoryFault> {
        self.accesses += 1;
        if self.unmapped.contains(&region.0) { Err(MemoryFault) } else { Ok(&mut self.regions) }
    }
}

impl Memory for ByteMemory {
    fn place(&mut self, region: RegionId, offset: u64, data: &[u8]) -> Result<(), MemoryFault> {
        self.mapped(region)?.place(region, offset, data)
    }

    fn fetch(&mut self, region: RegionId, offset: u64, out: &mut [u8]) -> Result<(), MemoryFault> {
        self.mapped(region)?.fetch(region, offset, out)
    }

    fn atomic(&mut self, region: RegionId, offset: u64, op: AtomicOp) -> Result<u64, MemoryFault> {
        assert!(offset.is_multiple_of(8));
        self.mapped(region)?.atomic(region, offset, op)
    }
}

/// A NIC with its memory and one queue pair.
pub struct Node {
    pub nic: Nic,
    pub memory: ByteMemory,
    pub gid: Gid,
    pub pd: PdId,
    pub send_cq: CqId,
    pub recv_cq: CqId,
    pub qp: Qpn,
    /// A region of `SIZE` bytes with all access rights, at address `BASE`.
    pub mr: Mr,
}

/// The address of the first byte of each node's region.
pub const BASE: u64 = 0x10_0000;
/// The size of each node's region in bytes.
pub const SIZE: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkAction {
    Pass,
    Drop,
    Duplicate,
    Delay(Duration),
}

#[derive(Clone, Debug)]
pub struct SentPacket {
    pub at: Time,
    /// The index of the sending node.
    pub from: usize,
    pub opcode: &'static str,
    pub psn: Psn,
    pub ack_req: bool,
    pub payload: usize,
    pub bytes: Vec<u8>,
}

type Link = Box<dyn FnMut(usize, &Packet<'_>) -> LinkAction>;

/// Two nodes whose queue pairs are connected.
pub struct NicPair {
    pub now: Time,
    pub nodes: [Node; 2],
    link: Link,
    /// All packets that the nodes have sent, including those that the link has dropped.
    pub sent: Vec<SentPacket>,
    /// The packets on the link, by arrival time and sequence number. The value is the index of the
    /// receiving node and the datagram.
    in_flight: BTreeMap<(Time, u64), (usize, Vec<u8>)>,
    sequence: u64,
}

#[derive(Clone)]
pub struct Setup {
    pub qp_type: QpType,
    pub mtu: Mtu,
    pub psn: [u32; 2],
    pub rd_atomic: u8,
    pub dest_rd_atomic: u8,
    pub cap: QpCap,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub send_window: u32,
    pub cq_depth: u32,
    pub sq_sig_all: bool,
    pub access: Access,
    pub srq: Option<u32>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            qp_type: QpType::Rc,
            mtu: Mtu::M1024,
            psn: [100, 0xff_fff0],
            rd_atomic: 4,
            dest_rd_atomic: 4,
            cap: QpCap { inline: 64, ..QpCap::default() },
            timeout: 8,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 4,
            send_window: 256 * 1024,
            cq_depth: 4096,
            sq_sig_all: false,
            access: Access::REMOTE,
            srq: None,
        }
    }
}

pub fn gid(i: usize) -> Gid {
    std::net::IpAddr::from([127, 0, 0, i as u8 + 1]).into()
}

pub fn qkey(qp_type: QpType) -> u32 {
    if qp_type == QpType::Gsi { GSI_QKEY } else { 0x1234 }
}

pub const ALL_ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE).union(Access::WINDOW_BIND);

impl Setup {
    fn node(&self, i: usize) -> Node {
        let mut config = NicConfig::new(&format!("nic{i}"), gid(i), [i as u8 + 1; 32]);
        config.tuning.send_window = self.send_window;
        config.limits.rd_atomic = 128;
        let mut nic = Nic::new(config);
        let pd = nic.alloc_pd().unwrap();
        let mut memory = ByteMemory::default();
        memory.regions.0.push(vec![0; SIZE]);
        let mr = nic.reg_mr(Time::ZERO, pd, RegionId(0), BASE, SIZE as u64, ALL_ACCESS).unwrap();
        let send_cq = nic.create_cq(self.cq_depth).unwrap();
        let recv_cq = nic.create_cq(self.cq_depth).unwrap();
        let srq = self.srq.map(|depth| nic.create_srq(pd, depth).unwrap());
        let init = QpInitAttr {
            qp_type: self.qp_type,
            pd,
            send_cq,
            recv_cq,
            srq,
            cap: self.cap,
            sq_sig_all: self.sq_sig_all,
        };
        let qp = nic.create_qp(Time::ZERO, &init).unwrap();
        Node { nic, memory, gid: gid(i), pd, send_cq, recv_cq, qp, mr }
    }

    pub fn to_init(&self) -> QpAttr {
        let ud = self.qp_type.is_datagram();
        QpAttr {
            pkey_index: Some(0),
            port: Some(1),
            access: (!ud).then_some(self.access),
            qkey: ud.then_some(qkey(self.qp_type)),
            ..QpAttr::to(QpState::Init)
        }
    }

    pub fn to_rtr(&self, peer: &Node, rq_psn: u32) -> QpAttr {
        let to = QpAttr::to(QpState::Rtr);
        if self.qp_type.is_datagram() {
            return to;
        }
        let rc = self.qp_type == QpType::Rc;
        QpAttr {
            dest_gid: Some(peer.gid),
            dest_qpn: Some(peer.qp),
            path_mtu: Some(self.mtu),
            rq_psn: Some(Psn::new(rq_psn)),
            max_dest_rd_atomic: rc.then_some(self.dest_rd_atomic),
            min_rnr_timer: rc.then_some(self.min_rnr_timer),
            ..to
        }
    }

    pub fn to_rts(&self, sq_psn: u32) -> QpAttr {
        let rc = self.qp_type == QpType::Rc;
        QpAttr {
            sq_psn: Some(Psn::new(sq_psn)),
            timeout: rc.then_some(self.timeout),
            retry_cnt: rc.then_some(self.retry_cnt),
            rnr_retry: rc.then_some(self.rnr_retry),
            max_rd_atomic: rc.then_some(self.rd_atomic),
            ..QpAttr::to(QpState::Rts)
        }
    }

    /// The link passes all packets.
    pub fn pair(&self) -> NicPair {
        let mut nodes = [self.node(0), self.node(1)];
        for i in 0..2 {
            let rtr = self.to_rtr(&nodes[1 - i], self.psn[1 - i]);
            let node = &mut nodes[i];
            node.nic.modify_qp(Time::ZERO, node.qp, &self.to_init()).unwrap();
            node.nic.modify_qp(Time::ZERO, node.qp, &rtr).unwrap();
            node.nic.modify_qp(Time::ZERO, node.qp, &self.to_rts(self.psn[i])).unwrap();
        }
        NicPair {
            now: Time::from_nanos(1000),
            nodes,
            link: Box::new(|_, _| LinkAction::Pass),
            sent: Vec::new(),
            in_flight: BTreeMap::new(),
            sequence: 0,
        }
    }
}

pub fn pair() -> NicPair {
    Setup::default().pair()
}

impl NicPair {
    /// `link` gets the index of the sending node and the packet.
    pub fn set_link(&mut self, link: impl FnMut(usize, &Packet<'_>) -> LinkAction + 'static) {
        self.link = Box::new(link);
    }

    /// Posts a send on node 0.
    pub fn post(&mut self, wr: SendWr) {
        self.post_on(0, &[wr]).unwrap();
    }

    pub fn post_on(&mut self, i: usize, wrs: &[SendWr]) -> Result<(), PostError> {
        let node = &mut self.nodes[i];
        node.nic.post_send(self.now, node.qp, wrs)
    }

    pub fn post_all_on(&mut self, i: usize, wrs: &[SendWr]) -> Result<(), PostError> {
        let node = &mut self.nodes[i];
        node.nic.post_send_all(self.now, node.qp, wrs)
    }

    /// Posts a receive on node 1.
    pub fn post_recv(&mut self, wr: RecvWr) {
        let node = &mut self.nodes[1];
        node.nic.post_recv(node.qp, &[wr]).unwrap();
    }

    pub fn modify(&mut self, i: usize, attr: &QpAttr) {
        let node = &mut self.nodes[i];
        node.nic.modify_qp(self.now, node.qp, attr).unwrap();
    }

    pub fn sge(&self, i: usize, offset: u64, len: u32) -> Sge {
        self.nodes[i].mr.sge(offset, len)
    }

    /// Returns the remote address of byte `offset` of node 1.
    pub fn remote(&self, offset: u64) -> RemoteAddr {
        self.nodes[1].mr.remote(offset)
    }

    pub fn bytes(&mut self, i: usize) -> &mut [u8] {
        &mut self.nodes[i].memory.regions.0[0]
    }

    pub fn word(&self, i: usize, offset: usize) -> u64 {
        let bytes = &self.nodes[i].memory.regions.0[0][offset..offset + 8];
        u64::from_ne_bytes(bytes.try_into().unwrap())
    }

    pub fn set_word(&mut self, i: usize, offset: usize, value: u64) {
        self.bytes(i)[offset..offset + 8].copy_from_slice(&value.to_ne_bytes());
    }

    pub fn send_completions(&mut self, i: usize) -> Vec<Wc> {
        let node = &mut self.nodes[i];
        let mut out = Vec::new();
        node.nic.poll_cq(node.send_cq, usize::MAX, &mut out).unwrap();
        out
    }

    pub fn recv_completions(&mut self, i: usize) -> Vec<Wc> {
        let node = &mut self.nodes[i];
        let mut out = Vec::new();
        node.nic.poll_cq(node.recv_cq, usize::MAX, &mut out).unwrap();
        out
    }

    pub fn events(&mut self, i: usize) -> Vec<AsyncEvent> {
        let nic = &mut self.nodes[i].nic;
        std::iter::from_fn(|| nic.poll_async_event()).collect()
    }

    pub fn state(&self, i: usize) -> QpState {
        self.status(i).state
    }

    pub fn status(&self, i: usize) -> QpStatus {
        self.nodes[i].nic.query_qp(self.nodes[i].qp).unwrap()
    }

    pub fn counter(&self, i: usize, name: &str) -> u64 {
        let counters = self.nodes[i].nic.counters();
        counters.iter().find(|c| c.name == name).unwrap_or_else(|| panic!("no counter {name}")).value
    }

    pub fn sent_opcodes(&self, i: usize) -> Vec<&'static str> {
        self.sent.iter().filter(|s| s.from == i).map(|s| s.opcode).collect()
    }

    /// Delivers a packet to node `to` at once, with the peer's source address.
    pub fn inject(&mut self, to: usize, packet: &Packet<'_>) {
        let source = self.nodes[1 - to].gid;
        self.inject_from(to, source, packet);
    }

    pub fn inject_from(&mut self, to: usize, source: Gid, packet: &Packet<'_>) {
        let node = &mut self.nodes[to];
        node.nic.handle_packet(self.now, source, packet, &mut node.memory);
    }

    /// Moves all packets that the nodes can send now to the link. Returns whether there were any.
    pub fn transmit_all(&mut self) -> bool {
        let mut any = false;
        let mut batch = TxBatch::new();
        for from in 0..2 {
            loop {
                let node = &mut self.nodes[from];
                if !node.nic.poll_transmit(self.now, &mut node.memory, &mut batch) {
                    break;
                }
                any = true;
                assert_eq!(batch.destination, gid(1 - from));
                assert!(batch.ends.len() <= 64 && batch.bytes.len() <= 132 * 1024);
                for datagram in batch.datagrams() {
                    self.send_on_link(from, &datagram[..datagram.len() - ICRC_LEN]);
                }
            }
        }
        any
    }

    fn send_on_link(&mut self, from: usize, datagram: &[u8]) {
        let packet = Packet::parse(datagram).unwrap();
        self.sent.push(SentPacket {
            at: self.now,
            from,
            opcode: mitra_wire::opcode::name(packet.opcode()).unwrap(),
            psn: packet.psn,
            ack_req: packet.ack_req,
            payload: packet.payload.len(),
            bytes: datagram.to_vec(),
        });
        let delays: &[Duration] = match (self.link)(from, &packet) {
            LinkAction::Pass => &[Duration::ZERO],
            LinkAction::Drop => &[],
            LinkAction::Duplicate => &[Duration::ZERO, Duration::from_micros(1)],
            LinkAction::Delay(d) => &[d],
        };
        for &delay in delays {
            self.sequence += 1;
            let at = self.now + LATENCY + delay;
            self.in_flight.insert((at, self.sequence), (1 - from, datagram.to_vec()));
        }
    }

    /// Delivers the first packet on the link whose arrival time has come. Returns false if there is
    /// no such packet.
    pub fn deliver_due(&mut self) -> bool {
        if let Some(entry) = self.in_flight.first_entry()
            && entry.key().0 <= self.now
        {
            let (to, datagram) = entry.remove();
            let packet = Packet::parse(&datagram).unwrap();
            self.inject(to, &packet);
            return true;
        }
        false
    }

    /// Executes one step at the current time, or advances the clock to the next event. Returns
    /// false if no event is left.
    pub fn step(&mut self) -> bool {
        if self.transmit_all() {
            return true;
        }
        if self.deliver_due() {
            return true;
        }
        for node in &mut self.nodes {
            node.nic.handle_idle(self.now);
        }
        if self.transmit_all() {
            return true;
        }
        let arrival = self.in_flight.keys().next().map(|k| k.0);
        let timers = self.nodes.iter().filter_map(|n| n.nic.poll_timeout());
        let Some(next) = arrival.into_iter().chain(timers).min() else { return false };
        self.now = self.now.max(next);
        for node in &mut self.nodes {
            node.nic.handle_timeout(self.now);
        }
        true
    }

    pub fn run(&mut self) {
        for _ in 0..1_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("events are left after a million steps at {:?}", self.now);
    }

    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end && self.step() {}
    }
}

pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed).collect()
}

pub fn statuses(wcs: &[Wc]) -> Vec<(u64, WcStatus)> {
    wcs.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

/// Returns a signalled WRITE of `len` bytes from offset `at` of node 0 to the same offset of
/// node 1.
pub fn write(p: &NicPair, wr_id: u64, at: u64, len: u32) -> SendWr {
    SendWr::new(wr_id, SendOp::Write(p.remote(at)), Data::sge(p.sge(0, at, len)))
}

/// Returns a signalled READ of `len` bytes from offset `at` of node 1 to the same offset of node 0.
pub fn read(p: &NicPair, wr_id: u64, at: u64, len: u32) -> SendWr {
    SendWr::new(wr_id, SendOp::Read(p.remote(at)), Data::sge(p.sge(0, at, len)))
}

/// Delivers to node `to` all packets that its peer can send now, without idle polls. Returns the
/// number of packets.
pub fn deliver(p: &mut NicPair, to: usize) -> usize {
    let mut batch = TxBatch::new();
    let mut delivered = 0;
    loop {
        let from = &mut p.nodes[1 - to];
        if !from.nic.poll_transmit(p.now, &mut from.memory, &mut batch) {
            return delivered;
        }
        for datagram in batch.datagrams() {
            delivered += 1;
            p.inject(to, &Packet::parse(&datagram[..datagram.len() - 4]).unwrap());
        }
    }
}
