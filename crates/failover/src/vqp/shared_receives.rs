//! The receives of a vQP with a shared receive queue, or in an XRC domain: the slots in which messages arrive, and the matching of messages with
//! shared receives.

use std::collections::VecDeque;
use std::sync::Arc;

use mitra_verbs::{Access, Buffer, RecvWr, Result, Srqn, WcOpcode, WcStatus};

use crate::completion::{Completion, Outcome};
use crate::config::{Config, Service};
use crate::domain::Domain;
use crate::memory_region::VirtualMr;
use crate::shared_receive_queue::{NotTaken, SharedReceiveQueue, len};
use crate::vqp::receive_queue::ReceiveQueue;
use crate::vqp::xrc_messages::{Arrival, HEADER_BYTES, ReceivedHeader};
use crate::xrc_domain::XrcDomain;

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

/// Where the receives of a vQP are from that has none of its own.
#[derive(Clone, Debug)]
pub(crate) enum ReceiveSource {
    Queue(Arc<SharedReceiveQueue>),
    Xrc(Arc<XrcDomain>),
}

impl ReceiveSource {
    fn is_used(&self) -> bool {
        match self {
            ReceiveSource::Queue(queue) => queue.is_used(),
            ReceiveSource::Xrc(domain) => domain.is_used(),
        }
    }

    fn longest(&self) -> usize {
        match self {
            ReceiveSource::Queue(queue) => queue.longest(),
            ReceiveSource::Xrc(domain) => domain.longest(),
        }
    }
}

/// The queue of a message's receive.
#[derive(Clone, Copy, Debug)]
enum Target {
    /// The only queue.
    Only,
    /// The queue of the XRC domain with this number.
    Xrc(Srqn),
    /// None: what has arrived is no message of an XRC connection.
    Invalid,
}

/// The part of a vQP's receive queue that exists if its receives are shared.
#[derive(Debug)]
pub(super) struct SharedReceives {
    source: ReceiveSource,
    service: Service,
    /// The slots. `None` until a shared receive was posted.
    ring: Option<Ring>,
    /// The completions of messages that have arrived and of receives that have failed, and that have not been matched with a shared receive,
    /// oldest first.
    unmatched: VecDeque<(Completion, Target)>,
    /// The header of the next message of an XRC connection.
    header: ReceivedHeader,
    /// Whether the oldest message had no queue. It was dropped, with those behind it.
    refused: bool,
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

    /// Copies the first bytes of a slot.
    fn read(&self, slot: u64, bytes: &mut [u8]) {
        self.buffer.read_at(slot as usize * self.slot_bytes, bytes);
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
    pub(super) fn new(source: ReceiveSource, service: Service) -> SharedReceives {
        let (unmatched, header) = (VecDeque::new(), ReceivedHeader::default());
        SharedReceives { source, service, ring: None, unmatched, header, refused: false }
    }

    pub(super) fn source(&self) -> &ReceiveSource {
        &self.source
    }

    /// Returns whether the slots are to be made: a shared receive was posted.
    #[inline]
    pub(super) fn needs_slots(&self) -> bool {
        self.ring.is_none() && self.source.is_used()
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
        let slot_bytes = self.source.longest().max(MIN_SLOT_BYTES).min(max_message).next_multiple_of(8);
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
    /// `recv`, to be posted again. If [`has_failed`] is true for what was appended, or
    /// [`SharedReceives::take_refused`] returns true, the caller must close the vQP.
    pub(super) fn deliver(
        &mut self,
        completions: impl Iterator<Item = Completion>,
        recv: &mut ReceiveQueue,
        out: &mut Vec<Completion>,
    ) {
        for completion in completions {
            if matches!(completion.opcode, WcOpcode::Recv | WcOpcode::RecvWithImm) {
                if let Some(slot) = self.push(completion) {
                    let _ = recv.push(slot, 1); // the slot was posted before, so it is within the limits
                }
            } else {
                out.push(completion);
            }
        }
        while let Some((completion, slot)) = self.match_next() {
            out.extend(completion);
            let _ = recv.push(slot, 1); // the slot was posted before, so it is within the limits
        }
    }

    /// Appends the completion of a slot: of a message that has arrived, or of a receive that has failed. A flushed slot takes no shared
    /// receive. The shared receives stay for other vQPs. The header of an XRC message takes none either. Its slot is returned, which is to be posted
    /// again.
    fn push(&mut self, mut completion: Completion) -> Option<RecvWr> {
        if completion.outcome == Outcome::Failed(WcStatus::Flushed) {
            return None;
        }
        let target = match (&self.source, &self.ring) {
            (ReceiveSource::Xrc(_), Some(ring)) => {
                let slot = completion.wr_id;
                let payload = || {
                    let mut bytes = [0; HEADER_BYTES as usize];
                    ring.read(slot, &mut bytes);
                    bytes
                };
                match self.header.on_message(&mut completion, payload) {
                    Arrival::Message(number) => Target::Xrc(number),
                    Arrival::Header => return Some(ring.receive(slot)),
                    Arrival::Invalid => Target::Invalid,
                }
            }
            _ => Target::Only,
        };
        self.unmatched.push_back((completion, target));
        None
    }

    /// Returns whether the oldest message has no queue since the last call. It is then dropped with those behind it.
    #[inline]
    pub(super) fn take_refused(&mut self) -> bool {
        core::mem::take(&mut self.refused)
    }

    /// The number of messages that have not been matched with a shared receive.
    pub(super) fn waiting(&self) -> usize {
        self.unmatched.len()
    }

    /// Returns whether [`SharedReceives::match_next`] would match a message, unless another vQP takes the receive before.
    pub(super) fn can_match(&self) -> bool {
        let Some(&(_, target)) = self.unmatched.front() else { return false };
        match (&self.source, target) {
            (ReceiveSource::Queue(queue), _) => !queue.is_empty(),
            // A message without a queue closes the vQP.
            (ReceiveSource::Xrc(domain), Target::Xrc(number)) => {
                domain.queue(number).is_none_or(|queue| !queue.is_empty())
            }
            (ReceiveSource::Xrc(_), _) => true,
        }
    }

    /// Copies the oldest message to the oldest shared receive. Returns the completion of the shared receive, and the receive of the slot, which
    /// is to be posted again. A message of an unreliable connection that is longer than the shared receive is dropped without a completion, and the
    /// shared receive stays, as on a NIC (`UcReceiver` of the crate `mitra-transport`). Returns `None` if there is no message or no shared receive.
    fn match_next(&mut self) -> Option<(Option<Completion>, RecvWr)> {
        let ring = self.ring.as_ref()?;
        let &(mut completion, target) = self.unmatched.front()?;
        let of_domain;
        let queue = match (&self.source, target) {
            (ReceiveSource::Queue(queue), _) => Some(queue),
            (ReceiveSource::Xrc(domain), Target::Xrc(number)) => {
                completion.srq = Some(number);
                of_domain = domain.queue(number);
                of_domain.as_ref()
            }
            (ReceiveSource::Xrc(_), _) => None,
        };
        let Some(queue) = queue else {
            self.unmatched.clear();
            self.refused = true;
            return None;
        };
        let has_payload = completion.is_success() && completion.opcode == WcOpcode::Recv;
        let droppable = if has_payload && !self.service.is_reliable() { completion.byte_len } else { 0 };
        let wr = match queue.take_if_it_fits(droppable.into()) {
            Ok(wr) => wr,
            Err(NotTaken::Empty) => return None,
            Err(NotTaken::TooShort) => {
                self.unmatched.pop_front();
                return Some((None, ring.receive(completion.wr_id)));
            }
        };
        self.unmatched.pop_front();
        let slot = core::mem::replace(&mut completion.wr_id, wr.wr_id);
        // The data of a WRITE with immediate was written directly to the application's memory.
        if has_payload {
            let mut bytes = vec![0; completion.byte_len as usize];
            ring.read(slot, &mut bytes);
            if len(&wr) < bytes.len() as u64 {
                completion.outcome = Outcome::Failed(WcStatus::LocalLength);
            } else if !queue.domain().scatter(&wr.sges, &bytes) {
                completion.outcome = Outcome::Failed(WcStatus::LocalProtection);
            }
        }
        Some((Some(completion), ring.receive(slot)))
    }
}
