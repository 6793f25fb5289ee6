//! An end of a reliable connection over one device, with memory and without a virtual queue pair.

use std::sync::Arc;

use mitra_hardnic::HardNic;
use mitra_verbs::{
    Access, Buffer, CqId, Error, LocalAckTimeout, Mr, PdId, Provider, QpBuilder, Qpn, RcConnection,
};

/// An end, which [`End::connect`] connects to another.
pub struct End<'a> {
    pub nic: &'a HardNic,
    pd: PdId,
    pub cq: CqId,
    pub qp: Qpn,
    pub memory: Arc<Buffer>,
    pub mr: Mr,
}

impl<'a> End<'a> {
    pub fn new(nic: &'a HardNic, bytes: usize) -> mitra_verbs::Result<End<'a>> {
        let pd = nic.alloc_pd()?;
        let memory = Arc::new(Buffer::new(bytes));
        let mr = nic.reg_mr(pd, Arc::clone(&memory), Access::LOCAL_WRITE | Access::REMOTE)?;
        let cq = nic.create_cq(64, None)?;
        let qp = QpBuilder::rc(pd, cq).build(nic)?;
        Ok(End { nic, pd, cq, qp, memory, mr })
    }

    pub fn connect(&self, peer: &End<'_>) -> mitra_verbs::Result<()> {
        let port = peer.nic.query_port()?;
        let connection = RcConnection {
            path_mtu: self.nic.query_port()?.max_mtu.min(port.max_mtu),
            local_ack_timeout: LocalAckTimeout::from_code(12),
            retry_cnt: 3,
            ..RcConnection::to(port.gid, peer.qp)
        };
        connection.connect(self.nic, self.qp)
    }

    /// Destroys all that this end has. Its queue pair may have been destroyed before.
    pub fn destroy(self) -> mitra_verbs::Result<()> {
        match self.nic.destroy_qp(self.qp) {
            Ok(()) | Err(Error::NoSuchObject { .. }) => {}
            Err(error) => return Err(error),
        }
        self.nic.dereg_mr(self.mr.id)?;
        self.nic.destroy_cq(self.cq)?;
        self.nic.dealloc_pd(self.pd)
    }
}
