//! A bare RC queue pair as an endpoint, and two of them connected.

use std::sync::Arc;

use mitra_verbs::{
    CqId, LocalAckTimeout, Mr, Mtu, PdId, PostError, Provider, Psn, QpCap, QpInitAttr, QpType, Qpn,
    RcConnection, RecvWr, Result, SendWr, Wc, WcStatus,
};

use super::{Done, Ending, Endpoint, Party};

/// A reliable connection on any NIC.
pub struct RcEndpoint {
    nic: Arc<dyn Provider>,
    /// Its protection domain.
    pub pd: PdId,
    /// Its queue pair.
    pub qpn: Qpn,
    send_cq: CqId,
    recv_cq: CqId,
    wcs: Vec<Wc>,
    /// The first completion with an error, if there was one.
    pub failed: Option<Wc>,
}

/// How a connection is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RcOptions {
    /// Payload bytes per packet.
    pub mtu: Mtu,
    /// Sizes of the queues.
    pub cap: QpCap,
    /// Retransmission after 4.096 µs · 2^timeout ...
    pub timeout: u8,
    /// ... so many times.
    pub retry_cnt: u8,
    /// Retries when no receive is posted; 7 is for ever.
    pub rnr_retry: u8,
    /// READs and atomics at a time.
    pub rd_atomic: u8,
    /// The first PSN of the first end and of the second.
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
    /// A queue pair in RESET, with queues of its own.
    ///
    /// # Errors
    /// What the NIC refuses.
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

    /// Brings it to RTS, connected to `peer`; `first` says which of the two ends this is.
    ///
    /// # Errors
    /// What the NIC refuses.
    pub fn connect(&self, peer: &RcEndpoint, options: &RcOptions, first: bool) -> Result<()> {
        let [mine, theirs] = if first { options.psns } else { [options.psns[1], options.psns[0]] };
        let connection = RcConnection {
            path_mtu: options.mtu,
            rq_psn: theirs,
            sq_psn: mine,
            rd_atomic: options.rd_atomic,
            local_ack_timeout: LocalAckTimeout::from_code(options.timeout),
            retry_cnt: options.retry_cnt,
            rnr_retry: options.rnr_retry,
            ..RcConnection::to(peer.nic.query_port()?.gid, peer.qpn)
        };
        connection.connect(&*self.nic, self.qpn)
    }

    /// The NIC that it is on.
    pub fn nic(&self) -> &Arc<dyn Provider> {
        &self.nic
    }

    fn take(&mut self, cq: CqId, out: &mut Vec<Done>) {
        let mut wcs = core::mem::take(&mut self.wcs);
        if self.nic.poll_cq(cq, 64, &mut wcs).is_ok() {
            for wc in wcs.drain(..) {
                if wc.status != WcStatus::Success && self.failed.is_none() {
                    self.failed = Some(wc);
                }
                out.push(Done {
                    wr_id: wc.wr_id,
                    ending: ending(wc.status),
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

    fn poll(&mut self, out: &mut Vec<Done>) {
        self.take(self.send_cq, out);
        self.take(self.recv_cq, out);
    }
}

/// What a bare queue pair's status says about execution: after its first error, nothing.
fn ending(status: WcStatus) -> Ending {
    match status {
        WcStatus::Success => Ending::Success,
        WcStatus::RnrRetryExceeded | WcStatus::LocalProtection | WcStatus::LocalLength => Ending::NotExecuted,
        _ => Ending::Unknown,
    }
}

/// Two parties, each registered with its NIC, and a connection between them.
///
/// # Errors
/// What the NICs refuse.
pub fn connect_rc(
    nics: [Arc<dyn Provider>; 2],
    parties: [&mut Party; 2],
    options: &RcOptions,
) -> Result<[RcEndpoint; 2]> {
    let [a, b] = nics;
    let [a, b] = [RcEndpoint::new(a, options)?, RcEndpoint::new(b, options)?];
    a.connect(&b, options, true)?;
    b.connect(&a, options, false)?;
    let register = |end: &RcEndpoint, party: &Party| -> Result<Mr> {
        end.nic.reg_mr(end.pd, Arc::clone(party.memory()), Party::ACCESS)
    };
    let [first, second] = parties;
    let (at_a, at_b) = (register(&a, first)?, register(&b, second)?);
    first.connect(at_a, at_b.remote(0));
    second.connect(at_b, at_a.remote(0));
    Ok([a, b])
}
