//! The receives of a vQP with a shared receive queue, or in an XRC domain. Messages arrive in
//! *slots*, which are receives in the vQP's own memory. Each message is then copied to a shared
//! receive.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use mitra_verbs::{RecvWr, Result, Srqn, WcOpcode, WcStatus};

use crate::completion::{Completion, Outcome};
use crate::config::{Config, Service};
use crate::domain::Domain;
use crate::group_member::{Member, Members};
use crate::owned_region::OwnedRegion;
use crate::shared_receive_queue::{NotTaken, SharedReceiveQueue, len};
use crate::vqp::receive_queue::ReceiveQueue;
use crate::vqp::xrc_messages::{Arrival, HEADER_BYTES, ReceivedHeader};
use crate::xrc_domain::XrcDomain;

const MAX_SLOTS: u32 = 64;
const MIN_SLOTS: usize = 4;
/// An upper bound on the size of all slots in bytes, unless [`MIN_SLOTS`] slots take more.
const RING_BYTES: usize = 4 << 20;
/// The minimum length of a slot in bytes. The minimum exceeds the needs of short receives, because
/// longer receives may be posted later. The system provides the memory of a slot only when a
/// message is written there.
const MIN_SLOT_BYTES: usize = 16 << 10;

/// The configuration of a vQP with a shared receive queue: its receives are slots.
pub(crate) fn with_slots(config: Config, domain: &Domain) -> Config {
    Config { recv_wrs: MAX_SLOTS.min(domain.limits().wrs), recv_sges: 1, ..config }
}

/// The source of the receives of a vQP that has no receives of its own.
#[derive(Clone, Debug)]
pub(crate) enum ReceiveSource {
    Queue(Arc<SharedReceiveQueue>),
    Xrc(Arc<XrcDomain>),
}

impl ReceiveSource {
    fn add_member(&self, member: &Arc<Member>) {
        let mut members = Members::default();
        members.add(member);
        match self {
            ReceiveSource::Queue(queue) => queue.add_members(&members),
            ReceiveSource::Xrc(domain) => domain.add_members(&members),
        }
    }

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

#[derive(Clone, Debug)]
enum Target {
    Only,
    /// The queue that the XRC domain had under this number when the message arrived.
    Xrc(Srqn, Weak<SharedReceiveQueue>),
    /// No queue: the message is not a message of an XRC connection, or names no queue.
    Invalid,
}

enum Match {
    /// The message takes a receive of this queue.
    Queue(Arc<SharedReceiveQueue>),
    /// The message is dropped, because its queue was removed from the XRC domain.
    Removed,
    /// The message closes the vQP.
    Refused,
}

#[derive(Debug)]
pub(super) struct SharedReceives {
    pub(super) source: ReceiveSource,
    /// The vQP, if it is a member of a poll group. The source wakes it.
    member: Option<Arc<Member>>,
    service: Service,
    /// `None` until a shared receive was posted.
    ring: Option<Ring>,
    /// Rings of shorter slots with messages that still wait.
    earlier: Vec<Ring>,
    /// Whether the queue pair of the slots was stopped to make room for longer slots.
    lengthens: bool,
    /// Arrived messages and failed receives that have not been matched with a shared receive,
    /// oldest first.
    unmatched: VecDeque<(Completion, Target)>,
    header: ReceivedHeader,
    /// Whether the oldest message had no queue. That message was dropped with the messages behind
    /// it.
    pub(super) refused: bool,
}

/// A ring of slots. The connection delivers messages in order, so the slots are filled and posted
/// again in order.
#[derive(Debug)]
struct Ring {
    region: OwnedRegion,
    slot_bytes: usize,
    /// The number of the first slot. The number of a slot is unique within the vQP, and is the
    /// `wr_id` of the slot's receive.
    first: u64,
    slots: u64,
    /// The number of slots with messages. Valid only after a ring of longer slots has replaced this
    /// ring.
    filled: u64,
}

impl Ring {
    /// # Errors
    /// The error of a NIC that refuses to register the memory.
    fn new(domain: &Arc<Domain>, slot_bytes: usize, first: u64, max_slots: u32) -> Result<Ring> {
        let slots = (RING_BYTES / slot_bytes).clamp(MIN_SLOTS, MAX_SLOTS as usize).min(max_slots as usize);
        let region = OwnedRegion::new(domain, slot_bytes * slots)?;
        Ok(Ring { region, slot_bytes, first, slots: slots as u64, filled: 0 })
    }

    fn has(&self, slot: u64) -> bool {
        (self.first..self.first + self.slots).contains(&slot)
    }

    /// In bytes from the start of the buffer.
    fn at(&self, slot: u64) -> usize {
        (slot - self.first) as usize * self.slot_bytes
    }

    fn receive(&self, slot: u64) -> RecvWr {
        RecvWr::new(slot, self.region.sge(self.at(slot), self.slot_bytes))
    }

    fn read(&self, slot: u64, bytes: &mut [u8]) {
        self.region.read_into(self.at(slot), bytes);
    }
}

/// The length of the slots if the longest shared receive has `longest` bytes.
fn slot_bytes(domain: &Domain, longest: usize) -> usize {
    longest.max(MIN_SLOT_BYTES).min(domain.limits().message_bytes as usize).next_multiple_of(8)
}

/// Returns whether a message could not be copied to its shared receive.
pub(super) fn has_failed(completions: &[Completion]) -> bool {
    completions.iter().any(|c| c.opcode == WcOpcode::Recv && !c.is_success())
}

impl SharedReceives {
    pub(super) fn new(source: ReceiveSource, service: Service) -> SharedReceives {
        let (unmatched, header) = (VecDeque::new(), ReceivedHeader::default());
        let (earlier, lengthens) = (Vec::new(), false);
        SharedReceives {
            source,
            member: None,
            service,
            ring: None,
            earlier,
            lengthens,
            unmatched,
            header,
            refused: false,
        }
    }

    /// Has the source wake the vQP, which is a member of a poll group.
    pub(super) fn join_group(&mut self, member: &Arc<Member>) {
        self.source.add_member(member);
        self.member = Some(Arc::clone(member));
    }

    /// Returns whether a shared receive was posted and no slots exist.
    #[inline]
    pub(super) fn needs_slots(&self) -> bool {
        self.ring.is_none() && self.source.is_used()
    }

    /// Makes at most `max_slots` slots, if a shared receive was posted and no slots exist. Appends
    /// their receives to `recv`.
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
        let ring = Ring::new(domain, slot_bytes(domain, self.source.longest()), 0, max_slots)?;
        self.push_slots(ring, recv)
    }

    fn push_slots(&mut self, ring: Ring, recv: &mut ReceiveQueue) -> Result<()> {
        let ring = self.ring.insert(ring);
        (ring.first..ring.first + ring.slots).try_for_each(|slot| recv.push(ring.receive(slot), 1))
    }

    #[inline]
    pub(super) fn has_short_slots(&self) -> bool {
        let Some(ring) = &self.ring else { return false };
        let longest = self.source.longest();
        longest > ring.slot_bytes && slot_bytes(ring.region.domain(), longest) > ring.slot_bytes
    }

    /// Records that the queue pair of the slots is being stopped to make room for longer slots.
    /// Returns false if this was recorded before.
    pub(super) fn begin_lengthening(&mut self) -> bool {
        !core::mem::replace(&mut self.lengthens, true)
    }

    /// Makes longer slots, if a shared receive is longer than the slots. The longer slots replace
    /// the receives in `recv`, none of which is on a queue pair. Messages that wait in the former
    /// slots stay there.
    ///
    /// # Errors
    /// The error of a NIC that refuses to register the memory. The slots then stay as they are.
    pub(super) fn lengthen_slots(&mut self, max_slots: u32, recv: &mut ReceiveQueue) -> Result<()> {
        if !self.has_short_slots() {
            return Ok(());
        }
        let Some(ring) = &self.ring else { return Ok(()) };
        // Each lengthening costs a move. At least doubling the length bounds the number of moves.
        let bytes = slot_bytes(ring.region.domain(), self.source.longest().max(2 * ring.slot_bytes));
        let longer = Ring::new(ring.region.domain(), bytes, ring.first + ring.slots, max_slots)?;
        let unposted = recv.clear_unposted() as u64;
        if let Some(mut ring) = self.ring.take().filter(|ring| ring.slots > unposted) {
            ring.filled = ring.slots - unposted;
            self.earlier.push(ring);
        }
        self.lengthens = false;
        self.push_slots(longer, recv)
    }

    fn ring_of(&self, slot: u64) -> Option<&Ring> {
        self.ring.iter().chain(&self.earlier).find(|ring| ring.has(slot))
    }

    /// Gives up a slot whose message is not needed any more, and returns the receive to post again.
    /// A slot of an earlier ring is not posted again.
    fn free(&mut self, slot: u64) -> Option<RecvWr> {
        if let Some(ring) = self.ring.as_ref().filter(|ring| ring.has(slot)) {
            return Some(ring.receive(slot));
        }
        self.earlier.iter_mut().filter(|ring| ring.has(slot)).for_each(|ring| ring.filled -= 1);
        self.earlier.retain(|ring| ring.filled > 0);
        None
    }

    /// Moves completions of the vQP to `out`. The completion of a message waits until the message
    /// has taken a shared receive. The slot of the message is then appended to `recv`, to be posted
    /// again. The caller must close the vQP if [`has_failed`] is true for the appended completions,
    /// or if `refused` is set.
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
            if let Some(slot) = self.free(slot) {
                let _ = recv.push(slot, 1); // the slot was posted before, so it is within the limits
            }
        }
    }

    /// Appends the completion of a slot's message or failed receive. A flushed slot takes no shared
    /// receive, so that other vQPs can use the shared receives. The header of an XRC message takes
    /// no shared receive either. Its slot is returned, to be posted again.
    fn push(&mut self, mut completion: Completion) -> Option<RecvWr> {
        if completion.outcome == Outcome::Failed(WcStatus::Flushed) {
            return None;
        }
        let slot = completion.wr_id;
        let ring = self.ring.iter().chain(&self.earlier).find(|ring| ring.has(slot));
        let target = match (&self.source, ring) {
            (ReceiveSource::Xrc(domain), Some(ring)) => {
                let payload = || {
                    let mut bytes = [0; HEADER_BYTES as usize];
                    ring.read(slot, &mut bytes);
                    bytes
                };
                match self.header.on_message(&mut completion, payload) {
                    Arrival::Message(number) => match domain.queue(number) {
                        Some(queue) => Target::Xrc(number, Arc::downgrade(&queue)),
                        None => Target::Invalid,
                    },
                    Arrival::Header => return self.free(slot),
                    Arrival::Invalid => Target::Invalid,
                }
            }
            _ => Target::Only,
        };
        self.unmatched.push_back((completion, target));
        None
    }

    pub(super) fn waiting(&self) -> usize {
        self.unmatched.len()
    }

    fn oldest(&self) -> Option<Match> {
        let (_, target) = self.unmatched.front()?;
        Some(match (&self.source, target) {
            (ReceiveSource::Queue(queue), _) => Match::Queue(Arc::clone(queue)),
            (ReceiveSource::Xrc(domain), Target::Xrc(number, known)) => match domain.queue(*number) {
                Some(queue) if Weak::as_ptr(known) == Arc::as_ptr(&queue) => Match::Queue(queue),
                _ => Match::Removed,
            },
            (ReceiveSource::Xrc(_), _) => Match::Refused,
        })
    }

    /// Returns whether [`SharedReceives::match_next`] would match or drop a message. Another vQP
    /// may still take the receive first.
    pub(super) fn can_match(&self) -> bool {
        self.oldest().is_some_and(|oldest| match oldest {
            Match::Queue(queue) => !queue.is_empty(),
            Match::Removed | Match::Refused => true,
        })
    }

    /// Copies the oldest message to the oldest shared receive of its queue, or drops the message.
    /// Returns the completion of the shared receive and the freed slot. A message of an unreliable
    /// connection that is longer than the shared receive is dropped without a completion, and the
    /// shared receive stays, as on a NIC (`UcReceiver` of the crate `mitra-transport`). Returns
    /// `None` if no message or no shared receive is there.
    fn match_next(&mut self) -> Option<(Option<Completion>, u64)> {
        let queue = match self.oldest()? {
            Match::Queue(queue) => queue,
            Match::Removed => return self.unmatched.pop_front().map(|(dropped, _)| (None, dropped.wr_id)),
            Match::Refused => {
                self.unmatched.clear();
                self.refused = true;
                return None;
            }
        };
        let mut completion = self.unmatched.front()?.0;
        let has_payload = completion.is_success() && completion.opcode == WcOpcode::Recv;
        let droppable = if has_payload && !self.service.is_reliable() { completion.byte_len } else { 0 };
        let wr = match queue.take_if_it_fits(droppable.into(), self.member.as_ref()) {
            Ok(wr) => wr,
            Err(NotTaken::Empty) => return None,
            Err(NotTaken::TooShort) => {
                self.unmatched.pop_front();
                return Some((None, completion.wr_id));
            }
        };
        if let Some((_, Target::Xrc(number, _))) = self.unmatched.pop_front() {
            completion.srq = Some(number);
        }
        let slot = core::mem::replace(&mut completion.wr_id, wr.wr_id);
        // The data of a WRITE with immediate are already in the application's memory.
        if has_payload {
            let mut bytes = vec![0; completion.byte_len as usize];
            if let Some(ring) = self.ring_of(slot) {
                ring.read(slot, &mut bytes);
            }
            if len(&wr) < bytes.len() as u64 {
                completion.outcome = Outcome::Failed(WcStatus::LocalLength);
            } else if !queue.domain().scatter(&wr.sges, &bytes) {
                completion.outcome = Outcome::Failed(WcStatus::LocalProtection);
            }
        }
        Some((Some(completion), slot))
    }
}
