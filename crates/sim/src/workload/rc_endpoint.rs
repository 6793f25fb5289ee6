//! An RC queue pair as an endpoint, and a pair of connected ones.

use std::sync::Arc;

use mitra_verbs::{
    CqId, LocalAckTimeout, Mr, Mtu, PdId, PostError, Provider, Psn, QpCap, QpInitAttr, QpType, Qpn,
    RcConnection, RecvWr, Result, SendWr, Wc, WcStatus,
};

use super::{Endpoint, EndpointCompletion, ReportedOutcome, WorkloadPeer};

/// One end of a reliable connection, on any NIC.
pub struct RcEndpoint {
    nic: Arc<dyn Provider>,
    /// The protection domain.
    pub pd: PdId,
    /// The queue pair number.
    pub qpn: Qpn,
    send_cq: CqId,
    recv_cq: CqId,
    wcs: Vec<Wc>,
    /// The first completion with an error.
    pub failed: Option<Wc>,
}

/// The options of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RcOptions {
    /// The path MTU.
    pub mtu: Mtu,
    /// The capacities of the queues.
    pub cap: QpCap,
    /// The local ACK timeout code: 4.096 µs · 2^timeout.
    pub timeout: u8,
    /// The number of retransmissions.
    pub retry_cnt: u8,
    /// The number of retries after an RNR NAK. 7 means without limit.
    pub rnr_retry: u8,
    /// The most READs and atomics in flight.
    pub rd_atomic: u8,
    /// The initial PSN of each end.
    pub psns: [Psn; 2],
}

impl Default for RcOptions {
    fn default() -> RcOptions {
        RcOptions {
            mtu: Mtu::M1024,
            cap: QpCap::default(),
            timeout: 6,
            retry_cnt: 7,
            rnr_retry: 7,
            rd_atomic: 8,
            psns: [Psn::new(0xff_fff0), Psn::new(77)],
        }
    }
}

impl RcEndpoint {
    /// Creates a queue pair in RESET, with completion queues of its own.
    ///
    /// # Errors
    /// The error of the verb that the NIC refuses.
    pub fn new(nic: Arc<dyn Provider>, options: &RcOptions) -> Result<RcEndpoint> {
        let pd = nic.alloc_pd()?;
        let send_cq = nic.create_cq(options.cap.send_wrs + 8, None)?;
        let recv_cq = nic.create_cq(options.cap.recv_wrs + 8, None)?;
        let init = QpInitAttr {
            qp_type: QpType::Rc,
            pd,
            send_cq,
            recv_cq,
            srq: None,
            cap: options.cap,
            sq_sig_all: false,
        };
        let qpn = nic.create_qp(&init)?;
        Ok(RcEndpoint { nic, pd, qpn, send_cq, recv_cq, wcs: Vec::new(), failed: None })
    }

    /// Connects the queue pair to `peer` and brings it to RTS. `first` says which end this is.
    ///
    /// # Errors
    /// The error of the verb that the NIC refuses.
    pub fn connect(&self, peer: &RcEndpoint, options: &RcOptions, first: bool) -> Result<()> {
        let [local_psn, remote_psn] = if first { options.psns } else { [options.psns[1], options.psns[0]] };
        let connection = RcConnection {
            path_mtu: options.mtu,
            rq_psn: remote_psn,
            sq_psn: local_psn,
            rd_atomic: options.rd_atomic,
            local_ack_timeout: LocalAckTimeout::from_code(options.timeout),
            retry_cnt: options.retry_cnt,
            rnr_retry: options.rnr_retry,
            ..RcConnection::to(peer.nic.query_port()?.gid, peer.qpn)
        };
        connection.connect(&*self.nic, self.qpn)
    }

    /// Returns the NIC.
    pub fn nic(&self) -> &Arc<dyn Provider> {
        &self.nic
    }

    fn poll_cq_into(&mut self, cq: CqId, out: &mut Vec<EndpointCompletion>) {
        let mut wcs = core::mem::take(&mut self.wcs);
        if self.nic.poll_cq(cq, 64, &mut wcs).is_ok() {
            for wc in wcs.drain(..) {
                if wc.status != WcStatus::Success && self.failed.is_none() {
                    self.failed = Some(wc);
                }
                out.push(EndpointCompletion {
                    wr_id: wc.wr_id,
                    outcome: outcome(wc.status),
                    byte_len: wc.byte_len,
                    imm: wc.imm,
                });
            }
        }
        self.wcs = wcs;
    }
}

impl Endpoint for RcEndpoint {
    fn post(&mut self, wr: SendWr) -> Result<(), PostError> {
        self.nic.post_send(self.qpn, &[wr])
    }

    fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        self.nic.post_recv(self.qpn, &[wr])
    }

    fn poll(&mut self, out: &mut Vec<EndpointCompletion>) {
        self.poll_cq_into(self.send_cq, out);
        self.poll_cq_into(self.recv_cq, out);
    }
}

/// Returns what a status says about execution. After the first error of a queue pair the outcome is unknown.
fn outcome(status: WcStatus) -> ReportedOutcome {
    match status {
        WcStatus::Success => ReportedOutcome::Success,
        WcStatus::RnrRetryExceeded | WcStatus::LocalProtection | WcStatus::LocalLength => {
            ReportedOutcome::NotExecuted
        }
        _ => ReportedOutcome::Unknown,
    }
}

/// Creates a connection between two peers, and registers the memory of each with its NIC.
///
/// # Errors
/// The error of the verb that a NIC refuses.
pub fn connect_rc(
    nics: [Arc<dyn Provider>; 2],
    peers: [&mut WorkloadPeer; 2],
    options: &RcOptions,
) -> Result<[RcEndpoint; 2]> {
    let [a, b] = nics;
    let [a, b] = [RcEndpoint::new(a, options)?, RcEndpoint::new(b, options)?];
    a.connect(&b, options, true)?;
    b.connect(&a, options, false)?;
    let register = |end: &RcEndpoint, peer: &WorkloadPeer| -> Result<Mr> {
        end.nic.reg_mr(end.pd, Arc::clone(peer.memory()), WorkloadPeer::ACCESS)
    };
    let [first, second] = peers;
    let (at_a, at_b) = (register(&a, first)?, register(&b, second)?);
    first.connect(at_a, at_b.remote(0));
    second.connect(at_b, at_a.remote(0));
    Ok([a, b])
}
