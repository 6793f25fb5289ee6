//! Two queue pairs that are connected to each other, each with memory of its own.

use std::sync::Arc;
use std::time::Duration;

use mitra_verbs::{
    Access, Buffer, CqId, Data, LocalAckTimeout, Mr, Mtu, Provider, Psn, QpAttr, QpBuilder, QpState,
    QpStatus, Qpn, RcConnection, RecvWr, Result, SendOp, SendWr, SgeList, Time, Wc, WcStatus,
};

use crate::objects::Objects;

/// The requests that an end may have outstanding. The completion queue has room for them and for
/// the markers.
pub(crate) const SEND_WRS: u32 = 64;

/// The `wr_id` of the receive that is posted before the fence. Its flushed completion is the
/// receive marker.
const RECEIVE_MARKER: u64 = u64::MAX;

/// The `wr_id` of the send that is posted in ERR.
const SEND_MARKER: u64 = u64::MAX - 1;

/// The larger path MTU would only enlarge the messages.
const MAX_MTU: Mtu = Mtu::M1024;

/// What a pair is made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PairConfig {
    /// The bytes of memory of each end.
    pub memory: usize,
    /// The PSN of the requester's first packet.
    pub first_psn: Psn,
    pub local_ack_timeout: LocalAckTimeout,
    pub retry_cnt: u8,
}

/// A requester and a responder. Both may be on the same NIC.
#[derive(Debug)]
pub(crate) struct Pair<'a> {
    pub requester: End<'a>,
    pub responder: End<'a>,
    pub path_mtu: Mtu,
}

/// The PSN of the responder's first packet. It sends none of its own.
pub(crate) const RESPONDER_PSN: Psn = Psn::new(0x5a_5a5a);

#[derive(Debug)]
pub(crate) struct End<'a> {
    objects: Objects<'a>,
    pub qp: Qpn,
    cq: CqId,
    pub mr: Mr,
    pub memory: Arc<Buffer>,
    polled: Vec<Wc>,
    /// The markers whose flushed completions have been polled.
    is_receive_flushed: bool,
    is_send_flushed: bool,
}

impl<'a> Pair<'a> {
    /// Connects two new queue pairs.
    ///
    /// # Errors
    /// The first error of a call.
    pub(crate) fn connect(
        requester: &'a dyn Provider,
        responder: &'a dyn Provider,
        config: &PairConfig,
    ) -> Result<Pair<'a>> {
        let ports = [requester.query_port()?, responder.query_port()?];
        let path_mtu = ports.iter().fold(MAX_MTU, |mtu, port| mtu.min(port.max_mtu));
        let nics = [requester, responder];
        let rd_atomic = nics.iter().fold(16, |limit, nic| limit.min(nic.attr().limits.rd_atomic));
        let (requester, responder) = (End::new(requester, config)?, End::new(responder, config)?);
        for (end, peer, gid, sq_psn, rq_psn) in [
            (&requester, &responder, ports[1].gid, config.first_psn, RESPONDER_PSN),
            (&responder, &requester, ports[0].gid, RESPONDER_PSN, config.first_psn),
        ] {
            let connection = RcConnection {
                path_mtu,
                sq_psn,
                rq_psn,
                rd_atomic,
                local_ack_timeout: config.local_ack_timeout,
                retry_cnt: config.retry_cnt,
                ..RcConnection::to(gid, peer.qp)
            };
            connection.connect(end.nic(), end.qp)?;
            end.post_receive_marker()?;
        }
        Ok(Pair { requester, responder, path_mtu })
    }

    /// Polls both ends. Returns the requester's completions, without the markers.
    pub(crate) fn poll(&mut self) -> Result<Vec<Wc>> {
        self.responder.poll()?;
        let completions = self.requester.poll()?;
        if completions.is_empty() {
            // The NIC's own thread may need this processor.
            std::thread::yield_now();
        }
        Ok(completions)
    }

    /// Destroys all objects.
    ///
    /// # Errors
    /// The first error.
    pub(crate) fn destroy(self) -> Result<()> {
        self.requester.objects.destroy().and(self.responder.objects.destroy())
    }
}

impl<'a> End<'a> {
    fn new(nic: &'a dyn Provider, config: &PairConfig) -> Result<End<'a>> {
        let mut objects = Objects::on(nic);
        let pd = objects.pd()?;
        let memory = Arc::new(Buffer::new(config.memory));
        let mr = objects.mr(pd, memory.clone(), Access::LOCAL_WRITE | Access::REMOTE)?;
        let cq = objects.cq(SEND_WRS + 8)?;
        let builder =
            QpBuilder::rc(pd, cq).send_wrs(SEND_WRS).recv_wrs(2).send_sges(1).recv_sges(1).inline(0);
        let qp = objects.qp(builder)?;
        let polled = Vec::new();
        Ok(End { objects, qp, cq, mr, memory, polled, is_receive_flushed: false, is_send_flushed: false })
    }

    pub(crate) fn nic(&self) -> &'a dyn Provider {
        self.objects.nic()
    }

    pub(crate) fn query(&self) -> Result<QpStatus> {
        self.nic().query_qp(self.qp)
    }

    pub(crate) fn post(&self, wrs: &[SendWr]) -> Result<()> {
        self.nic().post_send(self.qp, wrs).map_err(|refused| refused.error)
    }

    fn post_receive_marker(&self) -> Result<()> {
        let marker = RecvWr { wr_id: RECEIVE_MARKER, sges: SgeList::new() };
        self.nic().post_recv(self.qp, &[marker]).map_err(|refused| refused.error)
    }

    /// Changes the queue pair to ERR.
    pub(crate) fn fence(&self) -> Result<()> {
        self.nic().modify_qp(self.qp, &QpAttr::to(QpState::Err))
    }

    /// Posts the marker of the send queue, in ERR.
    pub(crate) fn post_send_marker(&self) -> Result<()> {
        self.post(&[SendWr::new(SEND_MARKER, SendOp::Send, Data::empty())])
    }

    pub(crate) fn is_receive_flushed(&self) -> bool {
        self.is_receive_flushed
    }

    pub(crate) fn are_both_flushed(&self) -> bool {
        self.is_receive_flushed && self.is_send_flushed
    }

    /// Returns the completions that are not markers.
    pub(crate) fn poll(&mut self) -> Result<Vec<Wc>> {
        self.polled.clear();
        self.objects.nic().poll_cq(self.cq, 16, &mut self.polled)?;
        let mut others = Vec::new();
        for &wc in &self.polled {
            let is_flushed = wc.status == WcStatus::Flushed;
            match wc.wr_id {
                RECEIVE_MARKER => self.is_receive_flushed |= is_flushed,
                SEND_MARKER => self.is_send_flushed |= is_flushed,
                _ => others.push(wc),
            }
        }
        Ok(others)
    }
}

/// A limit of time on a NIC's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline<'a> {
    nic: &'a dyn Provider,
    at: Time,
}

impl<'a> Deadline<'a> {
    pub(crate) fn after(nic: &'a dyn Provider, duration: Duration) -> Deadline<'a> {
        Deadline { nic, at: nic.now() + duration }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.nic.now() >= self.at
    }
}
