//! The receives of a vQP with a shared receive queue: the slots in which messages arrive, and the matching of messages with shared receives.

use std::collections::VecDeque;
use std::sync::Arc;

use mitra_verbs::{Access, Buffer, RecvWr, Result, WcOpcode, WcStatus};

use crate::completion::{Completion, Outcome};
use crate::config::Config;
use crate::domain::Domain;
use crate::memory_region::VirtualMr;
use crate::shared_receive_queue::{SharedReceiveQueue, len};
use crate::vqp::receive_queue::ReceiveQueue;

/// The maximum number of slots.
const MAX_SLOTS: u32 = 64;
/// The minimum number of slots.
const MIN_SLOTS: usize = 4;
/// An upper bound on the size of all slots in bytes, unless [`MIN_SLOTS`] slots take more.
const RING_BYTES: usize = 4 << 20;
/// The minimum length of a slot in bytes. It is more than short receives need, because longer receives may be posted later. The system
/// provides the memory of a slot when a message is written there.
const MIN_SLOT_BYTES: usize = 16 << 10;

/// Returns the configuration of a vQP with a shared receive queue: its receives are slots.
pub(crate) fn with_slots(config: Config, domain: &Domain) -> Config {
    Config { recv_wrs: MAX_SLOTS.min(domain.limits().wrs), recv_sges: 1, ..config }
}

/// The part of a vQP's receive queue that exists if the vQP has a shared receive queue.
#[derive(Debug)]
pub(super) struct SharedReceives {
    queue: Arc<SharedReceiveQueue>,
    /// The slots. `None` until a shared receive was posted.
    ring: Option<Ring>,
    /// The completions of messages that have arrived and of receives that have failed, and that have not been matched with a shared receive,
    /// oldest first.
    unmatched: VecDeque<Completion>,
}

/// A ring of slots. The connection delivers messages in order, so the slots are filled and reposted in order.
#[derive(Debug)]
struct Ring {
    domain: Arc<Domain>,
    buffer: Arc<Buffer>,
    mr: VirtualMr,
    slot_bytes: usize,
}

impl Ring {
    /// Returns the receive of a slot.
    fn receive(&self, slot: u64) -> RecvWr {
        RecvWr::new(slot, self.mr.sge(slot * self.slot_bytes as u64, self.slot_bytes as u32))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Only a dead NIC does not confirm the revocation. The NIC may access the buffer safely even then, because the buffer is not freed
        // while a NIC refers to it.
        let _ = self.domain.deregister(&self.mr);
    }
}

/// Returns whether one of these completions of a vQP says that a message could not be copied to its shared receive.
pub(super) fn has_failed(completions: &[Completion]) -> bool {
    completions.iter().any(|c| c.opcode == WcOpcode::Recv && !c.is_success())
}

impl SharedReceives {
    pub(super) fn new(queue: Arc<SharedReceiveQueue>) -> SharedReceives {
        SharedReceives { queue, ring: None, unmatched: VecDeque::new() }
    }

    pub(super) fn queue(&self) -> &Arc<SharedReceiveQueue> {
        &self.queue
    }

    /// Returns whether the slots are to be made: a shared receive was posted.
    #[inline]
    pub(super) fn needs_slots(&self) -> bool {
        self.ring.is_none() && self.queue.is_used()
    }

    /// Makes the slots, at most `max_slots`, if a shared receive was posted and they were not made before. Appends their receives to `recv`.
    ///
    /// # Errors
    /// The error of a NIC that refuses to register the memory.
    pub(super) fn make_slots(
        &mut self,
        domain: &Arc<Domain>,
        max_slots: u32,
        recv: &mut ReceiveQueue,
    ) -> Result<()> {
        if !self.needs_slots() {
            return Ok(());
        }
        let max_message = domain.limits().message_bytes as usize;
        let slot_bytes = self.queue.longest().max(MIN_SLOT_BYTES).min(max_message).next_multiple_of(8);
        let slots = (RING_BYTES / slot_bytes).clamp(MIN_SLOTS, MAX_SLOTS as usize).min(max_slots as usize);
        let buffer = Arc::new(Buffer::new(slot_bytes * slots));
        let mr = domain.register(&buffer, Access::LOCAL_WRITE)?;
        let ring = Ring { domain: Arc::clone(domain), buffer, mr, slot_bytes };
        let mut receives = (0..slots).map(|slot| ring.receive(slot as u64));
        let pushed = receives.try_for_each(|wr| recv.push(wr, 1));
        self.ring = Some(ring);
        pushed
    }

    /// Moves completions of the vQP to `out`, those of receives when they have taken a shared receive. The slots of these messages are appended to
    /// `recv`, to be posted again. If [`has_failed`] is true for what was appended, the caller must close the vQP.
    pub(super) fn deliver(
        &mut self,
        completions: impl Iterator<Item = Completion>,
        recv: &mut ReceiveQueue,
        out: &mut Vec<Completion>,
    ) {
        for completion in completions {
            if matches!(completion.opcode, WcOpcode::Recv | WcOpcode::RecvWithImm) {
                self.push(completion);
            } else {
                out.push(completion);
            }
        }
        while let Some((completion, slot)) = self.match_next() {
            out.push(completion);
            let _ = recv.push(slot, 1); // the slot was posted before, so it is within the limits
        }
    }

    /// Appends the completion of a slot: of a message that has arrived, or of a receive that has failed. A flushed slot takes no shared
    /// receive. The shared receives stay for other vQPs.
    fn push(&mut self, completion: Completion) {
        if completion.outcome != Outcome::Failed(WcStatus::Flushed) {
            self.unmatched.push_back(completion);
        }
    }

    /// The number of messages that have not been matched with a shared receive.
    pub(super) fn waiting(&self) -> usize {
        self.unmatched.len()
    }

    /// Returns whether [`SharedReceives::match_next`] would match a message, unless another vQP takes the receive before.
    pub(super) fn can_match(&self) -> bool {
        !self.unmatched.is_empty() && !self.queue.is_empty()
    }

    /// Copies the oldest message to the oldest shared receive. Returns the completion of the shared receive, and the receive of the slot, which
    /// is to be posted again. Returns `None` if there is no message or no shared receive.
    fn match_next(&mut self) -> Option<(Completion, RecvWr)> {
        let ring = self.ring.as_ref()?;
        let mut completion = *self.unmatched.front()?;
        let wr = self.queue.take()?;
        self.unmatched.pop_front();
        let slot = core::mem::replace(&mut completion.wr_id, wr.wr_id);
        // The data of a WRITE with immediate was written directly to the application's memory.
        if completion.is_success() && completion.opcode == WcOpcode::Recv {
            let mut bytes = vec![0; completion.byte_len as usize];
            ring.buffer.read_at(slot as usize * ring.slot_bytes, &mut bytes);
            if len(&wr) < bytes.len() as u64 {
                completion.outcome = Outcome::Failed(WcStatus::LocalLength);
            } else if !self.queue.domain().scatter(&wr.sges, &bytes) {
                completion.outcome = Outcome::Failed(WcStatus::LocalProtection);
            }
        }
        Some((completion, ring.receive(slot)))
    }
}
