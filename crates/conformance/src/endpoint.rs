//! [`Endpoint`]: a queue pair with the memory, the completion queue and the region that most cases
//! need.

use std::sync::Arc;
use std::time::Duration;

use mitra_verbs::{
    Access, AtomicScope, Buffer, CompletionChannel, CqId, Data, Gid, LocalAckTimeout, Mr, Mtu, PdId,
    Provider, Psn, QpAttr, QpBuilder, QpCap, QpState, QpType, Qpn, RcConnection, RecvWr, SendFlags, SendOp,
    SendWr, SgeList, SrqId, UdDestination, Wc, WcStatus,
};

use crate::{CaseResult, Fabric, Stop};

/// The size of each endpoint's memory, in bytes.
pub(crate) const MEMORY_SIZE: usize = 1 << 20;
/// The Q_Key of the datagram queue pairs.
pub(crate) const QKEY: u32 = 0x11;

/// The attributes of an endpoint that a case chooses.
pub(crate) struct Options {
    pub(crate) qp_type: QpType,
    pub(crate) cap: QpCap,
    pub(crate) signal_all: bool,
    pub(crate) srq_depth: Option<u32>,
    /// The rights of the region.
    pub(crate) region_access: Access,
    /// The rights of the queue pair.
    pub(crate) qp_access: Access,
    pub(crate) channel: Option<Arc<dyn CompletionChannel>>,
}

impl Default for Options {
    fn default() -> Options {
        let cap = QpCap { send_wrs: 256, recv_wrs: 256, ..QpCap::default() };
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        Options {
            qp_type: QpType::Rc,
            cap,
            signal_all: false,
            srq_depth: None,
            region_access: access,
            qp_access: access,
            channel: None,
        }
    }
}

/// The attributes of a connection that a case chooses.
#[derive(Clone, Copy)]
pub(crate) struct Link {
    /// The path MTU, at most that of both ports.
    pub(crate) mtu: Mtu,
    pub(crate) first_psn: u32,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
}

impl Default for Link {
    fn default() -> Link {
        // 0.5 s per attempt. On a busy machine a thread may wait for a processor for as long as
        // several attempts of 67 ms. 7 retries never end on soft-RoCE.
        Link { mtu: Mtu::M4096, first_psn: 0xff_fff0, timeout: 17, retry_cnt: 6, rnr_retry: 7 }
    }
}

pub(crate) struct Endpoint<'f> {
    fabric: &'f dyn Fabric,
    pub(crate) nic: Arc<dyn Provider>,
    pub(crate) pd: PdId,
    pub(crate) cq: CqId,
    pub(crate) srq: Option<SrqId>,
    pub(crate) qp: Qpn,
    pub(crate) qp_type: QpType,
    qp_access: Access,
    pub(crate) memory: Arc<Buffer>,
    pub(crate) mr: Mr,
}

/// Returns two connected endpoints of RC queue pairs.
pub(crate) fn rc_pair(fabric: &dyn Fabric) -> CaseResult<[Endpoint<'_>; 2]> {
    rc_pair_with(fabric, Options::default, Link::default())
}

/// Returns two connected endpoints, both with the same options.
pub(crate) fn rc_pair_with(
    fabric: &dyn Fabric,
    options: impl Fn() -> Options,
    link: Link,
) -> CaseResult<[Endpoint<'_>; 2]> {
    let [a, b] = fabric.nics();
    let ends = [Endpoint::new(fabric, a, options())?, Endpoint::new(fabric, b, options())?];
    connect(&ends, link)?;
    Ok(ends)
}

/// Connects two endpoints of RC or UC queue pairs in RESET.
pub(crate) fn connect([a, b]: &[Endpoint<'_>; 2], link: Link) -> CaseResult {
    let mtu = link.mtu.min(a.max_mtu()?).min(b.max_mtu()?);
    a.connect_to(b, Link { mtu, ..link })?;
    b.connect_to(a, Link { mtu, ..link })
}

impl<'f> Endpoint<'f> {
    pub(crate) fn new(
        fabric: &'f dyn Fabric,
        nic: Arc<dyn Provider>,
        options: Options,
    ) -> CaseResult<Endpoint<'f>> {
        let pd = nic.alloc_pd()?;
        let cq = nic.create_cq(1024.min(nic.attr().limits.cqe), options.channel.as_ref())?;
        let memory = Arc::new(Buffer::new(MEMORY_SIZE));
        let mr = nic.reg_mr(pd, Arc::clone(&memory), options.region_access)?;
        let srq = options.srq_depth.map(|depth| nic.create_srq(pd, depth)).transpose()?;
        let qp = build_qp(&*nic, pd, cq, srq, &options)?;
        let Options { qp_type, qp_access, .. } = options;
        Ok(Endpoint { fabric, nic, pd, cq, srq, qp, qp_type, qp_access, memory, mr })
    }

    /// Returns another queue pair in RESET, with the objects of this endpoint.
    pub(crate) fn another_qp(&self, options: &Options) -> CaseResult<Qpn> {
        build_qp(&*self.nic, self.pd, self.cq, self.srq, options)
    }

    pub(crate) fn gid(&self) -> CaseResult<Gid> {
        Ok(self.nic.query_port()?.gid)
    }

    pub(crate) fn max_mtu(&self) -> CaseResult<Mtu> {
        Ok(self.nic.query_port()?.max_mtu)
    }

    /// Changes the state from RESET to RTS. Both ends of a connection call it.
    fn connect_to(&self, peer: &Endpoint<'_>, link: Link) -> CaseResult {
        self.connect_qp(self.qp, peer.gid()?, peer.qp, link)
    }

    pub(crate) fn connect_qp(&self, qp: Qpn, gid: Gid, qpn: Qpn, link: Link) -> CaseResult {
        let psn = Psn::new(link.first_psn);
        let connection = RcConnection {
            path_mtu: link.mtu,
            rq_psn: psn,
            sq_psn: psn,
            access: self.qp_access,
            rd_atomic: self.rd_atomic(),
            local_ack_timeout: LocalAckTimeout::from_code(link.timeout),
            retry_cnt: link.retry_cnt,
            rnr_retry: link.rnr_retry,
            ..RcConnection::to(gid, qpn)
        };
        if self.qp_type == QpType::Rc {
            return Ok(connection.connect(&*self.nic, qp)?);
        }
        let rtr = QpAttr { max_dest_rd_atomic: None, min_rnr_timer: None, ..connection.rtr() };
        let rts = QpAttr { sq_psn: Some(psn), ..QpAttr::to(QpState::Rts) };
        for attr in [connection.init(), rtr, rts] {
            self.nic.modify_qp(qp, &attr)?;
        }
        Ok(())
    }

    /// Returns the number of READs and atomics that the queue pair may have outstanding.
    pub(crate) fn rd_atomic(&self) -> u8 {
        self.nic.attr().limits.rd_atomic.min(16)
    }

    /// Stops the case if the NIC has no atomics.
    pub(crate) fn needs_atomics(&self) -> CaseResult {
        match self.nic.attr().capabilities.atomic_scope {
            AtomicScope::None => Err(Stop::refused("atomics")),
            _ => Ok(()),
        }
    }

    pub(crate) fn modify(&self, state: QpState) -> CaseResult {
        Ok(self.nic.modify_qp(self.qp, &QpAttr::to(state))?)
    }

    /// Changes the state of a datagram queue pair from RESET to RTS.
    pub(crate) fn start_datagrams(&self, qkey: u32) -> CaseResult {
        let init =
            QpAttr { pkey_index: Some(0), port: Some(1), qkey: Some(qkey), ..QpAttr::to(QpState::Init) };
        let rts = QpAttr { sq_psn: Some(Psn::new(0)), ..QpAttr::to(QpState::Rts) };
        for attr in [init, QpAttr::to(QpState::Rtr), rts] {
            self.nic.modify_qp(self.qp, &attr)?;
        }
        Ok(())
    }

    /// Returns data of this endpoint's memory.
    pub(crate) fn data(&self, offset: u64, len: u32) -> Data {
        // An entry of length 0 means 2 GiB on some NICs.
        if len == 0 { Data::empty() } else { Data::sge(self.mr.sge(offset, len)) }
    }

    /// Posts a signalled send request whose data is a range of this endpoint's memory.
    pub(crate) fn post(&self, wr_id: u64, op: SendOp, offset: u64, len: u32) -> CaseResult {
        self.post_wr(SendWr::new(wr_id, op, self.data(offset, len)))
    }

    pub(crate) fn post_wr(&self, wr: SendWr) -> CaseResult {
        Ok(self.nic.post_send(self.qp, &[wr])?)
    }

    /// Posts a SEND to a UD destination.
    pub(crate) fn post_datagram(&self, wr_id: u64, message: &[u8], to: UdDestination) -> CaseResult {
        self.memory.write_at(MEMORY_SIZE - 4096, message);
        let data = self.data(MEMORY_SIZE as u64 - 4096, message.len() as u32);
        self.post_wr(SendWr::new(wr_id, SendOp::Send, data).with_flags(SendFlags::SIGNALED).to(to))
    }

    pub(crate) fn recv_wr(&self, wr_id: u64, offset: u64, len: u32) -> RecvWr {
        match len {
            0 => RecvWr { wr_id, sges: SgeList::new() },
            _ => RecvWr::new(wr_id, self.mr.sge(offset, len)),
        }
    }

    pub(crate) fn post_recv(&self, wr_id: u64, offset: u64, len: u32) -> CaseResult {
        let wr = self.recv_wr(wr_id, offset, len);
        match self.srq {
            Some(srq) => Ok(self.nic.post_srq_recv(srq, &[wr])?),
            None => Ok(self.nic.post_recv(self.qp, &[wr])?),
        }
    }

    /// Lets the NICs work until a condition holds.
    #[track_caller]
    pub(crate) fn wait_until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let deadline = self.nic.now() + self.fabric.timeout();
        while !holds() {
            assert!(self.nic.now() < deadline, "timed out: {what}");
            self.fabric.wait();
        }
    }

    /// Lets the NICs work for a while, polling nothing. For the time in which a wrong event would
    /// occur; nothing right depends on the length.
    pub(crate) fn pause(&self) {
        let end = self.nic.now() + Duration::from_millis(2);
        while self.nic.now() < end {
            self.fabric.wait();
        }
    }

    /// Returns the next completion, success or not.
    #[track_caller]
    pub(crate) fn wait_completion(&self) -> Wc {
        let mut wcs = Vec::new();
        self.wait_until("a completion", || {
            self.nic.poll_cq(self.cq, 1, &mut wcs).expect("the completion queue exists") == 1
        });
        wcs[0]
    }

    #[track_caller]
    pub(crate) fn wait_success(&self) -> Wc {
        let wc = self.wait_completion();
        assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
        wc
    }

    /// Waits for the next completion, which must have this number and status.
    #[track_caller]
    pub(crate) fn wait_for(&self, wr_id: u64, status: WcStatus) -> Wc {
        let wc = self.wait_completion();
        assert_eq!((wc.wr_id, wc.status), (wr_id, status), "{wc:?}");
        wc
    }

    /// Waits for these bytes. The completion of a WRITE does not mean that its bytes are in memory.
    #[track_caller]
    pub(crate) fn wait_bytes(&self, offset: usize, bytes: &[u8], what: &str) {
        self.wait_until(what, || self.bytes(offset, bytes.len()) == bytes);
    }

    #[track_caller]
    pub(crate) fn wait_word(&self, offset: usize, word: u64) {
        self.wait_until(&format!("the word {word} at {offset}"), || self.memory.load(offset) == word);
    }

    pub(crate) fn fill(&self, offset: usize, len: usize, seed: u8) {
        self.memory.write_at(offset, &pattern(len, seed));
    }

    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.memory.read_at(offset, &mut out);
        out
    }

    pub(crate) fn state(&self) -> CaseResult<QpState> {
        Ok(self.nic.query_qp(self.qp)?.state)
    }
}

impl Drop for Endpoint<'_> {
    /// Destroys the objects, as far as they exist and nothing else uses them.
    fn drop(&mut self) {
        let _ = self.nic.destroy_qp(self.qp);
        if let Some(srq) = self.srq {
            let _ = self.nic.destroy_srq(srq);
        }
        let _ = self.nic.dereg_mr(self.mr.id);
        let _ = self.nic.destroy_cq(self.cq);
        let _ = self.nic.dealloc_pd(self.pd);
    }
}

fn build_qp(
    nic: &dyn Provider,
    pd: PdId,
    cq: CqId,
    srq: Option<SrqId>,
    options: &Options,
) -> CaseResult<Qpn> {
    let limits = &nic.attr().limits;
    let cap = QpCap {
        send_wrs: options.cap.send_wrs.min(limits.wrs),
        recv_wrs: options.cap.recv_wrs.min(limits.wrs),
        send_sges: options.cap.send_sges.min(limits.sges),
        recv_sges: options.cap.recv_sges.min(limits.sges),
        inline: options.cap.inline.min(limits.inline),
    };
    let builder = QpBuilder::new(options.qp_type, pd, cq).cap(cap);
    let builder = if options.signal_all { builder.signal_all() } else { builder };
    Ok(match srq {
        Some(srq) => builder.srq(srq).build(nic)?,
        None => builder.build(nic)?,
    })
}

pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8 ^ seed).collect()
}
