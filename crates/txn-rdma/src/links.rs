//! The connections of a coordinator to all memory nodes.

mod connect;
mod fences;

use std::sync::Arc;
use std::time::Duration;

use mitra_driver::Poller;
use mitra_failover::{Domain, FailoverReport};
use mitra_txn::{Life, NodeId, Outcome, Request};

pub use self::connect::{ConnectError, LinksConfig};
pub use self::fences::Fenced;
use self::fences::Fences;
use crate::channels::{Channels, Counters, LostNode, PostError};

/// The connections of one life of a coordinator to all memory nodes.
///
/// They make progress only inside [`Links::poll`] and [`Links::wait`]. The caller must call one of
/// these methods about every millisecond, even if nothing is posted. Otherwise a node considers the
/// coordinator silent.
#[derive(Debug)]
pub struct Links {
    life: Life,
    channels: Channels,
    fences: Fences,
    poller: Poller,
}

impl Links {
    /// Connects to all memory nodes that are not declared dead, as the coordinator's next
    /// incarnation: one above the highest incarnation that a node has admitted or fenced. Blocks
    /// for at most [`LinksConfig::timeout`], and some seconds more for connections in progress.
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

    /// Takes the requests of a ticket. The next poll posts them. [`Links::poll`] returns their
    /// outcomes together when all have ended. The caller chooses the ticket's number, which no
    /// unfinished ticket may have.
    ///
    /// A node executes the requests of a ticket in their order. After a request that is in doubt or
    /// was not executed, the node executes only requests that are already in flight. Requests to
    /// different nodes, and requests of different tickets, have no order.
    ///
    /// # Errors
    /// A [`PostError`]. No request is posted then.
    pub fn post(&mut self, ticket: u64, requests: Vec<Request>) -> Result<(), PostError> {
        self.channels.post(ticket, requests)
    }

    /// Posts the waiting requests, and drives all connections and fences. Appends to `done` the
    /// tickets whose requests have all ended, with the outcomes in the order of the requests.
    ///
    /// # Errors
    /// [`LostNode`], now and in every later call: the life is over. Unfinished tickets never end.
    pub fn poll(&mut self, done: &mut Vec<(u64, Vec<Outcome>)>) -> Result<(), LostNode> {
        if self.channels.lost().is_none() {
            self.fences.poll();
        }
        self.channels.poll(done)
    }

    /// Polls. If no ticket has ended, blocks until a completion arrives, for at most `max`. The
    /// caller then polls again. `max` should be about a millisecond.
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
    /// Polls drive the fence, and [`Links::take_fenced`] returns the result. Unreachable nodes are
    /// asked again until they answer.
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
