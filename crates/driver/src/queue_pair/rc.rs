//! An RC queue pair on rail 0 of a domain.

use mitra_failover::{Config, DetectorConfig, Domain, LocalNic};
use mitra_verbs::{
    Access, CqId, Error, Gid, InlineData, Mtu, PostError, Psn, QpBuildError, QpBuilder, Qpn, RcConnection,
    SendWr, Wc, WcStatus,
};
use serde::{Deserialize, Serialize};

use super::ConnectionError;

/// The connection data of an RC queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RcInfo {
    gid: [u8; 16],
    mtu: u16,
    qpn: u32,
    psn: u32,
}

/// An RC queue pair. Its failure is final, because no evidence shows which requests the peer has
/// executed.
#[derive(Debug)]
pub(super) struct RcQp {
    nic: LocalNic,
    cq: CqId,
    qpn: Qpn,
    psn: Psn,
    rd_atomic: u8,
    detector: DetectorConfig,
    access: Access,
    is_closed: bool,
    wrs: Vec<SendWr>,
    completions: Vec<Wc>,
}

impl RcQp {
    pub(super) fn new(domain: &Domain, config: &Config) -> Result<RcQp, Error> {
        let nic = domain.nics()[0].clone();
        let psn = Psn::new(nic.provider.random_u64()? as u32);
        let cq = nic.provider.create_cq(config.send_wrs + 1, nic.channel.as_ref())?;
        let inline = config.inline.min(InlineData::new().inline_size() as u32);
        let built = QpBuilder::rc(nic.pd, cq).send_wrs(config.send_wrs).recv_wrs(1).inline(inline);
        let qpn = built.build(&*nic.provider).map_err(|refused| {
            let _ = nic.provider.destroy_cq(cq); // best effort: the caller gets the first error
            match refused {
                QpBuildError::Nic(error) => error,
                _ => Error::Invalid(
                    "a queue pair of this depth is beyond the limits of the NIC; lower send_wrs",
                ),
            }
        })?;
        let (wrs, completions) = Default::default();
        let Config { rd_atomic, detector, access, .. } = *config;
        Ok(RcQp { nic, cq, qpn, psn, rd_atomic, detector, access, is_closed: false, wrs, completions })
    }

    pub(super) fn info(&self) -> Result<RcInfo, Error> {
        let port = self.nic.provider.query_port()?;
        let mtu = port.max_mtu.bytes() as u16;
        Ok(RcInfo { gid: port.gid.0, mtu, qpn: self.qpn.value(), psn: self.psn.value() })
    }

    pub(super) fn connect(&mut self, peer: &RcInfo) -> Result<(), Error> {
        let mtu =
            Mtu::from_bytes(peer.mtu.into()).ok_or(Error::Invalid("the peer's MTU is none of RoCEv2"))?;
        let connection = RcConnection {
            path_mtu: self.nic.provider.query_port()?.max_mtu.min(mtu),
            sq_psn: self.psn,
            rq_psn: Psn::new(peer.psn),
            access: self.access,
            rd_atomic: self.rd_atomic,
            local_ack_timeout: self.detector.local_ack_timeout,
            retry_cnt: self.detector.retry_cnt,
            ..RcConnection::to(Gid(peer.gid), Qpn::new(peer.qpn))
        };
        connection.connect(&*self.nic.provider, self.qpn)
    }

    pub(super) fn post(&mut self, wrs: impl Iterator<Item = SendWr>) -> Result<(), PostError> {
        self.wrs.extend(wrs);
        let posted = self.nic.provider.post_send_all(self.qpn, &self.wrs);
        self.wrs.clear();
        posted
    }

    /// Returns the number of requests that have succeeded, and the first error.
    pub(super) fn poll(&mut self) -> (usize, Result<(), ConnectionError>) {
        let polled = self.nic.provider.poll_cq(self.cq, 64, &mut self.completions);
        let count = self.completions.len();
        let failed = self.completions.iter().position(|wc| wc.status != WcStatus::Success);
        let error = failed.map(|at| ConnectionError::Request(self.completions[at].status));
        self.completions.clear();
        let polled = polled.map(drop).map_err(ConnectionError::Nic);
        (failed.unwrap_or(count), error.map_or(polled, Err))
    }

    pub(super) fn arm(&self) -> Result<(), Error> {
        self.nic.provider.req_notify_cq(self.cq, false)
    }

    pub(super) fn close(&mut self) -> Result<(), Error> {
        if std::mem::replace(&mut self.is_closed, true) {
            return Ok(());
        }
        let steps = [self.nic.provider.destroy_qp(self.qpn), self.nic.provider.destroy_cq(self.cq)];
        // A dead NIC has no objects. A hung NIC is reset when the memory is deregistered.
        steps.into_iter().filter(|step| !matches!(step, Err(Error::DeviceFatal))).fold(Ok(()), Result::and)
    }
}

impl Drop for RcQp {
    fn drop(&mut self) {
        let _ = self.close(); // nobody can handle the error of a NIC
    }
}
