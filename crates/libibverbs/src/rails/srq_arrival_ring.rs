//! The memory that messages arrive in when a queue pair takes its receives from a shared queue.

use std::collections::VecDeque;
use std::sync::Arc;

use mitra_failover::{Completion, Domain, VirtualMr, VirtualQp};
use mitra_verbs::{Access, Buffer, RecvWr, Result, WcOpcode, WcStatus};

use super::virtual_srq::VirtualSrq;

/// The largest number of slots.
pub(super) const MAX_SLOTS: usize = 64;
/// The smallest number of slots.
const MIN_SLOTS: usize = 4;
/// The size of the ring in bytes, unless [`MIN_SLOTS`] slots take more.
const RING_BYTES: usize = 4 << 20;

/// A ring of receives in Mitra's memory, each of which holds one message. The connection delivers in order, so slots are
/// used and reposted in order.
pub(super) struct BounceRing {
    domain: Arc<Domain>,
    buffer: Arc<Buffer>,
    mr: VirtualMr,
    slot_bytes: usize,
    /// Messages that have arrived and have no shared receive.
    unmatched: VecDeque<Completion>,
}

/// A message that was copied to a shared receive.
pub(super) struct MatchedMessage {
    /// The `wr_id` of the shared receive.
    pub(super) wr_id: u64,
    /// The result of the copy.
    pub(super) copied: WcStatus,
    /// The completion of the receive in the ring.
    pub(super) completion: Completion,
}

impl BounceRing {
    /// Registers the ring, and posts its receives. A slot is as long as the longest shared receive so far. A longer message fails, even
    /// if a shared receive that is posted later had room for it.
    ///
    /// # Errors
    /// The error of a NIC that refuses the memory or a receive.
    pub(super) fn new(domain: &Arc<Domain>, srq: &VirtualSrq, vqp: &mut VirtualQp) -> Result<BounceRing> {
        let max_message = domain.limits().message_bytes as usize;
        let slot_bytes = srq.longest().clamp(1, max_message).next_multiple_of(8);
        let slots = (RING_BYTES / slot_bytes).clamp(MIN_SLOTS, MAX_SLOTS);
        let buffer = Arc::new(Buffer::new(slot_bytes * slots));
        let mr = domain.register(&buffer, Access::LOCAL_WRITE)?;
        let ring =
            BounceRing { domain: Arc::clone(domain), buffer, mr, slot_bytes, unmatched: VecDeque::new() };
        (0..slots).try_for_each(|slot| vqp.post_recv(ring.receive(slot as u64)))?;
        Ok(ring)
    }

    fn receive(&self, slot: u64) -> RecvWr {
        RecvWr::new(slot, self.mr.sge(slot * self.slot_bytes as u64, self.slot_bytes as u32))
    }

    /// Adds a message, or a failed receive, that has no shared receive yet.
    pub(super) fn push(&mut self, completion: Completion) {
        self.unmatched.push_back(completion);
    }

    /// Returns whether every message has been copied to a shared receive.
    pub(super) fn is_empty(&self) -> bool {
        self.unmatched.is_empty()
    }

    /// Drops the messages that have no shared receive.
    pub(super) fn clear(&mut self) {
        self.unmatched.clear();
    }

    /// Copies the oldest message to the oldest shared receive, and reposts its slot. Returns `None` if there is no message or no
    /// receive.
    pub(super) fn match_next(&mut self, srq: &VirtualSrq, vqp: &mut VirtualQp) -> Option<MatchedMessage> {
        let completion = *self.unmatched.front()?;
        let wr = srq.take()?;
        self.unmatched.pop_front();
        let mut copied = WcStatus::Success;
        // The data of a WRITE with immediate is in the program's memory already.
        if completion.is_success() && completion.opcode == WcOpcode::Recv {
            let mut bytes = vec![0; completion.byte_len as usize];
            self.buffer.read_at(completion.wr_id as usize * self.slot_bytes, &mut bytes);
            let room: u64 = wr.sges.iter().map(|sge| u64::from(sge.len)).sum();
            copied = match () {
                () if room < bytes.len() as u64 => WcStatus::LocalLength,
                () if !self.domain.scatter(&wr.sges, &bytes) => WcStatus::LocalProtection,
                () => WcStatus::Success,
            };
        }
        // The post fails only when the queue pair has ended, and then no message arrives in the slot.
        let _ = vqp.post_recv(self.receive(completion.wr_id));
        Some(MatchedMessage { wr_id: wr.wr_id, copied, completion })
    }
}

impl Drop for BounceRing {
    fn drop(&mut self) {
        // Only a dead NIC does not confirm. The buffer is Mitra's, and lives as long as a NIC refers to it.
        let _ = self.domain.deregister(&self.mr);
    }
}
