//! The connections of a coordinator to all memory nodes.

mod connect;
mod fences;

use std::sync::Arc;
use std::time::Duration;

use mitra_failover::{Domain, FailoverReport};
use mitra_handshake::Poller;
use mitra_txn::{Life, NodeId, Outcome, Request};

pub use self::connect::{ConnectError, LinksConfig};
pub use self::fences::Fenced;
use self::fences::Fences;
use crate::channels::{Channels, Counters, LostNode, PostError};

/// The connections of one life of a coordinator to all memory nodes.
///
/// They make progress only inside [`Links::poll`] and [`Links::wait`], one of which must be called
/// about every millisecond, also while nothing is posted: a node takes a coordinator that does not
/// poll for silent.
#[derive(Debug)]
pub struct Links {
    life: Life,
    channels: Channels,
    fences: Fences,
    poller: Poller,
}

impl Links {
    /// Connects to all memory nodes that are not declared dead, as the next incarnation of the
    /// coordinator: one above all those that a node has admitted or fenced. Blocks for
    /// [`LinksConfig::timeout`] at most, and some seconds for connections that are being made then.
    ///
    /// The domain should have completion channels ([`Domain::with_completion_channels`]). Without
    /// them, completions do not end [`Links::wait`].
    ///
    /// # Errors
    /// A [`ConnectError`]. A later call connects as another incarnation.
    pub fn connect(domain: &Arc<Domain>, config: &LinksConfig) -> Result<Links, ConnectError> {
        connect::connect(domain, config)
    }

    /// Returns the life that has connected.
    pub fn life(&self) -> Life {
        self.life
    }

    /// Takes the requests of a ticket, which are posted by the next poll. [`Links::poll`] returns
    /// their outcomes together when all have ended. The caller chooses the ticket's number, which
    /// names no other requests that have not ended.
    ///
    /// The requests to one node are executed in their order, and none behind one that was not, or
    /// perhaps not, executed, unless it was under way already. Requests to different nodes, and
    /// those of different tickets, have no order.
    ///
    /// # Errors
    /// A [`PostError`]; no request is posted then.
    pub fn post(&mut self, ticket: u64, requests: Vec<Request>) -> Result<(), PostError> {
        self.channels.post(ticket, requests)
    }

    /// Posts what waits, drives all connections and fences, and appends the tickets whose requests
    /// have all ended to `done`, with the outcomes in the order of the requests.
    ///
    /// # Errors
    /// [`LostNode`], now and from now on: the life is over. Tickets that have not ended never do.
    pub fn poll(&mut self, done: &mut Vec<(u64, Vec<Outcome>)>) -> Result<(), LostNode> {
        if self.channels.lost().is_none() {
            self.fences.poll();
        }
        self.channels.poll(done)
    }

    /// Polls, and if no ticket has ended, blocks until a completion arrives, for at most `max`,
    /// which should be about a millisecond. The caller polls then.
    ///
    /// # Errors
    /// As [`Links::poll`].
    pub fn wait(&mut self, done: &mut Vec<(u64, Vec<Outcome>)>, max: Duration) -> Result<(), LostNode> {
        let before = done.len();
        self.channels.arm();
        self.poll(done)?;
        if done.len() == before {
            self.poller.wait(max);
        }
        Ok(())
    }

    /// Returns why the life is over; `None` while it is not.
    pub fn lost(&self) -> Option<&LostNode> {
        self.channels.lost()
    }

    /// Begins to fence a life on all memory nodes that are not declared dead, in the background.
    /// Polls drive it, and [`Links::take_fenced`] returns the result. A node that is not reached is
    /// asked again and again.
    pub fn fence(&mut self, life: Life) {
        self.fences.begin(self.life, life);
    }

    /// Returns a fence that has ended.
    pub fn take_fenced(&mut self) -> Option<Fenced> {
        self.fences.take_ended()
    }

    /// Returns what the connections have carried.
    pub fn counters(&self) -> Counters {
        self.channels.counters()
    }

    /// Returns the report of the last failover of the connection to a node.
    pub fn last_failover(&self, node: NodeId) -> Option<FailoverReport> {
        self.channels.last_failover(node)
    }
}
