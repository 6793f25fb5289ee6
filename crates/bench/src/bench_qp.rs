//! The two kinds of queue pair that the benchmarks compare, RC and virtual, behind one trait.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use anyhow::{Context, bail};
use mitra_failover::{Completion, ConnectInfo, Domain, RemoteRegion, VirtualMr, VirtualQp, VirtualQpBuilder};
use mitra_verbs::{
    Access, Buffer, CqId, Data, Gid, Key, Mr, Mtu, PdId, Provider, Psn, QpBuilder, Qpn, RcConnection, RecvWr,
    RemoteAddr, SendOp, SendWr, SgeList, Wc, WcOpcode, WcStatus,
};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use serde::{Deserialize, Serialize};

use super::stopwatch::Deadline;

/// The capacity of each send queue and of each receive queue, in requests.
pub(crate) const QUEUE_DEPTH: u32 = 128;
/// The largest number of outstanding READs and atomics of a queue pair.
pub(crate) const RD_ATOMIC: u8 = 16;
/// The largest payload that a work request carries inline, in bytes.
pub(crate) const MAX_INLINE: usize = 64;

const REMOTE: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct PollCounts {
    pub(crate) sent: u32,
    pub(crate) received: u32,
}

/// A connected queue pair under test, with registered memory at each end. Benchmarks are generic
/// over this trait, because dynamic dispatch would be part of the measurement.
pub(crate) trait BenchQp {
    /// The local memory, which the peer can access.
    fn memory(&self) -> &Buffer;
    /// Returns scatter/gather entries for a range of the local memory.
    fn local(&self, offset: usize, len: usize) -> SgeList;
    /// Returns the address and key of a byte in the peer's memory.
    fn remote(&self, offset: usize) -> RemoteAddr;
    fn post(&mut self, wr: SendWr) -> anyhow::Result<()>;
    fn post_recv(&mut self, wr: RecvWr) -> anyhow::Result<()>;
    /// Polls the completion queue. Fails on a completion with an error status, because these
    /// benchmarks inject no fault.
    fn poll(&mut self) -> anyhow::Result<PollCounts>;
    /// Returns the number of posted send requests whose completion has not been polled.
    fn outstanding(&self) -> u32;
    fn post_when_room(&mut self, wr: SendWr) -> anyhow::Result<()> {
        let mut deadline = Deadline::default();
        while self.outstanding() >= QUEUE_DEPTH {
            self.poll()?;
            deadline.check()?;
        }
        self.post(wr)
    }
    /// Polls until every posted send request has completed.
    fn drain(&mut self) -> anyhow::Result<()> {
        let mut deadline = Deadline::default();
        while self.outstanding() > 0 {
            self.poll()?;
            deadline.check()?;
        }
        Ok(())
    }
    /// Returns the payload at `offset` of the local memory, inline if it is at most [`MAX_INLINE`]
    /// bytes.
    fn payload(&self, offset: usize, len: usize) -> Data {
        if len <= MAX_INLINE {
            let mut bytes = [0; MAX_INLINE];
            self.memory().read_at(offset, &mut bytes[..len]);
            Data::inline(&bytes[..len])
        } else {
            Data::Sges(self.local(offset, len))
        }
    }
}

/// The information that the peer needs to connect an RC queue pair.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct RcQpInfo {
    gid: [u8; 16],
    mtu: usize,
    qpn: u32,
    psn: u32,
    addr: u64,
    rkey: u32,
}

pub(crate) struct RcBenchQp {
    nic: Arc<dyn Provider>,
    pd: PdId,
    cq: CqId,
    qpn: Qpn,
    psn: Psn,
    memory: Arc<Buffer>,
    mr: Mr,
    peer: RemoteAddr,
    counter: CompletionCounter,
    wcs: Vec<Wc>,
}

impl RcBenchQp {
    pub(crate) fn new(nic: &Arc<dyn Provider>, memory: usize, psn: u32) -> anyhow::Result<RcBenchQp> {
        RcBenchQp::with_memory(nic, Arc::new(Buffer::new(memory)), psn)
    }

    /// Creates a queue pair over memory that other queue pairs may share.
    pub(crate) fn with_memory(
        nic: &Arc<dyn Provider>,
        memory: Arc<Buffer>,
        psn: u32,
    ) -> anyhow::Result<RcBenchQp> {
        let pd = nic.alloc_pd()?;
        let mr = nic.reg_mr(pd, Arc::clone(&memory), REMOTE)?;
        // `VirtualQp` creates completion queues of the same size.
        let cq = nic.create_cq(2 * QUEUE_DEPTH + 16, None)?;
        let qpn = QpBuilder::rc(pd, cq).send_wrs(QUEUE_DEPTH + 8).recv_wrs(QUEUE_DEPTH + 1).build(&**nic)?;
        let nic = Arc::clone(nic);
        let peer = RemoteAddr { addr: 0, rkey: Key(0) };
        let wcs = Vec::with_capacity(64);
        Ok(RcBenchQp {
            nic,
            pd,
            cq,
            qpn,
            psn: Psn::new(psn),
            memory,
            mr,
            peer,
            counter: CompletionCounter::default(),
            wcs,
        })
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

    /// Returns the ids of the queue pair, its completion queue and its protection domain, for
    /// direct calls to the provider.
    pub(crate) fn ids(&self) -> (Qpn, CqId, PdId) {
        (self.qpn, self.cq, self.pd)
    }

    /// Posts a request with the caller's `wr_id`.
    pub(crate) fn post_raw(&mut self, wr: SendWr) -> anyhow::Result<()> {
        Ok(self.nic.post_send(self.qpn, &[wr])?)
    }

    /// Polls and returns the completions without checking their status.
    pub(crate) fn poll_raw(&mut self) -> anyhow::Result<&[Wc]> {
        self.wcs.clear();
        self.nic.poll_cq(self.cq, 32, &mut self.wcs)?;
        Ok(&self.wcs)
    }

    pub(crate) fn connect(&mut self, peer: &RcQpInfo) -> anyhow::Result<()> {
        self.peer = RemoteAddr { addr: peer.addr, rkey: Key(peer.rkey) };
        let peer_mtu = Mtu::from_bytes(peer.mtu).context("the peer's MTU is not an MTU of RoCEv2")?;
        let mtu = self.nic.query_port()?.max_mtu.min(peer_mtu);
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

impl BenchQp for RcBenchQp {
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
        wr.wr_id = self.counter.post();
        Ok(self.nic.post_send(self.qpn, &[wr])?)
    }

    #[inline]
    fn post_recv(&mut self, wr: RecvWr) -> anyhow::Result<()> {
        Ok(self.nic.post_recv(self.qpn, &[wr])?)
    }

    #[inline]
    fn poll(&mut self) -> anyhow::Result<PollCounts> {
        self.wcs.clear();
        self.nic.poll_cq(self.cq, 32, &mut self.wcs)?;
        let mut polled = PollCounts::default();
        for wc in &self.wcs {
            if wc.status != WcStatus::Success {
                bail!("a request on the RC queue pair failed: {}", wc.status);
            }
            self.counter.complete(&mut polled, wc.opcode, wc.wr_id);
        }
        Ok(polled)
    }

    fn outstanding(&self) -> u32 {
        self.counter.outstanding()
    }
}

/// The information that the peer needs to connect a virtual queue pair.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct VqpInfo {
    connect: Vec<u8>,
    region: Vec<u8>,
}

pub(crate) struct VirtualBenchQp {
    pub(crate) vqp: VirtualQp,
    memory: Arc<Buffer>,
    mr: VirtualMr,
    peer: Option<RemoteRegion>,
    counter: CompletionCounter,
    completions: Vec<Completion>,
}

impl VirtualBenchQp {
    pub(crate) fn new(
        domain: &Arc<Domain>,
        config: mitra_failover::Config,
        memory: usize,
    ) -> anyhow::Result<VirtualBenchQp> {
        VirtualBenchQp::build(domain, VirtualQp::builder(domain).config(config), memory)
    }

    /// Creates a queue pair whose owner can sleep ([`VirtualBenchQp::wait_raw`]).
    pub(crate) fn with_events(
        domain: &Arc<Domain>,
        config: mitra_failover::Config,
        memory: usize,
    ) -> anyhow::Result<VirtualBenchQp> {
        let builder = VirtualQp::builder(domain).config(config).own_channels(true);
        VirtualBenchQp::build(domain, builder, memory)
    }

    fn build(
        domain: &Arc<Domain>,
        builder: VirtualQpBuilder,
        memory: usize,
    ) -> anyhow::Result<VirtualBenchQp> {
        let memory = Arc::new(Buffer::new(memory));
        let mr = domain.register(&memory, REMOTE)?;
        let vqp = builder.build()?;
        Ok(VirtualBenchQp {
            vqp,
            memory,
            mr,
            peer: None,
            counter: CompletionCounter::default(),
            completions: Vec::with_capacity(64),
        })
    }

    pub(crate) fn info(&self) -> anyhow::Result<VqpInfo> {
        Ok(VqpInfo { connect: self.vqp.local_info().encode(), region: self.mr.remote().encode() })
    }

    pub(crate) fn connect(&mut self, peer: &VqpInfo) -> anyhow::Result<()> {
        self.vqp.connect(&ConnectInfo::decode(&peer.connect)?)?;
        let region = RemoteRegion::decode(&peer.region)?;
        self.vqp.import(&region)?;
        self.peer = Some(region);
        Ok(())
    }

    /// Polls and returns the completions without checking their status.
    pub(crate) fn poll_raw(&mut self) -> &[Completion] {
        self.completions.clear();
        self.vqp.poll(&mut self.completions);
        &self.completions
    }

    /// Sleeps until the vQP has something to do, or `other` is readable, and handles it. Returns
    /// the completions without checking their status.
    pub(crate) fn wait_raw(&mut self, other: Option<BorrowedFd<'_>>) -> anyhow::Result<&[Completion]> {
        self.completions.clear();
        let nics = self.vqp.domain().nics();
        let timeout = self.vqp.event_timeout().map(|due| due.saturating_since(nics[0].provider.now()));
        let channels = self.vqp.event_channels().map(|channel| channel.as_fd());
        let events = nics.iter().filter_map(|nic| nic.provider.async_event_fd());
        let mut fds: Vec<PollFd<'_>> =
            channels.chain(events).chain(other).map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match ppoll(&mut fds, timeout.map(TimeSpec::from), None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("cannot wait for events"),
        }
        self.vqp.handle_events()?;
        self.vqp.take_completions(&mut self.completions);
        Ok(&self.completions)
    }
}

impl BenchQp for VirtualBenchQp {
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
        wr.wr_id = self.counter.post();
        self.vqp.post_send(wr)?;
        Ok(())
    }

    #[inline]
    fn post_recv(&mut self, wr: RecvWr) -> anyhow::Result<()> {
        Ok(self.vqp.post_recv(wr)?)
    }

    #[inline]
    fn poll(&mut self) -> anyhow::Result<PollCounts> {
        self.completions.clear();
        self.vqp.poll(&mut self.completions);
        let mut polled = PollCounts::default();
        for completion in &self.completions {
            if !completion.is_success() {
                bail!("a request on the virtual queue pair failed: {}", completion.outcome);
            }
            self.counter.complete(&mut polled, completion.opcode, completion.wr_id);
        }
        Ok(polled)
    }

    fn outstanding(&self) -> u32 {
        self.counter.outstanding()
    }
}

/// Counts posted and completed send requests. The `wr_id` of a request is its number, from 1. The
/// completion of a request also completes all earlier unsignalled requests.
#[derive(Clone, Copy, Default, Debug)]
struct CompletionCounter {
    posted: u64,
    completed: u64,
}

impl CompletionCounter {
    #[inline]
    fn post(&mut self) -> u64 {
        self.posted += 1;
        self.posted
    }

    #[inline]
    fn complete(&mut self, polled: &mut PollCounts, opcode: WcOpcode, wr_id: u64) {
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

/// Returns a signalled request that moves `len` bytes between `offset` of the local memory and `at`
/// of the peer's memory.
pub(crate) fn request<L: BenchQp>(qp: &L, op: Op, offset: usize, at: usize, len: usize) -> SendWr {
    let remote = qp.remote(at);
    match op {
        Op::Write => SendWr::new(0, SendOp::Write(remote), qp.payload(offset, len)),
        Op::Send => SendWr::new(0, SendOp::Send, qp.payload(offset, len)),
        Op::Read => SendWr::new(0, SendOp::Read(remote), Data::Sges(qp.local(offset, len))),
        Op::Faa => SendWr::new(0, SendOp::FetchAdd { remote, add: 1 }, Data::Sges(qp.local(offset, 8))),
    }
}

/// The operation that a benchmark measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Op {
    /// RDMA WRITE; both processes poll memory
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

    /// Returns the UDP payload sizes of the two datagrams of one round trip that carries `len`
    /// bytes in one packet each way. A datagram consists of a BTH, extension headers, the payload
    /// and an ICRC.
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
