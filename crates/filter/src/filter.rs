//! The common parts of both kinds of filters.

use mitra_verbs::Time;

use crate::message::{Grant, Message};

/// The identity of a request that a filter has passed on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Ticket<N> {
    /// A request under a grant.
    Request {
        /// The node that sent the request.
        node: N,
        /// The node's grant.
        grant: Grant,
        /// The sequence number.
        seq: u32,
    },
    /// An idempotent call.
    Call {
        /// The node that sent the request.
        node: N,
        /// The sender's incarnation.
        incarnation: u64,
        /// The number of the call.
        id: u64,
    },
    /// A request with one bit.
    Bit {
        /// The node that sent the request.
        node: N,
        /// The number of the node's connection.
        connection: u64,
    },
}

impl<N: Copy> Ticket<N> {
    /// Returns the node that sent the request.
    pub fn node(&self) -> N {
        match *self {
            Ticket::Request { node, .. } | Ticket::Call { node, .. } | Ticket::Bit { node, .. } => node,
        }
    }
}

/// A request of a filter to its driver.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum FilterAction<N, B> {
    /// Send a message to a node.
    Send(N, Message<B>),
    /// Execute a request, and pass the reply to [`FilterCore::complete`]. The driver executes
    /// requests in the order of these actions.
    Execute(Ticket<N>, B),
}

/// The reaction of a filter to a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// The message is a new request, or an idempotent call.
    Executed,
    /// The message is a copy, which the filter answers like the original.
    Copy,
    /// The message is an arbitration, and the node has a fresh grant.
    Granted,
    /// The filter refused the message, and told the node.
    Refused,
    /// The message changes nothing, or is not for this filter.
    Ignored,
}

/// A filter: a state machine without I/O.
pub trait FilterCore<N, B> {
    /// Handles a message from a node. The carrier must identify the node, because a node may change
    /// only its own state.
    fn receive(
        &mut self,
        now: Time,
        node: N,
        message: Message<B>,
        out: &mut Vec<FilterAction<N, B>>,
    ) -> Verdict;
    /// Records the reply to a request, and answers the request.
    fn complete(&mut self, ticket: Ticket<N>, reply: B, out: &mut Vec<FilterAction<N, B>>);
}
