//! The number of a queue pair with a shared backup.

use mitra_failover::LocalNic;
use mitra_verbs::{CqId, Error, QpBuilder, QpCap, Qpn, Result};

/// The queue pair number that the program knows. The queue pairs that execute its requests have other numbers, which change with each failover. A queue
/// pair in RESET on rail 0 keeps the number, so that no other queue pair of the device gets it.
pub(in crate::rails) struct QpNumber {
    nic: LocalNic,
    cq: CqId,
    qpn: Qpn,
}

impl QpNumber {
    /// Takes a number.
    ///
    /// # Errors
    /// The error of the NIC.
    pub(in crate::rails) fn new(nic: &LocalNic) -> Result<QpNumber> {
        let p = &*nic.provider;
        let cq = p.create_cq(1, None)?;
        let cap = QpCap { send_wrs: 1, recv_wrs: 0, send_sges: 0, recv_sges: 0, inline: 0 };
        match QpBuilder::rc(nic.pd, cq).cap(cap).build(p) {
            Ok(qpn) => Ok(QpNumber { nic: nic.clone(), cq, qpn }),
            Err(error) => {
                let _ = p.destroy_cq(cq); // best effort: the caller gets the first error
                Err(Error::from(error))
            }
        }
    }

    pub(in crate::rails) fn qpn(&self) -> Qpn {
        self.qpn
    }
}

impl Drop for QpNumber {
    fn drop(&mut self) {
        let p = &*self.nic.provider;
        let _ = (p.destroy_qp(self.qpn), p.destroy_cq(self.cq)); // a dead NIC has no objects
    }
}
