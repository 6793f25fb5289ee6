//! A connection between two processes, or between a process and a memory node: a virtual queue pair
//! that sends messages in order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use mitra_consensus_memory::ClientLink;
use mitra_driver::{Connection, Event, QpInfo};
use mitra_failover::{Domain, FailoverReport, RemoteRegion, VirtualQp, WritePolicy};
use mitra_verbs::{Ended, Error, Result, SendOp};

use crate::link_poller::{LinkPoller, Pass, Watch};

/// The maximum number of messages in flight in each direction. Messages have the ids below this
/// number.
const MESSAGE_SLOTS: u64 = 16;
/// The maximum number of messages that wait to be sent. If the queue is full, the peer has crashed,
/// or its connection is about to close.
const MAX_QUEUED: usize = 4096;
/// A register's contents carry a checksum and a sequence number and have one writer, so repeating a
/// WRITE after a failover is harmless.
const WRITES: WritePolicy = WritePolicy::Repeatable;

pub(crate) enum LinkEvent {
    /// An operation has ended.
    Ended {
        /// The id that the caller gave the operation.
        id: u64,
        ended: Ended,
        /// The bytes that a successful operation has fetched.
        fetched: Vec<u8>,
    },
    Message(Vec<u8>),
}

impl LinkEvent {
    pub(crate) fn message(self) -> Option<Vec<u8>> {
        match self {
            LinkEvent::Message(message) => Some(message),
            LinkEvent::Ended { .. } => None,
        }
    }
}

/// One end of a connection. Sends messages in order, and posts one-sided operations.
#[derive(Debug)]
pub(crate) struct Link {
    /// Declared before the connection, whose descriptors it watches.
    watch: Watch,
    connection: Connection,
    max_message_bytes: usize,
    /// The ids of messages that are not in flight.
    free_slots: Vec<u64>,
    queued: VecDeque<Vec<u8>>,
}

impl Link {
    /// Creates an unconnected end, with `operation_bytes` of registered memory for the payload of
    /// one-sided operations. `poller` knows its events by `key`.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        (poller, key): (&LinkPoller, u8),
        config: mitra_failover::Config,
        max_message_bytes: usize,
        operation_bytes: usize,
    ) -> Result<Link> {
        let slots = MESSAGE_SLOTS as usize;
        let bytes = slots * max_message_bytes.next_multiple_of(8) + operation_bytes;
        let config = config.with_available_inline(&domain.limits());
        let vqp = VirtualQp::builder(domain).config(config).own_channels(true).build()?;
        let connection = Connection::over(vqp, bytes)?.with_receives(slots, max_message_bytes)?;
        let watch = poller.watch(key, &connection)?;
        let free_slots = (0..MESSAGE_SLOTS).collect();
        Ok(Link { watch, connection, max_message_bytes, free_slots, queued: VecDeque::new() })
    }

    /// Returns an encoded [`ConnectInfo`](mitra_failover::ConnectInfo) for the peer.
    ///
    /// # Errors
    /// None over a virtual queue pair, which every link has.
    pub(crate) fn info(&self) -> Result<Vec<u8>> {
        match self.connection.info()? {
            QpInfo::Virtual(info) => Ok(info),
            QpInfo::Rc(_) => Err(Error::Invalid("a link needs a virtual queue pair")),
        }
    }

    /// `info` is an encoded [`ConnectInfo`](mitra_failover::ConnectInfo) of the peer.
    pub(crate) fn connect(&mut self, info: &[u8]) -> Result<()> {
        self.connection.connect(&QpInfo::Virtual(info.to_vec())).map(|_| ())
    }

    /// Posts the operations that were pushed through [`ClientLink`].
    pub(crate) fn post(&mut self) {
        let _ = self.connection.post(); // `is_broken` tells of an error
    }

    /// Sends a message now, or queues it until fewer messages are in flight. Returns false and
    /// drops the message if it is too long or too many messages are queued.
    pub(crate) fn send(&mut self, message: Vec<u8>) -> bool {
        if message.len() > self.max_message_bytes || self.queued.len() >= MAX_QUEUED {
            return false;
        }
        self.queued.push_back(message);
        self.send_queued();
        true
    }

    fn send_queued(&mut self) {
        while !self.is_broken()
            && let Some(message) = self.queued.front()
            && let Some(&slot) = self.free_slots.last()
            && self.connection.put(slot, SendOp::Send, message, WRITES)
        {
            self.free_slots.pop();
            self.queued.pop_front();
        }
        self.post();
    }

    /// Drives the connection, including a failover, if it belongs to the pass. Passes ended
    /// operations and messages to `event`. Returns whether the connection belongs to the pass.
    pub(crate) fn drive(&mut self, pass: Pass, mut event: impl FnMut(LinkEvent)) -> bool {
        if let Pass::HandleEvents(ready) = pass
            && !ready.contains(self.watch.key)
            && self.due_in() != Some(Duration::ZERO)
        {
            return false;
        }
        let free_slots = &mut self.free_slots;
        let dispatch = |of: Event<'_>| dispatch(of, free_slots, &mut event);
        // `is_broken` tells of an error.
        let _ = match pass {
            Pass::Poll => self.connection.poll(dispatch),
            Pass::HandleEvents(_) => self.connection.handle_events(dispatch),
        };
        self.send_queued();
        true
    }

    /// Sets whether the end of an operation or a sent message raises an event.
    pub(crate) fn wake_for_operations(&mut self, on: bool) {
        self.connection.wake_for_operations(on);
    }

    /// Returns after which time a pass is due even if no event arrives. A broken connection, whose
    /// owner ends it in the next pass, is due at once.
    pub(crate) fn due_in(&self) -> Option<Duration> {
        if self.is_broken() { Some(Duration::ZERO) } else { self.connection.due_in() }
    }

    /// Returns whether the connection is unusable: an operation was refused or ended in an error,
    /// or no rail reaches the peer. A broken connection stays so.
    pub(crate) fn is_broken(&self) -> bool {
        self.connection.is_lost() || self.connection.is_halted()
    }

    pub(crate) fn last_failover(&self) -> Option<FailoverReport> {
        self.connection.last_failover()
    }

    /// Closes the connection. When `close` returns, the peer can no longer access memory through
    /// the connection.
    pub(crate) fn close(&mut self) -> Result<()> {
        self.connection.close()
    }
}

fn dispatch(of: Event<'_>, free_slots: &mut Vec<u64>, event: &mut impl FnMut(LinkEvent)) {
    match of {
        Event::Message(message) => event(LinkEvent::Message(message.to_vec())),
        Event::Ended { id, .. } if id < MESSAGE_SLOTS => free_slots.push(id),
        Event::Ended { id, ended, fetched } => {
            event(LinkEvent::Ended { id: id - MESSAGE_SLOTS, ended, fetched: fetched.to_vec() });
        }
    }
}

/// Operations are posted by [`Link::post`]. Send slots for messages do not count as free.
impl ClientLink for Link {
    type Key = RemoteRegion;

    fn connect(&mut self, info: &[u8]) -> bool {
        Link::connect(self, info).is_ok()
    }

    fn import(&mut self, encoded: &[u8], len: u64) -> Option<RemoteRegion> {
        let remote = RemoteRegion::decode(encoded).ok()?;
        (remote.len() == len && self.connection.import(&remote).is_ok()).then_some(remote)
    }

    fn free_send_slots(&self) -> usize {
        self.connection.free_slots().saturating_sub(MESSAGE_SLOTS as usize)
    }

    fn write(&mut self, wr_id: u64, key: &RemoteRegion, offset: u64, data: &[u8]) -> bool {
        let op = SendOp::Write(key.at(offset));
        !self.is_broken() && self.connection.put(wr_id + MESSAGE_SLOTS, op, data, WRITES)
    }

    fn read(&mut self, wr_id: u64, key: &RemoteRegion, offset: u64, len: usize) -> bool {
        let op = SendOp::Read(key.at(offset));
        !self.is_broken() && self.connection.fetch(wr_id + MESSAGE_SLOTS, op, len)
    }

    fn compare_swap(&mut self, wr_id: u64, key: &RemoteRegion, offset: u64, compare: u64, swap: u64) -> bool {
        let op = SendOp::CompareSwap { remote: key.at(offset), compare, swap };
        !self.is_broken() && self.connection.fetch(wr_id + MESSAGE_SLOTS, op, size_of::<u64>())
    }

    fn send(&mut self, message: Vec<u8>) -> bool {
        Link::send(self, message)
    }
}

#[cfg(test)]
mod tests {
    use mitra_softnic::{Config, SoftNic};

    use super::*;
    use crate::link_poller::Ready;

    /// No event tells the owner that a post has failed.
    #[test]
    fn broken_link_is_due_at_once() {
        let nic = SoftNic::open(Config::loopback()).expect("a loopback NIC opens");
        let domain = Domain::with_completion_channels(vec![nic]).expect("the NIC has the resources");
        let poller = LinkPoller::new(&domain).expect("the system has descriptors");
        let mut link = Link::new(&domain, (&poller, 0), mitra_failover::Config::default(), 64, 0)
            .expect("the NIC has a free queue pair");
        link.drive(Pass::HandleEvents(Ready::ALL), |_| {});
        assert_eq!(link.due_in(), None);
        assert!(link.send(vec![1]));
        assert!(link.is_broken(), "an unconnected queue pair refuses the post");
        assert_eq!(link.due_in(), Some(Duration::ZERO));
        assert!(link.drive(Pass::HandleEvents(poller.wait(Duration::ZERO)), |_| {}));
    }
}
