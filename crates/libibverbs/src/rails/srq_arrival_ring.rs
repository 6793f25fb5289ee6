//! The bounce ring: memory of Mitra in which messages arrive for a virtual queue pair with a shared receive queue, and from which they are
//! copied to the program's shared receives.

use std::collections::VecDeque;
use std::sync::Arc;

use mitra_failover::{Completion, Domain, VirtualMr, VirtualQp};
use mitra_verbs::{Access, Buffer, RecvWr, Result, WcOpcode, WcStatus};

use super::virtual_srq::VirtualSrq;

/// The maximum number of slots in a ring.
pub(super) const MAX_SLOTS: usize = 64;
/// The minimum number of slots in a ring.
const MIN_SLOTS: usize = 4;
/// An upper bound on the size of a ring in bytes, unless [`MIN_SLOTS`] slots take more.
const RING_BYTES: usize = 4 << 20;
/// The minimum length of a slot in bytes. It is more than short receives need, because longer receives may be posted later. The system
/// provides the memory of a slot when a message is written there.
const MIN_SLOT_BYTES: usize = 16 << 10;

/// A ring of receives (*slots*) in Mitra's memory. Each slot holds one message. The connection delivers messages in order, so the slots are
/// filled and reposted in order.
pub(super) struct BounceRing {
    domain: Arc<Domain>,
    buffer: Arc<Buffer>,
    mr: VirtualMr,
    slot_bytes: usize,
    /// The completions of messages that have arrived and of receives that have failed, and that have not been matched with a shared
    /// receive, oldest first.
    unmatched: VecDeque<Completion>,
}

/// A message, or a failed receive, that was matched with a shared receive.
pub(super) struct MatchedMessage {
    /// The `wr_id` of the shared receive.
    pub(super) wr_id: u64,
    /// The result of copying the message. `Success` if nothing had to be copied.
    pub(super) copied: WcStatus,
    /// The completion of the receive in the ring.
    pub(super) completion: Completion,
}

impl BounceRing {
    /// Registers the ring's memory, and posts its receives. A slot is as long as the longest shared receive that was posted so far, and at least
    /// [`MIN_SLOT_BYTES`]. A longer message fails, even if it would fit in a shared receive that is posted later.
    ///
    /// # Errors
    /// The error of a NIC that refuses to register the memory, or of the virtual queue pair that refuses a receive.
    pub(super) fn new(srq: &VirtualSrq, vqp: &mut VirtualQp) -> Result<BounceRing> {
        let domain = Arc::clone(vqp.domain());
        let max_message = domain.limits().message_bytes as usize;
        let slot_bytes = srq.longest().max(MIN_SLOT_BYTES).min(max_message).next_multiple_of(8);
        let slots = (RING_BYTES / slot_bytes).clamp(MIN_SLOTS, MAX_SLOTS);
        let buffer = Arc::new(Buffer::new(slot_bytes * slots));
        let mr = domain.register(&buffer, Access::LOCAL_WRITE)?;
        let ring = BounceRing { domain, buffer, mr, slot_bytes, unmatched: VecDeque::new() };
        (0..slots).try_for_each(|slot| vqp.post_recv(ring.receive(slot as u64)))?;
        Ok(ring)
    }

    fn receive(&self, slot: u64) -> RecvWr {
        RecvWr::new(slot, self.mr.sge(slot * self.slot_bytes as u64, self.slot_bytes as u32))
    }

    /// Appends the completion of a message that has arrived, or of a receive that has failed.
    pub(super) fn push(&mut self, completion: Completion) {
        self.unmatched.push_back(completion);
    }

    /// Returns whether every message that has arrived has been matched with a shared receive.
    pub(super) fn is_empty(&self) -> bool {
        self.unmatched.is_empty()
    }

    /// Drops the messages that have not been matched with a shared receive.
    pub(super) fn clear(&mut self) {
        self.unmatched.clear();
    }

    /// Copies the oldest message to the oldest shared receive, and reposts the message's slot. Returns `None` if there is no message or no
    /// shared receive.
    pub(super) fn match_next(&mut self, srq: &VirtualSrq, vqp: &mut VirtualQp) -> Option<MatchedMessage> {
        let completion = *self.unmatched.front()?;
        let wr = srq.take()?;
        self.unmatched.pop_front();
        let mut copied = WcStatus::Success;
        // The data of a WRITE with immediate was written directly to the program's memory.
        if completion.is_success() && completion.opcode == WcOpcode::Recv {
            let mut bytes = vec![0; completion.byte_len as usize];
            self.buffer.read_at(completion.wr_id as usize * self.slot_bytes, &mut bytes);
            let receive_len: u64 = wr.sges.iter().map(|sge| u64::from(sge.len)).sum();
            copied = match () {
                () if receive_len < bytes.len() as u64 => WcStatus::LocalLength,
                () if !srq.scatter(&wr, &bytes) => WcStatus::LocalProtection,
                () => WcStatus::Success,
            };
        }
        // The post fails only if the connection has ended. In that case no more message can arrive in the slot.
        let _ = vqp.post_recv(self.receive(completion.wr_id));
        Some(MatchedMessage { wr_id: wr.wr_id, copied, completion })
    }
}

impl Drop for BounceRing {
    fn drop(&mut self) {
        // Only a dead NIC does not confirm the revocation. The NIC may access the buffer safely even then, because the buffer is not freed
        // while a NIC refers to it.
        let _ = self.domain.deregister(&self.mr);
    }
}
