//! The memory in which the datagrams of one queue pair arrive, with slots for each rail. The
//! program's receives cannot be posted on the NICs: a datagram may arrive on any rail, and a
//! receive cannot be withdrawn from the rails on which no datagram arrives.

use std::sync::Arc;

use mitra_failover::{Domain, OwnedRegion};
use mitra_verbs::{GRH_LEN, Qpn, RecvWr, Result};

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
    region: OwnedRegion,
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
        Ok(Arrivals { region: OwnedRegion::new(domain, bytes)?, slots, slot_bytes })
    }

    /// # Errors
    /// The error of the NIC.
    pub(super) fn post(&self, rail: usize, qpn: Qpn, slot: u32) -> Result<()> {
        let domain = self.region.domain();
        let sge = self.region.sge(self.offset(rail, slot), self.slot_bytes as usize);
        let receive = RecvWr::new(SLOT | u64::from(slot), domain.translate(sge, rail));
        domain.nics()[rail].provider.post_recv(qpn, &[receive]).map_err(|refused| refused.error)
    }

    /// Reads the first bytes of a slot. `out` is not longer than the slot.
    pub(super) fn read(&self, rail: usize, slot: u32, out: &mut [u8]) {
        self.region.read_into(self.offset(rail, slot), out);
    }

    fn offset(&self, rail: usize, slot: u32) -> usize {
        (rail * self.slots as usize + slot as usize) * self.slot_bytes as usize
    }
}
