//! Virtual queue pairs as a carrier.

use std::collections::VecDeque;
use std::fmt;

use mitra_failover::{CloseReason, Completion, VirtualMr, VirtualQp};
use mitra_verbs::{Access, Data, RecvWr, Result, SendOp, SendWr, Time, WcOpcode};

use super::RpcError;
use super::carrier::{Carrier, Event, OrderedCarrier};
use super::slots::{RECVS, Slots};

/// The maximum number of messages that wait while another message is sent. Further messages are
/// lost.
const MAX_WAITING: usize = 64;
/// The slot of the message that is sent. The slots before it are for receives.
const SEND_SLOT: usize = RECVS as usize;

/// Virtual queue pairs to several nodes as a carrier. The nodes are numbered from 0.
///
/// The carrier sends messages to a node one at a time: it posts a message when the SEND of the
/// message before has completed. A vQP that sends everything in flight again after a failover
/// (policy `blanket`) therefore repeats at most the last message, and messages stay in order.
#[derive(Debug)]
pub struct VqpCarrier {
    max_message: usize,
    links: Vec<Option<Link>>,
    /// The number of connections so far.
    connections: u64,
}

/// A connection of a [`VqpCarrier`]. A later connection to the same node has another value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VqpConnection {
    node: usize,
    number: u64,
}

impl VqpConnection {
    /// Returns the node. After the connection has ended, another connection may have the node.
    pub fn node(self) -> usize {
        self.node
    }
}

impl fmt::Display for VqpConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {} of node {}", self.number, self.node)
    }
}

#[derive(Debug)]
struct Link {
    number: u64,
    vqp: VirtualQp,
    slots: Slots,
    mr: VirtualMr,
    waiting: VecDeque<Vec<u8>>,
    is_sending: bool,
    completions: Vec<Completion>,
}

impl VqpCarrier {
    /// Creates a carrier for connections to `nodes` nodes, with messages of at most `max_message`
    /// bytes.
    pub fn new(nodes: usize, max_message: usize) -> VqpCarrier {
        VqpCarrier { max_message, links: (0..nodes).map(|_| None).collect(), connections: 0 }
    }

    /// Adds a connected vQP, and returns its connection. The vQP must have no other user, and room
    /// for 32 receives.
    ///
    /// # Errors
    /// `NoPlace` if every node has a connection; the errors of
    /// [`Domain::register`](mitra_failover::Domain::register) and [`VirtualQp::post_recv`].
    pub fn connect(&mut self, mut vqp: VirtualQp) -> Result<VqpConnection, RpcError> {
        let Some(node) = self.links.iter().position(Option::is_none) else {
            return Err(RpcError::NoPlace(self.links.len()));
        };
        let slots = Slots::new(SEND_SLOT + 1, self.max_message);
        let mr = vqp.domain().register(slots.memory(), Access::LOCAL_WRITE)?;
        for slot in 0..SEND_SLOT {
            vqp.post_recv(RecvWr::new(slot as u64, mr.sge(slots.offset(slot), slots.len())))?;
        }
        let (waiting, completions) = (VecDeque::new(), Vec::new());
        let number = self.connections;
        self.connections += 1;
        self.links[node] = Some(Link { number, vqp, slots, mr, waiting, is_sending: false, completions });
        Ok(VqpConnection { node, number })
    }

    /// Ends a connection and returns its vQP, closed. Returns `None` if the connection has ended
    /// before, even if its node has a newer connection.
    pub fn disconnect(&mut self, connection: VqpConnection) -> Option<VirtualQp> {
        let link = self.links.get(connection.node)?.as_ref()?;
        if link.number == connection.number { self.end(connection.node) } else { None }
    }

    fn end(&mut self, node: usize) -> Option<VirtualQp> {
        let mut link = self.links.get_mut(node)?.take()?;
        // The memory is released if the NICs work. `close` resets a NIC that does not answer, or
        // the vQP ends as `Unfenced`.
        if link.vqp.close().is_ok() {
            let _ = link.vqp.domain().deregister(&link.mr);
        }
        Some(link.vqp)
    }

    /// Returns the vQP to a node.
    pub fn vqp(&self, node: usize) -> Option<&VirtualQp> {
        Some(&self.links.get(node)?.as_ref()?.vqp)
    }
}

impl Link {
    fn advance(&mut self) {
        // A message that failed is lost, as on other carriers.
        if self.vqp.is_halted() && self.vqp.outstanding() == 0 {
            self.vqp.resume();
        }
        if self.is_sending {
            return;
        }
        let Some(message) = self.waiting.pop_front() else { return };
        self.slots.write(SEND_SLOT, &message);
        let sge = self.mr.sge(self.slots.offset(SEND_SLOT), message.len() as u32);
        let wr = SendWr::new(SEND_SLOT as u64, SendOp::Send, Data::sge(sge));
        self.is_sending = self.vqp.post_send(wr).is_ok();
    }

    fn poll(&mut self, handle: &mut dyn FnMut(Event<'_>)) -> Result<Option<CloseReason>> {
        let mut completions = core::mem::take(&mut self.completions);
        self.vqp.poll(&mut completions);
        for completion in completions.drain(..) {
            if completion.opcode != WcOpcode::Recv {
                self.is_sending = false;
                continue;
            }
            let slot = completion.wr_id as usize;
            if completion.is_success() {
                handle(Event::Message(&self.slots.read(slot, completion.byte_len as usize)));
            }
            if self.vqp.close_reason().is_none() {
                let sge = self.mr.sge(self.slots.offset(slot), self.slots.len());
                self.vqp.post_recv(RecvWr::new(slot as u64, sge))?;
            }
        }
        self.completions = completions;
        self.advance();
        Ok(self.vqp.close_reason())
    }
}

impl Carrier for VqpCarrier {
    type Node = usize;

    fn now(&self) -> Time {
        let nic = self.links.iter().flatten().flat_map(|link| link.vqp.domain().nics()).next();
        nic.map_or(Time::ZERO, |nic| nic.provider.now())
    }

    fn max_message(&self) -> usize {
        self.max_message
    }

    fn send(&mut self, to: usize, message: &[u8]) {
        let Some(Some(link)) = self.links.get_mut(to) else { return };
        if message.len() <= self.max_message && link.waiting.len() < MAX_WAITING {
            link.waiting.push_back(message.to_vec());
            link.advance();
        }
    }

    fn poll(&mut self, handle: &mut dyn FnMut(usize, Event<'_>)) -> Result<()> {
        for node in 0..self.links.len() {
            let Some(link) = &mut self.links[node] else { continue };
            if link.poll(&mut |event| handle(node, event))?.is_some() {
                self.end(node);
                handle(node, Event::Closed);
            }
        }
        Ok(())
    }
}

impl OrderedCarrier for VqpCarrier {}
