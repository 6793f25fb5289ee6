use std::sync::atomic::Ordering;

use mitra_verbs::{Access, Codec, Key, Reader, SendFlags, SendOp, SendWr};

use super::super::message::{Body, Grant, MAX_MESSAGE_LEN, MemberId, Message};
use super::super::message_buffers::BUFFER_LEN;
use super::{Event, Posted, State};
use crate::completion::Completion;
use crate::config::WritePolicy;

/// If this many messages wait, they are sent even while requests are in flight.
const MESSAGES_PER_SEND: usize = 64;
/// The maximum number of grants of a member to its peer that are in force at once. Each grant takes
/// memory at this end.
const MAX_GRANTS: usize = 256;

impl State {
    pub(super) fn on_receive(&mut self, completion: &Completion) {
        if !completion.is_success() {
            return;
        }
        let buffer = completion.wr_id as u32;
        let bytes = self.buffers.read(buffer, completion.byte_len);
        let mut reader = Reader::new(&bytes);
        while !reader.is_empty() {
            match Message::take(&mut reader) {
                Ok(message) => self.handle(message),
                Err(_) => {
                    self.rejected += 1;
                    break;
                }
            }
        }
        let _ = self.backup.post_recv(self.buffers.receive(buffer)); // refused only if the backup has closed
    }

    fn handle(&mut self, Message { to, body }: Message) {
        if let Body::AskGrant { rkey } = body {
            return self.grant(to, rkey);
        }
        let (rails, current) = (self.backup.domain().nics().len(), self.epoch);
        let mut imported = None;
        let is_valid = self.with_entry(to, |entry| {
            entry.attention.store(true, Ordering::Release);
            match body {
                Body::Resumed { epoch, partial_imm_bytes } => {
                    let is_expected = entry.resumed.is_none_or(|last| last < epoch) && epoch < current;
                    if is_expected {
                        entry.resumed = Some(epoch);
                        entry.events.push(Event::Resumed { epoch, partial_imm_bytes });
                    }
                    is_expected
                }
                Body::Grant(grant) => {
                    let asked = entry.asked.iter().position(|rkey| *rkey == grant.rkey);
                    let asked = asked.map(|at| entry.asked.swap_remove(at));
                    let is_usable = asked.is_some() && grant.region.rail_count() == rails;
                    if is_usable {
                        imported = Some(grant.region.clone());
                        entry.imported.push(grant.region.at(0).rkey);
                        entry.events.push(Event::Granted(grant));
                    }
                    is_usable
                }
                Body::Placed { epoch, placed } => {
                    let is_expected = epoch <= current;
                    if is_expected {
                        // A `Placed` message supersedes earlier `Placed` messages. A peer may send
                        // any number of them before the member is polled, so only the last is kept.
                        entry.events.retain(|event| !matches!(event, Event::Placed { .. }));
                        entry.events.push(Event::Placed { epoch, placed });
                    }
                    is_expected
                }
                body => entry.core.handle(body),
            }
        });
        let Some(is_valid) = is_valid else { return }; // the member has closed here
        self.rejected += u64::from(!is_valid);
        if let Some(region) = imported {
            self.retired.retain(|rkey| *rkey != region.at(0).rkey); // the peer's NIC has reused the key
            let _ = self.backup.import(&region); // refused only if the backup is not connected
        }
    }

    /// Grants the peer of a member access to the memory with this key. If no grant is possible, the
    /// peer's requests wait for the peer's own queue pair.
    fn grant(&mut self, id: MemberId, rkey: Key) {
        let Some(entry) = self.entry(id).filter(|entry| !entry.core.is_closed()) else { return };
        let (owner, access) = (entry.owner, entry.access);
        if self.backup.domain().grant_count(owner) >= MAX_GRANTS {
            return;
        }
        let Some((region, rights)) = self.backup.domain().grant(owner, rkey, access) else { return };
        let writable = rights.contains(Access::REMOTE_WRITE);
        let readable = rights.contains(Access::REMOTE_READ);
        let grant = Grant { rkey, writable, readable, region };
        self.with_entry(id, |entry| entry.early_grants.push(grant));
    }

    /// Posts the messages in the outbox, as many in a SEND as fit. Without `flush`, posts only if
    /// `MESSAGES_PER_SEND` messages wait.
    pub(super) fn send_messages(&mut self, flush: bool) {
        while let Some((buffer, len)) = self.unsent.pop_front() {
            if !self.send_buffer(buffer, len) {
                self.unsent.push_front((buffer, len));
                return;
            }
        }
        while self.is_message_due(flush) && self.buffers.has_free() && !self.backup.is_halted() {
            let mut bytes = Vec::new();
            while bytes.len() + MAX_MESSAGE_LEN <= BUFFER_LEN
                && let Some(message) = self.outbox.pop_front()
            {
                message.put(&mut bytes);
            }
            let Some(buffer) = self.buffers.take(&bytes) else { return };
            let len = bytes.len() as u32;
            if !self.send_buffer(buffer, len) {
                self.unsent.push_back((buffer, len));
                return;
            }
        }
    }

    fn is_message_due(&self, flush: bool) -> bool {
        self.outbox.len() >= MESSAGES_PER_SEND || flush && !self.outbox.is_empty()
    }

    /// Posts a SEND without messages, if a buffer is free.
    pub(super) fn send_empty_message(&mut self) {
        if let Some(buffer) = self.buffers.take(&[])
            && !self.send_buffer(buffer, 0)
        {
            self.buffers.free(buffer);
        }
    }

    /// Returns false if the backup does not accept the SEND.
    fn send_buffer(&mut self, buffer: u32, len: u32) -> bool {
        let mut wr = SendWr::new(0, SendOp::Send, self.buffers.data(buffer, len));
        wr.flags.set(SendFlags::SIGNALED, true);
        if self.backup.record(wr, WritePolicy::Strict).is_err() {
            return false;
        }
        self.note_posted(Posted::Message { buffer, len });
        self.backup.post_pending_sends();
        true
    }
}
