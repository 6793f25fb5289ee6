//! The two things that are compared: a bare queue pair and a virtual one, behind the same few calls.

use std::sync::Arc;

use anyhow::{Context, bail};
use mitra_failover::{Completion, ConnectInfo, Domain, RemoteRegion, VirtualMr, VirtualQp};
use mitra_verbs::{
    Access, Buffer, CqId, Data, Gid, Key, Mr, Mtu, PdId, Provider, Psn, QpCap, QpInitAttr, QpType, Qpn,
    RcConnection, RecvWr, RemoteAddr, SendOp, SendWr, SgeList, Wc, WcOpcode, WcStatus,
};
use serde::{Deserialize, Serialize};

use super::clock::Deadline;

/// Send requests that may be outstanding on either, and receives.
pub(crate) const DEPTH: u32 = 128;
/// READs and atomics outstanding.
pub(crate) const RD_ATOMIC: u8 = 16;
/// Payload that travels in the work request.
pub(crate) const INLINE: usize = 64;

/// Memory that the peer may write, read and count in.
const REMOTE: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

/// What a poll found.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Polled {
    pub(crate) sent: u32,
    pub(crate) received: u32,
}

/// A connection under test with a piece of memory at each end. Calls are not through `dyn`, so that what is compared
/// is the queue pairs.
pub(crate) trait BenchQp {
    /// Our piece, which the peer can reach.
    fn memory(&self) -> &Buffer;
    /// Entries of our piece.
    fn local(&self, offset: usize, len: usize) -> SgeList;
    /// A place in the peer's piece.
    fn remote(&self, offset: usize) -> RemoteAddr;
    fn post(&mut self, wr: SendWr) -> anyhow::Result<()>;
    fn post_recv(&mut self, wr: RecvWr) -> anyhow::Result<()>;
    /// Drives it. A completion that is no success is an error: nothing fails in a bench of speed.
    fn poll(&mut self) -> anyhow::Result<Polled>;
    /// Posted and not known to have completed.
    fn outstanding(&self) -> u32;
    /// Posts, as soon as there is room.
    fn post_when_room(&mut self, wr: SendWr) -> anyhow::Result<()> {
        let mut deadline = Deadline::default();
        while self.outstanding() >= DEPTH {
            self.poll()?;
            deadline.check()?;
        }
        self.post(wr)
    }
    /// Polls until all that was posted has completed.
    fn drain(&mut self) -> anyhow::Result<()> {
        let mut deadline = Deadline::default();
        while self.outstanding() > 0 {
            self.poll()?;
            deadline.check()?;
        }
        Ok(())
    }
    /// Payload at `offset` of our piece; small payload is carried in the request.
    fn payload(&self, offset: usize, len: usize) -> Data {
        if len <= INLINE {
            let mut bytes = [0; INLINE];
            self.memory().read_at(offset, &mut bytes[..len]);
            Data::inline(&bytes[..len])
        } else {
            Data::Sges(self.local(offset, len))
        }
    }
}

/// What the ends of a bare connection tell each other.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct RcQpInfo {
    gid: [u8; 16],
    mtu: usize,
    qpn: u32,
    psn: u32,
    addr: u64,
    rkey: u32,
}

/// A bare RC queue pair.
pub(crate) struct RcQp {
    nic: Arc<dyn Provider>,
    pd: PdId,
    cq: CqId,
    qpn: Qpn,
    psn: Psn,
    memory: Arc<Buffer>,
    mr: Mr,
    peer: RemoteAddr,
    book: Book,
    wcs: Vec<Wc>,
}

impl RcQp {
    pub(crate) fn new(nic: &Arc<dyn Provider>, memory: usize, psn: u32) -> anyhow::Result<RcQp> {
        let pd = nic.alloc_pd()?;
        let memory = Arc::new(Buffer::new(memory));
        let mr = nic.reg_mr(pd, Arc::clone(&memory), REMOTE)?;
        // As large as a virtual queue pair makes its own.
        let cq = nic.create_cq(2 * DEPTH + 16, None)?;
        let qpn = nic.create_qp(&QpInitAttr {
            qp_type: QpType::Rc,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            cap: QpCap { send_wrs: DEPTH + 8, recv_wrs: DEPTH + 1, ..QpCap::default() },
            sq_sig_all: false,
        })?;
        let nic = Arc::clone(nic);
        let peer = RemoteAddr { addr: 0, rkey: Key(0) };
        let wcs = Vec::with_capacity(64);
        Ok(RcQp { nic, pd, cq, qpn, psn: Psn::new(psn), memory, mr, peer, book: Book::default(), wcs })
    }

    pub(crate) fn info(&self) -> anyhow::Result<RcQpInfo> {
        let port = self.nic.query_port()?;
        let RemoteAddr { addr, rkey } = self.mr.remote(0);
        Ok(RcQpInfo {
            gid: port.gid.0,
            mtu: port.max_mtu.bytes(),
            qpn: self.qpn.value(),
            psn: self.psn.value(),
            addr,
            rkey: rkey.0,
        })
    }

    /// Its number, its completion queue and its protection domain, for who asks the NIC itself.
    pub(crate) fn qp_cq_pd(&self) -> (Qpn, CqId, PdId) {
        (self.qpn, self.cq, self.pd)
    }

    pub(crate) fn connect(&mut self, peer: &RcQpInfo) -> anyhow::Result<()> {
        self.peer = RemoteAddr { addr: peer.addr, rkey: Key(peer.rkey) };
        let theirs = Mtu::from_bytes(peer.mtu).context("the peer has an MTU that is none")?;
        let mtu = self.nic.query_port()?.max_mtu.min(theirs);
        let detector = super::endpoint::detector();
        let connection = RcConnection {
            path_mtu: mtu,
            rq_psn: Psn::new(peer.psn),
            sq_psn: self.psn,
            rd_atomic: RD_ATOMIC,
            local_ack_timeout: detector.local_ack_timeout,
            retry_cnt: detector.retry_cnt,
            ..RcConnection::to(Gid(peer.gid), Qpn::new(peer.qpn))
        };
        Ok(connection.connect(&*self.nic, self.qpn)?)
    }
}

impl BenchQp for RcQp {
    fn memory(&self) -> &Buffer {
        &self.memory
    }

    fn local(&self, offset: usize, len: usize) -> SgeList {
        SgeList::from_slice(&[self.mr.sge(offset as u64, len as u32)])
    }

    fn remote(&self, offset: usize) -> RemoteAddr {
        RemoteAddr { addr: self.peer.addr + offset as u64, rkey: self.peer.rkey }
    }

    #[inline]
    fn post(&mut self, mut wr: SendWr) -> anyhow::Result<()> {
        wr.wr_id = self.book.post();
        Ok(self.nic.post_send(self.qpn, &[wr])?)
    }

    #[inline]
    fn post_recv(&mut self, wr: RecvWr) -> anyhow::Result<()> {
        Ok(self.nic.post_recv(self.qpn, &[wr])?)
    }

    #[inline]
    fn poll(&mut self) -> anyhow::Result<Polled> {
        self.wcs.clear();
        self.nic.poll_cq(self.cq, 32, &mut self.wcs)?;
        let mut polled = Polled::default();
        for wc in &self.wcs {
            if wc.status != WcStatus::Success {
                bail!("a request on the bare queue pair ended with {:?}", wc.status);
            }
            self.book.complete(&mut polled, wc.opcode, wc.wr_id);
        }
        Ok(polled)
    }

    fn outstanding(&self) -> u32 {
        self.book.outstanding()
    }
}

/// What the ends of a virtual queue pair tell each other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct VqpInfo {
    connect: Vec<u8>,
    region: Vec<u8>,
}

/// A virtual queue pair.
pub(crate) struct VqpUnderTest {
    pub(crate) vqp: VirtualQp,
    memory: Arc<Buffer>,
    mr: VirtualMr,
    peer: Option<RemoteRegion>,
    book: Book,
    completions: Vec<Completion>,
}

impl VqpUnderTest {
    pub(crate) fn new(
        domain: &Arc<Domain>,
        config: mitra_failover::Config,
        memory: usize,
        secret: [u64; 2],
    ) -> anyhow::Result<VqpUnderTest> {
        let memory = Arc::new(Buffer::new(memory));
        let mr = domain.register(&memory, REMOTE)?;
        let vqp = VirtualQp::new(Arc::clone(domain), config, secret)?;
        Ok(VqpUnderTest {
            vqp,
            memory,
            mr,
            peer: None,
            book: Book::default(),
            completions: Vec::with_capacity(64),
        })
    }

    pub(crate) fn info(&self) -> anyhow::Result<VqpInfo> {
        Ok(VqpInfo { connect: self.vqp.local_info()?.encode(), region: self.mr.remote().encode() })
    }

    pub(crate) fn connect(&mut self, peer: &VqpInfo) -> anyhow::Result<()> {
        self.vqp.connect(&ConnectInfo::decode(&peer.connect)?)?;
        let region = RemoteRegion::decode(&peer.region)?;
        self.vqp.import(&region)?;
        self.peer = Some(region);
        Ok(())
    }

    /// Drives it and gives the completions as they are.
    pub(crate) fn poll_raw(&mut self) -> &[Completion] {
        self.completions.clear();
        self.vqp.poll(&mut self.completions);
        &self.completions
    }
}

impl BenchQp for VqpUnderTest {
    fn memory(&self) -> &Buffer {
        &self.memory
    }

    fn local(&self, offset: usize, len: usize) -> SgeList {
        SgeList::from_slice(&[self.mr.sge(offset as u64, len as u32)])
    }

    fn remote(&self, offset: usize) -> RemoteAddr {
        self.peer.as_ref().map_or(RemoteAddr { addr: 0, rkey: Key(0) }, |region| region.at(offset as u64))
    }

    #[inline]
    fn post(&mut self, mut wr: SendWr) -> anyhow::Result<()> {
        wr.wr_id = self.book.post();
        self.vqp.post_send(wr)?;
        Ok(())
    }

    #[inline]
    fn post_recv(&mut self, wr: RecvWr) -> anyhow::Result<()> {
        Ok(self.vqp.post_recv(wr)?)
    }

    #[inline]
    fn poll(&mut self) -> anyhow::Result<Polled> {
        self.completions.clear();
        self.vqp.poll(&mut self.completions);
        let mut polled = Polled::default();
        for completion in &self.completions {
            if !completion.is_success() {
                bail!("a request on the virtual queue pair ended with {:?}", completion.outcome);
            }
            self.book.complete(&mut polled, completion.opcode, completion.wr_id);
        }
        Ok(polled)
    }

    fn outstanding(&self) -> u32 {
        self.book.outstanding()
    }
}

/// What was posted and has completed. A request's `wr_id` is its number, so that a completion tells of all before it:
/// those that asked for none.
#[derive(Clone, Copy, Default, Debug)]
struct Book {
    posted: u64,
    completed: u64,
}

impl Book {
    #[inline]
    fn post(&mut self) -> u64 {
        self.posted += 1;
        self.posted
    }

    #[inline]
    fn complete(&mut self, polled: &mut Polled, opcode: WcOpcode, wr_id: u64) {
        if matches!(opcode, WcOpcode::Recv | WcOpcode::RecvWithImm) {
            polled.received += 1;
        } else {
            polled.sent += (wr_id - self.completed) as u32;
            self.completed = wr_id;
        }
    }

    fn outstanding(&self) -> u32 {
        (self.posted - self.completed) as u32
    }
}

/// A signalled request that works on `len` bytes at `offset` of our piece and of the peer's `at`.
pub(crate) fn request<L: BenchQp>(qp: &L, op: Op, offset: usize, at: usize, len: usize) -> SendWr {
    let remote = qp.remote(at);
    match op {
        Op::Write => SendWr::new(0, SendOp::Write(remote), qp.payload(offset, len)),
        Op::Send => SendWr::new(0, SendOp::Send, qp.payload(offset, len)),
        Op::Read => SendWr::new(0, SendOp::Read(remote), Data::Sges(qp.local(offset, len))),
        Op::Faa => SendWr::new(0, SendOp::FetchAdd { remote, add: 1 }, Data::Sges(qp.local(offset, 8))),
    }
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Op {
    /// RDMA WRITE, both ends spin on memory
    Write,
    /// RDMA READ
    Read,
    /// SEND into a posted receive
    Send,
    /// Atomic fetch-and-add
    Faa,
}

impl Op {
    pub(crate) const ALL: [Op; 4] = [Op::Write, Op::Read, Op::Send, Op::Faa];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Op::Write => "write",
            Op::Read => "read",
            Op::Send => "send",
            Op::Faa => "faa",
        }
    }

    /// UDP payload of the two datagrams of one round trip with so many bytes of its own (in one packet each way): BTH,
    /// extended headers, payload, ICRC.
    pub(crate) fn datagrams(self, len: usize) -> [usize; 2] {
        const BTH_ICRC: usize = 12 + 4;
        match self {
            Op::Write => [BTH_ICRC + 16 + len; 2],
            Op::Send => [BTH_ICRC + len; 2],
            Op::Read => [BTH_ICRC + 16, BTH_ICRC + 4 + len],
            Op::Faa => [BTH_ICRC + 28, BTH_ICRC + 4 + 8],
        }
    }
}
