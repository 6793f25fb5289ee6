//! The memory in which the datagrams of one queue pair arrive, with slots for each rail. The
//! program's receives cannot be posted on a NIC, because a datagram may arrive on any rail, and a
//! posted receive cannot be withdrawn from another rail.

use std::sync::Arc;

use mitra_failover::{Domain, VirtualMr};
use mitra_verbs::{Access, Buffer, GRH_LEN, Qpn, RecvWr, Result};

/// The maximum number of slots on a rail. A datagram that finds no free slot is lost.
const MAX_SLOTS: u32 = 512;
/// The minimum number of slots on a rail. It is more than short receive queues need, because slots
/// are freed only when the queue pair is driven.
const MIN_SLOTS: u32 = 64;

/// The bit of `wr_id` that marks the completion of a slot's receive.
const SLOT: u64 = 1 << 63;

/// Returns the slot of a receive's completion, or `None` for the completion of a send.
pub(super) fn slot_of(wr_id: u64) -> Option<u32> {
    (wr_id & SLOT != 0).then_some(wr_id as u32)
}

pub(super) struct Arrivals {
    domain: Arc<Domain>,
    buffer: Arc<Buffer>,
    mr: VirtualMr,
    /// The number of slots on a rail.
    pub(super) slots: u32,
    pub(super) slot_bytes: u32,
}

impl Arrivals {
    /// Makes slots for datagrams of up to the largest MTU of the rails. `receives` is the length of
    /// the program's receive queue.
    ///
    /// # Errors
    /// The error of a NIC that refuses to register the memory.
    pub(super) fn new(domain: &Arc<Domain>, receives: u32) -> Result<Arrivals> {
        let mtu_of = |port: mitra_verbs::PortAttr| port.max_mtu.bytes();
        let mtus = domain.nics().iter().filter_map(|nic| nic.provider.query_port().ok().map(mtu_of));
        let slot_bytes = (GRH_LEN + mtus.max().unwrap_or(0)).next_multiple_of(8) as u32;
        let slots = receives.clamp(MIN_SLOTS, MAX_SLOTS);
        let bytes = slot_bytes as usize * slots as usize * domain.nics().len();
        // The system allocates the memory of a slot when a datagram is written there.
        let buffer = Arc::new(Buffer::new(bytes));
        let mr = domain.register(&buffer, Access::LOCAL_WRITE)?;
        Ok(Arrivals { domain: Arc::clone(domain), buffer, mr, slots, slot_bytes })
    }

    /// # Errors
    /// The error of the NIC.
    pub(super) fn post(&self, rail: usize, qpn: Qpn, slot: u32) -> Result<()> {
        let sge = self.mr.sge(self.offset(rail, slot), self.slot_bytes);
        let receive = RecvWr::new(SLOT | u64::from(slot), self.domain.translate(sge, rail));
        self.domain.nics()[rail].provider.post_recv(qpn, &[receive]).map_err(|refused| refused.error)
    }

    /// Reads the first bytes of a slot. `out` is not longer than the slot.
    pub(super) fn read(&self, rail: usize, slot: u32, out: &mut [u8]) {
        self.buffer.read_at(self.offset(rail, slot) as usize, out);
    }

    fn offset(&self, rail: usize, slot: u32) -> u64 {
        (rail as u64 * u64::from(self.slots) + u64::from(slot)) * u64::from(self.slot_bytes)
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        // Only a dead NIC does not confirm the revocation. Its access would be harmless, because
        // the buffer is not freed while a NIC refers to it.
        let _ = self.domain.deregister(&self.mr);
    }
}
