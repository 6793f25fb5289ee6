//! A connection between two processes, or between a process and a memory node: a virtual queue pair
//! with message buffers.

use std::collections::VecDeque;
use std::sync::Arc;

use mitra_driver::ReadyCqs;
use mitra_failover::{Completion, ConnectInfo, Domain, FailoverReport, OwnedRegion, RemoteRegion, VirtualQp};
use mitra_verbs::{Data, RecvWr, Result, SendOp, SendWr, WcOpcode};

/// The number of send buffers, and the number of receive buffers. Work requests with ids below this
/// number are messages.
const MESSAGE_SLOTS: u64 = 16;
/// The maximum number of messages that wait for a send buffer. If the queue is full, the peer has
/// crashed, or its connection is about to close.
const MAX_QUEUED: usize = 4096;

pub(crate) enum LinkEvent {
    /// A work request of [`Link::post`] has completed. `wr_id` is the id that the caller passed to
    /// [`Link::post`].
    Completed(Completion),
    Message(Vec<u8>),
}

impl LinkEvent {
    pub(crate) fn message(self) -> Option<Vec<u8>> {
        match self {
            LinkEvent::Message(message) => Some(message),
            LinkEvent::Completed(_) => None,
        }
    }
}

/// One end of a connection. Sends messages in order, and posts one-sided operations.
#[derive(Debug)]
pub(crate) struct Link {
    vqp: VirtualQp,
    max_message_bytes: usize,
    /// The send buffers, followed by the receive buffers.
    slots: OwnedRegion,
    free_slots: Vec<u64>,
    queued: VecDeque<Vec<u8>>,
    completions: Vec<Completion>,
}

impl Link {
    pub(crate) fn new(
        domain: &Arc<Domain>,
        config: mitra_failover::Config,
        max_message_bytes: usize,
    ) -> Result<Link> {
        let vqp = VirtualQp::builder(domain).config(config).build()?;
        let slots = OwnedRegion::new(domain, 2 * MESSAGE_SLOTS as usize * max_message_bytes)?;
        let free_slots = (0..MESSAGE_SLOTS).collect();
        let (queued, completions) = Default::default();
        Ok(Link { vqp, max_message_bytes, slots, free_slots, queued, completions })
    }

    /// Returns an encoded [`ConnectInfo`] for the peer.
    pub(crate) fn info(&self) -> Vec<u8> {
        self.vqp.local_info().encode()
    }

    /// `info` is an encoded [`ConnectInfo`] of the peer.
    pub(crate) fn connect(&mut self, info: &[u8]) -> Result<()> {
        self.vqp.connect(&ConnectInfo::decode(info)?)?;
        (0..MESSAGE_SLOTS).try_for_each(|slot| self.post_slot_recv(slot))
    }

    fn post_slot_recv(&mut self, slot: u64) -> Result<()> {
        let sge = self.slots.sge(self.recv_offset(slot), self.max_message_bytes);
        self.vqp.post_recv(RecvWr::new(slot, sge))
    }

    fn recv_offset(&self, slot: u64) -> usize {
        (MESSAGE_SLOTS + slot) as usize * self.max_message_bytes
    }

    /// Makes a region of the peer known, so that operations can access it.
    pub(crate) fn import(&mut self, region: &RemoteRegion) -> Result<()> {
        self.vqp.import(region)
    }

    /// Posts a one-sided operation, whose completion contains `id`.
    pub(crate) fn post(&mut self, id: u64, op: SendOp, data: Data) -> Result<()> {
        // A register's contents carry a checksum and a sequence number and have one writer, so
        // repeating a WRITE after a failover is harmless.
        let writes = mitra_failover::WritePolicy::Repeatable;
        self.vqp.post_send_with(SendWr::new(id + MESSAGE_SLOTS, op, data), writes).map(|_| ())
    }

    /// Returns how many operations can be posted now. Send slots for messages are not included.
    pub(crate) fn free_send_slots(&self) -> usize {
        (self.vqp.config().send_wrs as usize).saturating_sub(self.vqp.outstanding() + MESSAGE_SLOTS as usize)
    }

    /// Sends a message now, or queues it until a send buffer is free. Returns false and drops the
    /// message if it is too long or too many messages are queued.
    pub(crate) fn send(&mut self, message: Vec<u8>) -> bool {
        if message.len() > self.max_message_bytes || self.queued.len() >= MAX_QUEUED {
            return false;
        }
        self.queued.push_back(message);
        self.send_queued();
        true
    }

    fn send_queued(&mut self) {
        while !self.queued.is_empty()
            && let Some(slot) = self.free_slots.pop()
        {
            let Some(message) = self.queued.front() else { return };
            let data = if message.len() <= self.slots.domain().limits().inline as usize {
                Data::inline(message)
            } else {
                let offset = slot as usize * self.max_message_bytes;
                self.slots.write(offset, message);
                Data::sge(self.slots.sge(offset, message.len()))
            };
            if self.vqp.post_send(SendWr::new(slot, SendOp::Send, data)).is_err() {
                self.free_slots.push(slot);
                return; // the connection is closed, which the next poll reports
            }
            self.queued.pop_front();
        }
    }

    /// Drives the connection, including a failover, and passes completions and messages to `event`.
    pub(crate) fn poll(&mut self, event: impl FnMut(LinkEvent)) {
        self.vqp.poll(&mut self.completions);
        self.dispatch(event);
    }

    /// Passes completions and messages to `event`, without driving a failover. Faster than
    /// [`Link::poll`].
    pub(crate) fn poll_completions(&mut self, event: impl FnMut(LinkEvent)) {
        self.vqp.poll_completions(&mut self.completions);
        self.dispatch(event);
    }

    fn dispatch(&mut self, mut event: impl FnMut(LinkEvent)) {
        let mut completions = std::mem::take(&mut self.completions);
        for completion in completions.drain(..) {
            match completion.opcode {
                WcOpcode::Recv | WcOpcode::RecvWithImm if completion.is_success() => {
                    let len = (completion.byte_len as usize).min(self.max_message_bytes);
                    let message = self.slots.read(self.recv_offset(completion.wr_id), len);
                    // `post_recv` fails only after the connection has closed.
                    let _ = self.post_slot_recv(completion.wr_id);
                    event(LinkEvent::Message(message));
                }
                WcOpcode::Recv | WcOpcode::RecvWithImm => {}
                WcOpcode::Send => self.free_slots.push(completion.wr_id),
                _ => event(LinkEvent::Completed(Completion {
                    wr_id: completion.wr_id - MESSAGE_SLOTS,
                    ..completion
                })),
            }
        }
        self.completions = completions;
        self.send_queued();
    }

    /// Returns whether the connection is unusable: an operation was refused or ended in an error,
    /// or no rail reaches the peer.
    pub(crate) fn is_broken(&self) -> bool {
        self.vqp.close_reason().is_some() || self.vqp.is_halted()
    }

    pub(crate) fn last_failover(&self) -> Option<FailoverReport> {
        self.vqp.last_failover()
    }

    /// Arms the completion queues: the next completion raises an event on the domain's completion
    /// channels.
    pub(crate) fn arm(&self) {
        // Arming fails only on a failed NIC, whose failure the next poll detects.
        let _ = self.vqp.arm();
    }

    pub(crate) fn is_ready(&self, ready: &ReadyCqs) -> bool {
        ready.contains(&self.vqp)
    }

    /// Closes the connection. When `close` returns, the peer can no longer access memory through
    /// the connection.
    pub(crate) fn close(&mut self) -> Result<()> {
        self.vqp.close()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // A NIC that does not confirm the close is dead or hung, and the caller cannot do more.
        let _ = self.vqp.close();
    }
}
