//! XRC domains, and the shared receive queues in them (IBTA volume 1, annex A14).

use std::collections::BTreeMap;

use mitra_verbs::{CqId, Error, PdId, QpInitAttr, QpType, Result, SrqId, Srqn, XrcdId};
use rand_chacha::ChaCha8Rng;
use rand_core::RngCore;

use crate::Nic;
use crate::nic::handle_table::HandleTable;
use crate::nic::shared_state::SharedState;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct XrcSrq {
    pub(crate) number: Srqn,
    pub(crate) domain: XrcdId,
    /// The completion queue of the receives.
    pub(crate) cq: CqId,
}

/// Where a message of an XRC queue pair goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct XrcTarget {
    pub(crate) srq: SrqId,
    pub(crate) pd: PdId,
    pub(crate) cq: CqId,
}

/// The XRC domains of a NIC, and the numbers of the shared receive queues in them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct XrcDomains {
    /// The value is the number of queue pairs and shared receive queues in the domain.
    table: HandleTable<u32>,
    srqs: BTreeMap<Srqn, SrqId>,
}

impl XrcDomains {
    pub(crate) fn new(limit: u32) -> XrcDomains {
        XrcDomains { table: HandleTable::new("XRC domain", "XRC domains", limit), srqs: BTreeMap::new() }
    }

    pub(crate) fn add_user(&mut self, domain: XrcdId) -> Result<()> {
        *self.table.get_mut(domain.0)? += 1;
        Ok(())
    }

    pub(crate) fn remove_user(&mut self, domain: XrcdId) {
        if let Ok(users) = self.table.get_mut(domain.0) {
            *users -= 1;
        }
    }

    pub(crate) fn remove_srq(&mut self, srq: &XrcSrq) {
        self.srqs.remove(&srq.number);
        self.remove_user(srq.domain);
    }

    /// Chooses an unused number. The number is random, so that a peer cannot guess the numbers of
    /// other processes. 0 is never used.
    fn unused_number(&self, rng: &mut ChaCha8Rng) -> Srqn {
        loop {
            let number = Srqn::new(rng.next_u32());
            if number != Srqn::default() && !self.srqs.contains_key(&number) {
                return number;
            }
        }
    }
}

impl SharedState {
    /// Returns the shared receive queue with a number, if it is in the domain.
    pub(crate) fn xrc_target(&self, domain: XrcdId, number: Srqn) -> Option<XrcTarget> {
        let srq = *self.xrc.srqs.get(&number)?;
        let queue = self.srqs.get(srq.0).ok()?;
        let xrc = queue.xrc.filter(|xrc| xrc.domain == domain)?;
        Some(XrcTarget { srq, pd: queue.pd, cq: xrc.cq })
    }

    pub(crate) fn xrc_cq(&self, srq: SrqId) -> Option<CqId> {
        self.srqs.get(srq.0).ok()?.xrc.map(|xrc| xrc.cq)
    }
}

/// Returns the completion queues that a queue pair uses. The receiving end of an XRC connection
/// uses no completion queue, and the sending end uses one queue.
pub(crate) fn used_cqs(init: &QpInitAttr) -> impl Iterator<Item = CqId> + use<> {
    let n = match init.qp_type {
        QpType::XrcRecv(_) => 0,
        QpType::XrcSend => 1,
        _ => 2,
    };
    [init.send_cq, init.recv_cq].into_iter().take(n)
}

/// The receiving end of an XRC connection belongs to no protection domain.
pub(crate) fn used_pd(init: &QpInitAttr) -> Option<PdId> {
    (!matches!(init.qp_type, QpType::XrcRecv(_))).then_some(init.pd)
}

impl Nic {
    /// Creates an XRC domain.
    ///
    /// # Errors
    /// [`Error::Limit`]: the NIC has the maximum number of XRC domains.
    pub fn alloc_xrcd(&mut self) -> Result<XrcdId> {
        self.shared.xrc.table.insert(0).map(XrcdId)
    }

    /// Removes an XRC domain.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the domain does not exist.
    /// - [`Error::Busy`]: a queue pair or a shared receive queue is in the domain.
    pub fn dealloc_xrcd(&mut self, domain: XrcdId) -> Result<()> {
        let table = &mut self.shared.xrc.table;
        if *table.get(domain.0)? > 0 {
            let user = "a queue pair or shared receive queue";
            return Err(Error::Busy { kind: "XRC domain", id: domain.0, user });
        }
        table.remove(domain.0).map(drop)
    }

    /// Creates a shared receive queue of `depth` entries in an XRC domain. Its receives complete in
    /// `cq`.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the protection domain, the XRC domain or the completion queue
    ///   does not exist.
    /// - [`Error::Limit`]: `depth` is too large, or the NIC has the maximum number of shared
    ///   receive queues.
    pub fn create_xrc_srq(&mut self, pd: PdId, domain: XrcdId, cq: CqId, depth: u32) -> Result<SrqId> {
        self.shared.xrc.table.get(domain.0)?;
        self.shared.cqs.len(cq)?;
        let srq = self.create_srq(pd, depth)?;
        self.shared.cqs.add_user(cq)?;
        self.shared.xrc.add_user(domain)?;
        let number = self.shared.xrc.unused_number(&mut self.rng);
        self.shared.xrc.srqs.insert(number, srq);
        self.shared.srqs.get_mut(srq.0)?.xrc = Some(XrcSrq { number, domain, cq });
        Ok(srq)
    }

    /// Returns the number of an XRC shared receive queue.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the shared receive queue does not exist.
    /// - [`Error::Invalid`]: the shared receive queue is in no XRC domain.
    pub fn srq_number(&self, srq: SrqId) -> Result<Srqn> {
        let xrc = self.shared.srqs.get(srq.0)?.xrc;
        xrc.map(|xrc| xrc.number).ok_or(Error::Invalid(
            "only an XRC shared receive queue has a number; create it in an XRC domain",
        ))
    }
}

#[cfg(test)]
mod tests {
    use mitra_verbs::Gid;

    use super::*;
    use crate::NicConfig;

    #[test]
    fn destroyed_queues_leave_no_number() {
        let mut nic = Nic::new(NicConfig::new("nic", Gid([0; 16]), [0; 32]));
        let (pd, domain) = (nic.alloc_pd().unwrap(), nic.alloc_xrcd().unwrap());
        let cq = nic.create_cq(1).unwrap();
        let srqs = [(); 3].map(|()| nic.create_xrc_srq(pd, domain, cq, 1).unwrap());
        assert_eq!(nic.shared.xrc.srqs.len(), 3);
        for srq in srqs {
            nic.destroy_srq(srq).unwrap();
        }
        assert_eq!(nic.shared.xrc.srqs.len(), 0);
    }
}
