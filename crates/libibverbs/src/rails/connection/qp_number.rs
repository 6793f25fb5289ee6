//! The number of a queue pair with a shared backup.

use mitra_failover::LocalNic;
use mitra_verbs::{CqId, Error, QpBuilder, QpCap, Qpn, Result};

/// The queue pair number that the program knows. The queue pairs that execute its requests have other numbers, which change with each failover. A queue
/// pair in RESET on one rail keeps the number, so that no other queue pair of the device gets it.
pub(in crate::rails) struct QpNumber {
    nic: LocalNic,
    cq: CqId,
    qpn: Qpn,
}

impl QpNumber {
    /// Takes a number, on the first of the NICs that is alive.
    ///
    /// # Errors
    /// The error of this NIC, or `DeviceFatal` if none is alive.
    pub(in crate::rails) fn new(nics: &[LocalNic]) -> Result<QpNumber> {
        let is_of_live_nic = |number: &Result<QpNumber>| !matches!(number, Err(Error::DeviceFatal));
        nics.iter().map(QpNumber::new_on).find(is_of_live_nic).unwrap_or(Err(Error::DeviceFatal))
    }

    fn new_on(nic: &LocalNic) -> Result<QpNumber> {
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
