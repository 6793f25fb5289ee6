//! An RC queue pair as an endpoint, and the connection of two of them.

use std::sync::Arc;

use mitra_verbs::{
    CqId, LocalAckTimeout, Mr, Mtu, PdId, PostError, Provider, Psn, QpCap, QpInitAttr, QpType, Qpn,
    RcConnection, RecvWr, Result, SendWr, Wc, WcStatus,
};

use crate::Prng;

use super::{Endpoint, EndpointCompletion, ReportedOutcome, WorkloadPeer};

/// One end of a reliable connection. Its NIC is any [`Provider`].
pub struct RcEndpoint {
    nic: Arc<dyn Provider>,
    /// The protection domain.
    pub pd: PdId,
    /// The queue pair number.
    pub qpn: Qpn,
    send_cq: CqId,
    recv_cq: CqId,
    wcs: Vec<Wc>,
    /// The first completion with an error status.
    pub failed: Option<Wc>,
}

/// The options of a reliable connection. They are the same at both ends, except for the PSN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RcOptions {
    /// The path MTU.
    pub mtu: Mtu,
    /// The capacities of the queues.
    pub cap: QpCap,
    /// The code of the local ACK timeout, which is 4.096 µs · 2^`timeout`.
    pub timeout: u8,
    /// The maximum number of retransmissions after local ACK timeouts or sequence NAKs.
    pub retry_cnt: u8,
    /// The maximum number of retries after RNR NAKs. 7 means that there is no limit.
    pub rnr_retry: u8,
    /// The maximum number of outstanding READs and atomics in each direction.
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

impl RcOptions {
    /// Draws the MTU, the timeout, the number of READs and atomics, and PSNs that soon wrap around.
    pub fn draw(rng: &mut Prng) -> RcOptions {
        RcOptions {
            mtu: *rng.pick(&Mtu::ALL),
            timeout: rng.between(6, 9) as u8,
            rd_atomic: rng.between(1, 16) as u8,
            psns: [0, 1].map(|_| Psn::new(rng.bits() as u32 | 0xff_ff00)),
            ..RcOptions::default()
        }
    }

    /// Draws the numbers of retries. Each number is the maximum with probability 1/2.
    pub fn with_drawn_retries(self, rng: &mut Prng) -> RcOptions {
        let [retry_cnt, rnr_retry] = [(); 2].map(|()| if rng.below(2) == 0 { 7 } else { rng.below(7) as u8 });
        RcOptions { retry_cnt, rnr_retry, ..self }
    }
}

impl RcEndpoint {
    /// Creates a queue pair in RESET, with its own protection domain and two completion queues.
    ///
    /// # Errors
    /// Returns the error of the verb that failed.
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

    /// Connects the queue pair to `peer` and brings it to RTS. The initial PSN is `psns[0]` with
    /// `first`, and otherwise `psns[1]`.
    ///
    /// # Errors
    /// Returns the error of the verb that failed.
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
                    invalidated: wc.invalidated,
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

/// After most errors, the request may or may not have been executed.
fn outcome(status: WcStatus) -> ReportedOutcome {
    match status {
        WcStatus::Success => ReportedOutcome::Success,
        WcStatus::LocalProtection | WcStatus::LocalLength => ReportedOutcome::NotExecuted,
        // For example, a WRITE with immediate data that finds no receive is executed except for its
        // last packet.
        _ => ReportedOutcome::Unknown,
    }
}

/// Connects two peers by a reliable connection, and registers the memory of each peer with its NIC.
///
/// # Errors
/// Returns the error of the verb that failed.
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
    let (mr_a, mr_b) = (register(&a, first)?, register(&b, second)?);
    first.connect(mr_a, mr_b.remote(0));
    second.connect(mr_b, mr_a.remote(0));
    Ok([a, b])
}
