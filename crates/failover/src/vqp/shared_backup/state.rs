//! The backup of a process pair: the virtual queue pair, its members, and the messages and
//! operations in flight there.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mitra_verbs::{Access, Gid, Key, Mtu, SendFlags, SendWr, Time, WcOpcode, WcStatus};

use super::member::Member;
use super::message::{Body, Grant, MemberId, Message};
use super::message_buffers::{MessageBuffers, RECVS};
use crate::ballot::{Ballot, Role};
use crate::cause::Cause;
use crate::close_reason::CloseReason;
use crate::completion::{Completion, Outcome, UnresolvedError};
use crate::config::WritePolicy;
use crate::evidence::Placed;
use crate::home_rail::VqpId;
use crate::vqp::VirtualQp;

mod messages;
mod probes;

/// The number of send queue entries that are reserved for messages. Operations leave them free.
const RESERVED_SENDS: usize = 16;
/// The number of operations that the backup posts as a list.
const OPS_PER_LIST: usize = 16;

/// After a move, a member that can use the backup may wait this long before it makes its own queue
/// pair, so that the operations of the other members complete first. The recovery of 10,000 members
/// takes 80 to 110 ms.
const OWN_QP_DELAY: Duration = Duration::from_millis(100);
/// While members have events to handle, only every `POLLS_PER_DRIVE`-th poll drives the backup.
const POLLS_PER_DRIVE: u32 = 4;

/// The `wr_id` of a member's operations on the backup, by which
/// [`Ledger::refuse`](crate::ledger::Ledger::refuse) distinguishes the users of the queue. Messages
/// have the `wr_id` 0.
fn user(member: MemberId) -> u64 {
    u64::from(member.slot) + 1
}

#[derive(Debug)]
pub(super) enum Event {
    /// An operation on the backup ended.
    Done { seq: u64, outcome: Outcome, byte_len: u32 },
    /// The peer has decided its operations of an epoch.
    Resumed { epoch: u16, partial_imm_bytes: u32 },
    /// The peer grants access on the backup.
    Granted(Grant),
    /// What the peer's processor has seen of this end's operations on the queue pair of this epoch.
    Placed { epoch: u16, placed: Placed },
}

impl Event {
    /// The sequence number of an operation that was executed although an operation of another
    /// member failed before it.
    pub(super) fn executed_behind_error(&self) -> Option<u64> {
        match self {
            Event::Done {
                seq, outcome: Outcome::Unresolved(UnresolvedError::ExecutedBehindError), ..
            } => Some(*seq),
            _ => None,
        }
    }
}

#[derive(Debug)]
struct Slot {
    /// The number of earlier members in this slot.
    instance: u32,
    /// `None` if the slot is free.
    member: Option<Box<Entry>>,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) peer: Option<MemberId>,
    pub(super) core: Member,
    events: Vec<Event>,
    /// Whether the events contain a failed operation. Until the member's vQP has handled the
    /// events, no later operation is posted.
    has_failed_op: bool,
    /// The epoch of the last `Resumed` message.
    resumed: Option<u16>,
    /// The peer's keys for which this end has asked for a grant.
    asked: Vec<Key>,
    /// The peer's keys that the peer has granted.
    imported: Vec<Key>,
    /// Grants for a peer that is not known yet.
    early_grants: Vec<Grant>,
    /// The owner of the member's grants in the domain.
    owner: VqpId,
    pub(super) access: Access,
    /// Set when the member's vQP has something to do.
    attention: Arc<AtomicBool>,
    /// Whether operations on the own queue pair wait for the peer's confirmation (see
    /// [`Config::is_durable`](crate::Config::is_durable)), or for a receive.
    pub(super) awaits_program: bool,
}

#[derive(Debug)]
enum Posted {
    Op { member: MemberId, seq: u64 },
    Message { buffer: u32, len: u32 },
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) backup: VirtualQp,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Messages that are not posted yet.
    outbox: VecDeque<Message>,
    buffers: MessageBuffers,
    /// The requests in flight, in posting order.
    posted: VecDeque<Posted>,
    /// The buffers and lengths of messages that were flushed because of an earlier error. They are
    /// sent again before the outbox.
    unsent: VecDeque<(u32, u32)>,
    /// The keys that the peer granted to removed members, to be forgotten when no operation is in
    /// flight.
    retired: Vec<Key>,
    polls: u32,
    /// The number of requests that were ever posted.
    posted_count: u64,
    /// The messages in the outbox wait until this many requests have completed. `None` if the
    /// outbox was empty.
    messages_wait_for: Option<u64>,
    /// Whether the peer or a NIC has refused a message.
    is_message_refused: bool,
    next_probe: Time,
    /// If the oldest request in flight is a message: the number of requests that completed before
    /// it, and the time since which the message waits.
    oldest_since: Option<(u64, Time)>,
    /// The epoch that the members know.
    epoch: u16,
    /// The number of members that have not left the queue pair of an earlier epoch yet.
    leaving: usize,
    /// The time at which `epoch` began.
    moved_at: Time,
    completions: Vec<Completion>,
    pub(super) rejected: u64,
}

impl State {
    pub(super) fn new(mut backup: VirtualQp, buffers: MessageBuffers) -> State {
        // The refusal of one member's request does not concern the other members.
        backup.datapath.survives_refusals = true;
        // The detector does not know the operations on the members' own queue pairs.
        backup.failover.maintenance.keep_heartbeats_frequent();
        State {
            backup,
            slots: Vec::new(),
            free: Vec::new(),
            outbox: VecDeque::new(),
            buffers,
            posted: VecDeque::new(),
            unsent: VecDeque::new(),
            retired: Vec::new(),
            polls: 0,
            posted_count: 0,
            messages_wait_for: None,
            is_message_refused: false,
            next_probe: Time::ZERO,
            oldest_since: None,
            epoch: 0,
            leaving: 0,
            moved_at: Time::ZERO,
            completions: Vec::new(),
            rejected: 0,
        }
    }

    /// Posts the receives of messages on the connected backup.
    pub(super) fn post_receives(&mut self) -> mitra_verbs::Result<()> {
        (0..RECVS).try_for_each(|buffer| self.backup.post_recv(self.buffers.receive(buffer)))
    }

    /// This end's role, and the epoch and rail of the backup. `None` before the backup is
    /// connected, and after it has closed.
    pub(super) fn binding(&self) -> Option<(Role, u16, u8)> {
        let role = self.backup.failover.recovery.control.as_ref()?.role;
        let epoch = self.backup.failover.recovery.ballot(&self.backup.datapath)?.epoch;
        Some((role, epoch, self.backup.active_rail() as u8))
    }

    /// The address of the peer's NIC on a rail, the path MTU, and whether the NIC acknowledges data
    /// only after placing it in memory.
    pub(super) fn peer_nic(&self, rail: u8) -> Option<(Gid, Mtu, bool)> {
        let rail = self.backup.datapath.rails.get(rail.into());
        let (gid, mtu) = rail.peer_address()?;
        Some((gid, mtu, rail.peer_acks_after_placement()))
    }

    /// `None` if the backup is not connected or has closed.
    pub(super) fn add(&mut self, owner: VqpId, access: Access) -> Option<(MemberId, Arc<AtomicBool>)> {
        let (role, epoch, rail) = self.binding()?;
        let attention = Arc::new(AtomicBool::new(true));
        let entry = Entry {
            peer: None,
            core: Member::new(role, epoch, rail),
            events: Vec::new(),
            has_failed_op: false,
            resumed: None,
            asked: Vec::new(),
            imported: Vec::new(),
            early_grants: Vec::new(),
            owner,
            access,
            attention: Arc::clone(&attention),
            awaits_program: false,
        };
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(Slot { instance: 0, member: None });
                self.slots.len() as u32 - 1
            }
        };
        let place = &mut self.slots[slot as usize];
        place.member = Some(Box::new(entry));
        Some((MemberId { slot, instance: place.instance }, attention))
    }

    /// Removes a member. From now on, messages for the member and the outcomes of its operations
    /// are discarded.
    pub(super) fn remove(&mut self, id: MemberId) {
        self.flush_member(id);
        if let Some(slot) = self.slots.get_mut(id.slot as usize).filter(|slot| slot.instance == id.instance) {
            if let Some(entry) = slot.member.take() {
                self.leaving -= usize::from(entry.core.is_leaving());
                self.retired.extend(entry.imported);
            }
            if let Some(next) = slot.instance.checked_add(1) {
                slot.instance = next;
                self.free.push(id.slot);
            }
        }
    }

    fn entry(&mut self, id: MemberId) -> Option<&mut Entry> {
        let slot = self.slots.get_mut(id.slot as usize).filter(|slot| slot.instance == id.instance)?;
        slot.member.as_deref_mut()
    }

    pub(super) fn has_requests(&self) -> bool {
        !(self.posted.is_empty() && self.outbox.is_empty() && self.unsent.is_empty())
    }

    /// Calls `act` with a member, and queues the messages that `act` causes.
    pub(super) fn with_entry<T>(&mut self, id: MemberId, act: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let entry = self.entry(id)?;
        let was_leaving = entry.core.is_leaving();
        let result = act(entry);
        let is_leaving = entry.core.is_leaving();
        self.leaving = self.leaving + usize::from(is_leaving) - usize::from(was_leaving);
        self.flush_member(id);
        Some(result)
    }

    /// Calls `act` with the state machine of a member, and queues the messages that `act` causes.
    pub(super) fn with_core<T>(&mut self, id: MemberId, act: impl FnOnce(&mut Member) -> T) -> Option<T> {
        self.with_entry(id, |entry| act(&mut entry.core))
    }

    pub(super) fn take_events(&mut self, id: MemberId) -> Vec<Event> {
        let Some(entry) = self.entry(id) else { return Vec::new() };
        entry.has_failed_op = false;
        core::mem::take(&mut entry.events)
    }

    pub(super) fn ask_grant(&mut self, id: MemberId, rkey: Key) {
        let Some(entry) = self.entry(id) else { return };
        if entry.peer.is_some() {
            entry.asked.push(rkey);
            self.tell(id, Body::AskGrant { rkey });
        }
    }

    /// Queues a message that a member sends outside its state machine.
    pub(super) fn tell(&mut self, id: MemberId, body: Body) {
        if let Some(to) = self.entry(id).and_then(|entry| entry.peer) {
            self.outbox.push_back(Message { to, body });
        }
    }

    fn flush_member(&mut self, id: MemberId) {
        let Some(entry) = self.entry(id) else { return };
        let Some(to) = entry.peer else { return };
        let grants = core::mem::take(&mut entry.early_grants).into_iter().map(Body::Grant);
        let bodies = grants.chain(entry.core.take_outbox());
        self.outbox.extend(bodies.map(|body| Message { to, body }));
    }

    pub(super) fn has_room(&self) -> bool {
        let depth = self.backup.config().send_wrs as usize;
        self.backup.outstanding() + RESERVED_SENDS < depth
            && !self.backup.is_halted()
            && self.unsent.is_empty()
            && self.backup.close_reason().is_none()
    }

    /// Posts an operation of a member. Returns false if the backup does not accept the operation.
    pub(super) fn post(&mut self, member: MemberId, seq: u64, mut wr: SendWr, policy: WritePolicy) -> bool {
        if self.entry(member).is_none_or(|entry| entry.has_failed_op) {
            return false;
        }
        wr.wr_id = user(member);
        wr.flags.set(SendFlags::SIGNALED, true);
        if self.backup.record(wr, policy).is_err() {
            return false;
        }
        self.note_posted(Posted::Op { member, seq });
        if self.unposted() >= OPS_PER_LIST {
            self.backup.post_pending_sends();
        }
        true
    }

    fn note_posted(&mut self, posted: Posted) {
        self.posted.push_back(posted);
        self.posted_count += 1;
    }

    fn unposted(&self) -> usize {
        self.backup.datapath.send.ledger.unposted()
    }

    /// Handles a member's report that the rail of its queue pair has failed. `epoch` is the epoch
    /// of that queue pair. The backup then moves, unless it has already left this epoch.
    pub(super) fn report_failure(&mut self, epoch: u16, cause: Cause) {
        if self.binding().is_some_and(|(_, current, _)| current == epoch) {
            let (recovery, datapath) = (&mut self.backup.failover.recovery, &mut self.backup.datapath);
            // The failure may come from a move of the home, which fences queue pairs.
            recovery.follow_home(datapath);
            recovery.active_rail_failed(datapath, cause);
        }
    }

    /// Stops the backup's queue pair, so that no NIC accesses the memory of this member's
    /// operations any more. The backup replays the operations of the other members.
    pub(super) fn stop_operations(&mut self, member: MemberId) {
        let (recovery, datapath) = (&mut self.backup.failover.recovery, &mut self.backup.datapath);
        if datapath.termination.is_closed() {
            return;
        }
        datapath.send.ledger.cancel(user(member));
        // If the rail can be neither fenced nor reset, the backup soon closes with `Unfenced`.
        recovery.stop_active_rail(datapath);
        recovery.active_rail_failed(datapath, Cause::Completion(WcStatus::Flushed));
    }

    /// Drives the backup from a poll of a member. If the member has events to handle (`has_news`),
    /// only one poll in [`POLLS_PER_DRIVE`] drives the backup.
    pub(super) fn drive_for_member(&mut self, has_news: bool) {
        self.polls = self.polls.wrapping_add(1);
        if !has_news || self.polls.is_multiple_of(POLLS_PER_DRIVE) {
            self.drive();
        }
    }

    /// Drives the backup: moves from a failed rail, handles and sends messages, and passes on the
    /// outcomes of operations.
    pub(super) fn drive(&mut self) {
        let mut completions = core::mem::take(&mut self.completions);
        completions.clear();
        let was_open = self.backup.close_reason().is_none();
        self.backup.poll(&mut completions);
        self.publish_epoch();
        for completion in &completions {
            match completion.opcode {
                WcOpcode::Recv | WcOpcode::RecvWithImm => self.on_receive(completion),
                _ => self.on_sent(completion),
            }
        }
        self.completions = completions;
        if self.is_message_refused {
            // Without the message, the members at the two ends would wait for each other.
            let (recovery, datapath) = (&mut self.backup.failover.recovery, &mut self.backup.datapath);
            recovery.close(datapath, CloseReason::RequestError);
        }
        if self.backup.close_reason().is_some() {
            if was_open {
                self.entries().for_each(|entry| entry.attention.store(true, Ordering::Release));
            }
            return;
        }
        if self.backup.is_halted() && self.backup.outstanding() == 0 {
            self.backup.resume();
        }
        if self.posted.is_empty() {
            let send = &mut self.backup.datapath.send;
            self.retired.drain(..).for_each(|rkey| send.forget(rkey));
        }
        // Each posted list costs a system call. While requests are in flight, new operations and
        // messages therefore wait, so that one list contains several of them. A message waits only
        // until the requests before it have completed, as in Nagle's algorithm (RFC 896). Otherwise
        // a continuous stream of operations would delay the message forever.
        let is_idle = self.posted.len() <= self.unposted();
        let completed = self.posted_count - self.posted.len() as u64;
        let waits_for = (!self.outbox.is_empty()).then_some(self.posted_count);
        self.messages_wait_for = waits_for.map(|count| self.messages_wait_for.unwrap_or(count));
        self.send_messages(is_idle || self.messages_wait_for.is_some_and(|count| completed >= count));
        self.probe();
        if self.unposted() > 0 && is_idle {
            self.backup.post_pending_sends();
        }
    }

    fn entries(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.slots.iter_mut().filter_map(|slot| slot.member.as_deref_mut())
    }

    /// Returns whether members that can use the backup make their queue pairs later, because other
    /// members still recover. Meanwhile the backup carries the operations.
    pub(super) fn defers_own_qps(&self, now: Time) -> bool {
        let is_recovering = self.leaving > 0 || !self.posted.is_empty();
        let has_moved = self.epoch > Ballot::FIRST.epoch;
        has_moved && is_recovering && now.saturating_since(self.moved_at) < OWN_QP_DELAY
    }

    /// Tells all members when the backup has moved.
    fn publish_epoch(&mut self) {
        let Some((_, epoch, rail)) = self.binding() else { return };
        if self.epoch == epoch {
            return;
        }
        (self.epoch, self.moved_at) = (epoch, self.backup.datapath.now());
        let mut leaving = 0;
        for entry in self.entries() {
            entry.core.on_epoch(epoch, rail);
            leaving += usize::from(entry.core.is_leaving());
            entry.attention.store(true, Ordering::Release);
        }
        self.leaving = leaving;
    }

    fn on_sent(&mut self, completion: &Completion) {
        match self.posted.pop_front() {
            Some(Posted::Op { member, seq }) => {
                let Some(entry) = self.entry(member) else { return };
                let (outcome, byte_len) = (completion.outcome, completion.byte_len);
                entry.has_failed_op |= outcome != Outcome::Success;
                entry.events.push(Event::Done { seq, outcome, byte_len });
                entry.attention.store(true, Ordering::Release);
            }
            Some(Posted::Message { buffer, len }) => match completion.outcome {
                Outcome::Failed(WcStatus::Flushed) => self.unsent.push_back((buffer, len)),
                // The message was received.
                Outcome::Success | Outcome::Unresolved(UnresolvedError::ExecutedBehindError) => {
                    self.buffers.free(buffer);
                }
                // After the backup has closed, this value does not matter.
                _ => self.is_message_refused = true,
            },
            None => {}
        }
    }
}
