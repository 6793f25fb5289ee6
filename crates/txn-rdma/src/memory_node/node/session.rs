//! The rights of one life at a memory node: a registration of the memory in protection domains of
//! its own, and a queue pair in them.

use std::sync::Arc;

use mitra_driver::{QpInfo, QpKind, QueuePair};
use mitra_failover::{Config, Domain, VirtualMr};
use mitra_verbs::{Access, Buffer, Error};

use crate::hello::{Answer, Refusal};

#[derive(Debug)]
pub(super) struct Session {
    pub(super) incarnation: u16,
    domain: Arc<Domain>,
    /// `None` once the NICs have confirmed the deregistration.
    mr: Option<VirtualMr>,
    qp: QueuePair,
}

impl Session {
    pub(super) fn new(
        domain: &Domain,
        memory: &Arc<Buffer>,
        incarnation: u16,
        kind: QpKind,
        failover: &Config,
    ) -> Result<Session, Refusal> {
        let domain = domain.with_own_pds().map_err(refusal)?;
        let qp = QueuePair::passive(&domain, kind, failover).map_err(refusal)?;
        let mr = domain.register(memory, Access::LOCAL_WRITE | Access::REMOTE).map_err(refusal)?;
        Ok(Session { incarnation, domain, mr: Some(mr), qp })
    }

    pub(super) fn connect(&mut self, peer: &QpInfo) -> Result<Answer, Refusal> {
        let info = self.qp.info().map_err(refusal)?;
        let region = self.mr.as_ref().map(|mr| mr.remote().encode()).unwrap_or_default();
        if !self.qp.connect(peer).map_err(refusal)? {
            return Err(Refusal::Kind);
        }
        Ok(Answer::Connected { info, region })
    }

    /// Drives the connection. Returns whether it is open.
    pub(super) fn handle_events(&mut self) -> bool {
        self.qp.handle_events().is_ok()
    }

    pub(super) fn qp(&self) -> &QueuePair {
        &self.qp
    }

    /// Takes all rights away. After `Ok`, no access of the life is under way on any rail, and none
    /// follows. After an error, any rail may still execute accesses. A later call repeats the steps
    /// that are not confirmed.
    pub(super) fn end(&mut self) -> Result<(), Refusal> {
        let closed = self.qp.close();
        if let Some(mr) = &self.mr {
            self.domain.deregister(mr).map_err(refusal)?;
            self.mr = None;
        }
        closed.map_err(refusal)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.end(); // nobody can handle the error of a NIC
    }
}

fn refusal(error: Error) -> Refusal {
    Refusal::Nic(error.to_string())
}
