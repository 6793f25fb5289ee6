//! Virtual queue pairs as a carrier.

use std::collections::VecDeque;
use std::fmt;

use mitra_driver::Connection;
use mitra_failover::{VirtualQp, WritePolicy};
use mitra_verbs::{Result, SendOp, Time};

use super::RpcError;
use super::carrier::{Carrier, Event, OrderedCarrier};
use super::slots::RECVS;

/// The maximum number of messages that wait while another message is sent. Further messages are
/// lost.
const MAX_WAITING: usize = 64;

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
    connection: Connection,
    waiting: VecDeque<Vec<u8>>,
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
    /// `NoPlace` if every node has a connection; the errors of [`Connection::over`] and
    /// [`Connection::with_receives`].
    pub fn connect(&mut self, vqp: VirtualQp) -> Result<VqpConnection, RpcError> {
        let Some(node) = self.links.iter().position(Option::is_none) else {
            return Err(RpcError::NoPlace(self.links.len()));
        };
        let connection = Connection::over(vqp, self.max_message)?;
        let connection = connection.with_receives(RECVS as usize, self.max_message)?;
        let number = self.connections;
        self.connections += 1;
        self.links[node] = Some(Link { number, connection, waiting: VecDeque::new() });
        Ok(VqpConnection { node, number })
    }

    /// Ends a connection and closes its vQP. Has no effect if the connection has ended before, even
    /// if its node has a newer connection.
    pub fn disconnect(&mut self, connection: VqpConnection) {
        if let Some(place) = self.links.get_mut(connection.node) {
            // The drop closes the vQP.
            place.take_if(|link| link.number == connection.number);
        }
    }

    /// Returns the vQP to a node.
    pub fn vqp(&self, node: usize) -> Option<&VirtualQp> {
        self.links.get(node)?.as_ref()?.connection.vqp()
    }
}

impl Link {
    fn advance(&mut self) {
        if self.connection.is_idle()
            && let Some(message) = self.waiting.pop_front()
        {
            // A message that is not taken is lost, as on other carriers.
            let _ = self.connection.put(0, SendOp::Send, &message, WritePolicy::Strict);
            let _ = self.connection.post(); // the next poll reports the end of the connection
        }
    }

    /// Returns whether the connection works.
    fn poll(&mut self, handle: &mut dyn FnMut(Event<'_>)) -> bool {
        let polled = self.connection.poll(|event| {
            if let mitra_driver::Event::Message(message) = event {
                handle(Event::Message(&message.to_vec()));
            }
        });
        self.advance();
        polled.is_ok()
    }
}

impl Carrier for VqpCarrier {
    type Node = usize;

    fn now(&self) -> Time {
        let nic = self
            .links
            .iter()
            .flatten()
            .filter_map(|link| link.connection.vqp())
            .flat_map(|vqp| vqp.domain().nics())
            .next();
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
            if !link.poll(&mut |event| handle(node, event)) {
                self.links[node] = None;
                handle(node, Event::Closed);
            }
        }
        Ok(())
    }
}

impl OrderedCarrier for VqpCarrier {}
