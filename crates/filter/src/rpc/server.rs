//! The server: the driver of a filter.

use std::collections::VecDeque;

use mitra_failover::VirtualQp;

use super::RpcError;
use super::carrier::{Carrier, Event};
use super::vqp::{VqpCarrier, VqpConnection};
use crate::filter::{FilterAction, FilterCore, Ticket, Verdict};
use crate::message::{MAX_HEADER, Message};
use crate::one_bit::BitFilter;
use crate::table::{FilterTable, TableConfig};

/// A request to execute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request<'a, N> {
    /// The node that sent the request.
    pub node: N,
    /// The content of the request.
    pub body: &'a [u8],
    /// Whether the server executes the request exactly once. If false, the client has declared the
    /// request idempotent, and the server also executes copies. The program must not trust this
    /// declaration, and refuses requests that are not idempotent.
    pub exactly_once: bool,
}

/// The reply to a request, of bounded length.
#[derive(Debug)]
pub struct Reply {
    bytes: Vec<u8>,
    max: usize,
}

impl Reply {
    /// Appends bytes to the reply.
    ///
    /// # Errors
    /// `TooLong`. The reply is then unchanged.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), RpcError> {
        let len = self.bytes.len() + bytes.len();
        if len > self.max {
            return Err(RpcError::TooLong { len, max: self.max });
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }
}

/// The counters of a server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ServerStats {
    /// Requests that were executed.
    pub executed: u64,
    /// Copies of requests and of arbitrations, which were answered without executing anything.
    pub copies: u64,
    /// Grants.
    pub granted: u64,
    /// Messages that were refused, because the table was full or the node had no row.
    pub refused: u64,
    /// Corrupted or malformed messages, which were dropped.
    pub corrupted: u64,
}

/// A server. The server acts only inside its functions: the program polls the server.
#[derive(Debug)]
pub struct RpcServer<C: Carrier, F> {
    carrier: C,
    filter: F,
    stats: ServerStats,
    actions: VecDeque<FilterAction<C::Node, Vec<u8>>>,
    buffer: Vec<u8>,
}

impl<C: Carrier> RpcServer<C, FilterTable<C::Node, Vec<u8>>> {
    /// Creates a server with a filter table. See [`FilterTable::new`] for the incarnation.
    pub fn new(carrier: C, incarnation: u64, config: TableConfig) -> Self {
        RpcServer::with_filter(carrier, FilterTable::new(incarnation, config))
    }
}

impl RpcServer<VqpCarrier, BitFilter<Vec<u8>>> {
    /// Creates a server with one bit for each of `nodes` connections, with messages of at most
    /// `max_message` bytes.
    pub fn over_vqps(nodes: usize, max_message: usize) -> Self {
        RpcServer::with_filter(VqpCarrier::new(nodes, max_message), BitFilter::new(nodes))
    }

    /// Adds the connected vQP of a client that has restarted or lost its connection. The server
    /// first closes `earlier`, the client's earlier connection, so it executes no earlier request
    /// of the client after this call. If `earlier` has ended before and another client has its
    /// node, the other client keeps the node.
    ///
    /// # Errors
    /// The errors of [`VqpCarrier::connect`].
    pub fn reconnect(&mut self, earlier: VqpConnection, vqp: VirtualQp) -> Result<VqpConnection, RpcError> {
        self.carrier.disconnect(earlier);
        self.connect(vqp)
    }

    /// Adds a connected vQP and returns its connection. For a client that connects again, see
    /// [`RpcServer::reconnect`].
    ///
    /// # Errors
    /// The errors of [`VqpCarrier::connect`].
    pub fn connect(&mut self, vqp: VirtualQp) -> Result<VqpConnection, RpcError> {
        let connection = self.carrier.connect(vqp)?;
        self.filter.connect(connection.node());
        Ok(connection)
    }
}

impl<C: Carrier, F: FilterCore<C::Node, Vec<u8>>> RpcServer<C, F> {
    fn with_filter(carrier: C, filter: F) -> Self {
        let (actions, buffer) = (VecDeque::new(), Vec::new());
        RpcServer { carrier, filter, stats: ServerStats::default(), actions, buffer }
    }

    /// Returns the carrier.
    pub fn carrier(&self) -> &C {
        &self.carrier
    }

    /// Ends the server and returns its carrier, for a server of another incarnation.
    pub fn into_carrier(self) -> C {
        self.carrier
    }

    /// Returns the counters.
    pub fn stats(&self) -> ServerStats {
        self.stats
    }

    /// Handles the messages that have arrived. `execute` executes a request and writes its reply.
    /// The server calls `execute` once for each request that must be executed exactly once. Returns
    /// the number of executed requests.
    ///
    /// # Errors
    /// If the carrier's NIC failed.
    pub fn serve(
        &mut self,
        mut execute: impl FnMut(Request<'_, C::Node>, &mut Reply),
    ) -> Result<u64, RpcError> {
        let now = self.carrier.now();
        let (filter, stats, actions) = (&mut self.filter, &mut self.stats, &mut self.actions);
        let executed_before = stats.executed;
        let mut new = Vec::new();
        let polled = self.carrier.poll(&mut |node, event| {
            // A closed connection needs no handling, because a new connection begins with fresh
            // state.
            let Event::Message(bytes) = event else { return };
            let Ok(message) = Message::parse(bytes) else {
                stats.corrupted += 1;
                return;
            };
            match filter.receive(now, node, message.map(<[u8]>::to_vec), &mut new) {
                Verdict::Executed => stats.executed += 1,
                Verdict::Copy => stats.copies += 1,
                Verdict::Granted => stats.granted += 1,
                Verdict::Refused => stats.refused += 1,
                Verdict::Ignored => {}
            }
            actions.extend(new.drain(..));
        });
        let max = self.carrier.max_message().saturating_sub(MAX_HEADER);
        while let Some(action) = self.actions.pop_front() {
            match action {
                FilterAction::Send(to, message) => {
                    message.emit(&mut self.buffer);
                    self.carrier.send(to, &self.buffer);
                }
                FilterAction::Execute(ticket, body) => {
                    let exactly_once = !matches!(ticket, Ticket::Call { .. });
                    let mut reply = Reply { bytes: Vec::new(), max };
                    execute(Request { node: ticket.node(), body: &body, exactly_once }, &mut reply);
                    self.filter.complete(ticket, reply.bytes, &mut new);
                    self.actions.extend(new.drain(..));
                }
            }
        }
        polled?;
        Ok(self.stats.executed - executed_before)
    }
}
