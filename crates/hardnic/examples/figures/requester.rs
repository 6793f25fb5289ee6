//! A connected queue pair, raw or virtual, that one thread drives.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mitra_failover::{Completion, Config, Domain, RemoteRegion, VirtualMr, VirtualQp};
use mitra_verbs::{
    Access, Buffer, CqId, Data, LocalAckTimeout, Mr, Provider, Psn, QpBuilder, Qpn, RcConnection, RemoteAddr,
    SendOp, SendWr, Wc, WcStatus,
};

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The length of the memory of each end. The first word is the counter of atomics.
pub const MEMORY: usize = 128 << 10;
/// The requests in flight where a rate is measured.
const WINDOW: usize = 16;
/// A block that takes longer has failed.
const DEADLINE: Duration = Duration::from_secs(20);

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The time from the post of a WRITE of 8 bytes to its completion.
    Write8,
    /// The same of a fetch-and-add.
    FetchAdd,
    /// The rate of WRITEs of 64 KiB.
    Write64K,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Write8, Kind::FetchAdd, Kind::Write64K];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Write8 => "write/8",
            Kind::FetchAdd => "faa/8",
            Kind::Write64K => "write/65536",
        }
    }

    pub fn unit(self) -> &'static str {
        if self == Kind::Write64K { "MB/s" } else { "us" }
    }

    fn len(self) -> u32 {
        if self == Kind::Write64K { 64 << 10 } else { 8 }
    }

    fn op(self, remote: RemoteAddr) -> SendOp {
        match self {
            Kind::FetchAdd => SendOp::FetchAdd { remote, add: 1 },
            Kind::Write8 | Kind::Write64K => SendOp::Write(remote),
        }
    }
}

/// The end that posts.
pub trait Requester {
    fn post(&mut self, kind: Kind) -> Result<()>;
    /// Returns the number of requests that completed.
    fn poll(&mut self) -> Result<usize>;
    /// Does what the other end of the same thread needs between blocks.
    fn between_blocks(&mut self) {}
}

/// Measures one block: microseconds per request, or megabytes per second.
pub fn block(requester: &mut dyn Requester, kind: Kind, count: usize) -> Result<f64> {
    requester.between_blocks();
    let window = if kind == Kind::Write64K { WINDOW } else { 1 };
    let begin = Instant::now();
    let (mut posted, mut done) = (0, 0);
    while done < count {
        while posted < count && posted - done < window {
            requester.post(kind)?;
            posted += 1;
        }
        done += requester.poll()?;
        if begin.elapsed() > DEADLINE {
            return Err(format!("{done} of {count} requests completed").into());
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    Ok(match kind {
        Kind::Write64K => count as f64 * f64::from(kind.len()) / seconds / 1e6,
        Kind::Write8 | Kind::FetchAdd => seconds / count as f64 * 1e6,
    })
}

/// An end of a raw RC queue pair.
pub struct RawEnd {
    nic: Arc<dyn Provider>,
    cq: CqId,
    qp: Qpn,
    mr: Mr,
    remote: RemoteAddr,
    wcs: Vec<Wc>,
}

impl RawEnd {
    pub fn new(nic: Arc<dyn Provider>) -> Result<RawEnd> {
        let pd = nic.alloc_pd()?;
        let mr = nic.reg_mr(pd, Arc::new(Buffer::new(MEMORY)), Access::LOCAL_WRITE | Access::REMOTE)?;
        let cq = nic.create_cq(256, None)?;
        let qp = QpBuilder::rc(pd, cq).send_wrs(64).inline(64).build(&*nic)?;
        Ok(RawEnd { nic, cq, qp, mr, remote: RemoteAddr { addr: 0, rkey: mr.rkey }, wcs: Vec::new() })
    }

    pub fn connect(&mut self, peer: &RawEnd) -> Result<()> {
        let port = peer.nic.query_port()?;
        self.remote = RemoteAddr { addr: peer.mr.addr, rkey: peer.mr.rkey };
        let connection = RcConnection {
            path_mtu: self.nic.query_port()?.max_mtu.min(port.max_mtu),
            sq_psn: Psn::new(17),
            rq_psn: Psn::new(17),
            rd_atomic: 16,
            local_ack_timeout: LocalAckTimeout::from_code(14),
            retry_cnt: 6,
            ..RcConnection::to(port.gid, peer.qp)
        };
        Ok(connection.connect(&*self.nic, self.qp)?)
    }

    pub fn pair(nics: [Arc<dyn Provider>; 2]) -> Result<[RawEnd; 2]> {
        let [near, far] = nics;
        let (mut near, mut far) = (RawEnd::new(near)?, RawEnd::new(far)?);
        near.connect(&far)?;
        far.connect(&near)?;
        Ok([near, far])
    }
}

impl Requester for RawEnd {
    fn post(&mut self, kind: Kind) -> Result<()> {
        let data = match kind {
            Kind::Write8 => Data::inline(&[7; 8]),
            Kind::FetchAdd => Data::sge(self.mr.sge(0, 8)),
            Kind::Write64K => Data::sge(self.mr.sge(0, kind.len())),
        };
        Ok(self.nic.post_send(self.qp, &[SendWr::new(0, kind.op(self.remote), data)])?)
    }

    fn poll(&mut self) -> Result<usize> {
        self.wcs.clear();
        self.nic.poll_cq(self.cq, 32, &mut self.wcs)?;
        match self.wcs.iter().find(|wc| wc.status != WcStatus::Success) {
            Some(wc) => Err(format!("a request failed: {}", wc.status).into()),
            None => Ok(self.wcs.len()),
        }
    }
}

impl Drop for RawEnd {
    fn drop(&mut self) {
        let _ = self.nic.destroy_qp(self.qp);
    }
}

/// The ends of a virtual queue pair. The far end needs the thread only for heartbeats.
pub struct VirtualPair {
    pub near: VirtualQp,
    pub far: VirtualQp,
    memory: VirtualMr,
    region: RemoteRegion,
    done: Vec<Completion>,
}

impl VirtualPair {
    pub fn new(near: &Arc<Domain>, far: &Arc<Domain>, config: Config) -> Result<VirtualPair> {
        let register = |domain: &Domain| {
            domain.register(&Arc::new(Buffer::new(MEMORY)), Access::LOCAL_WRITE | Access::REMOTE)
        };
        let (memory, far_memory) = (register(near)?, register(far)?);
        let build = |domain| VirtualQp::builder(domain).config(config).build();
        let (mut near, mut far) = (build(near)?, build(far)?);
        let (near_info, far_info) = (near.local_info(), far.local_info());
        near.connect(&far_info)?;
        far.connect(&near_info)?;
        let region = far_memory.remote();
        near.import(&region)?;
        Ok(VirtualPair { near, far, memory, region, done: Vec::new() })
    }

    /// Polls both ends, and returns the completions of the near end.
    pub fn poll_both(&mut self) -> &[Completion] {
        self.far.progress();
        self.done.clear();
        self.near.poll(&mut self.done);
        for vqp in [&mut self.near, &mut self.far] {
            if vqp.is_halted() {
                vqp.resume();
            }
        }
        &self.done
    }
}

impl Requester for VirtualPair {
    fn post(&mut self, kind: Kind) -> Result<()> {
        let data = match kind {
            Kind::Write8 => Data::inline(&[7; 8]),
            Kind::FetchAdd | Kind::Write64K => Data::sge(self.memory.sge(0, kind.len())),
        };
        self.near.post_send(SendWr::new(0, kind.op(self.region.at(0)), data))?;
        Ok(())
    }

    fn poll(&mut self) -> Result<usize> {
        self.done.clear();
        self.near.poll(&mut self.done);
        match self.done.iter().find(|completion| !completion.is_success()) {
            Some(completion) => Err(format!("a request failed: {:?}", completion.outcome).into()),
            None => Ok(self.done.len()),
        }
    }

    fn between_blocks(&mut self) {
        for _ in 0..64 {
            self.far.progress();
            self.near.progress();
        }
    }
}
