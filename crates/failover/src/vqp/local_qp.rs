use mitra_verbs::{Access, CqId, Error, QpBuilder, QpCap, Qpn, RcConnection, Result, SendWr, Wc};

use crate::local_nic::LocalNic;

const DEPTH: u32 = 8;

/// A queue pair that is connected to itself and executes binds of type 1 windows on its NIC. A type
/// 1 window is bound for all queue pairs of the protection domain, so other vQPs may use the window
/// on a NIC whose rail this vQP has fenced. The fenced data queue pair cannot execute the bind
/// there.
#[derive(Debug)]
pub(super) struct LocalQp {
    nic: LocalNic,
    cq: CqId,
    qpn: Qpn,
}

impl LocalQp {
    pub(super) fn new(nic: &LocalNic) -> Result<LocalQp> {
        let p = &*nic.provider;
        let cq = p.create_cq(DEPTH, None)?;
        let cap = QpCap { send_wrs: DEPTH, recv_wrs: 0, send_sges: 0, recv_sges: 0, inline: 0 };
        let made = QpBuilder::rc(nic.pd, cq).cap(cap).build(p).map_err(Error::from).and_then(|qpn| {
            let connected = p.query_port().and_then(|port| {
                let path_mtu = port.max_mtu;
                let connection =
                    RcConnection { access: Access::empty(), path_mtu, ..RcConnection::to(port.gid, qpn) };
                connection.connect(p, qpn)
            });
            connected.inspect_err(|_| drop(p.destroy_qp(qpn))).map(|()| qpn)
        });
        match made {
            Ok(qpn) => Ok(LocalQp { nic: nic.clone(), cq, qpn }),
            Err(error) => {
                let _ = p.destroy_cq(cq); // best effort: the caller gets the first error
                Err(error)
            }
        }
    }

    pub(super) fn post_send(&self, wr: SendWr) -> Result<()> {
        self.nic.provider.post_send(self.qpn, &[wr]).map_err(|refused| refused.error)
    }

    pub(super) fn poll_cq(&self, max: usize, out: &mut Vec<Wc>) -> Result<usize> {
        self.nic.provider.poll_cq(self.cq, max, out)
    }

    pub(super) fn destroy(&self) -> Result<()> {
        let p = &*self.nic.provider;
        match p.destroy_qp(self.qpn).and_then(|()| p.destroy_cq(self.cq)) {
            Err(Error::DeviceFatal) => Ok(()),
            other => other,
        }
    }
}
