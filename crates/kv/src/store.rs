//! The seam between the server, which speaks RESP, and the replicated store of this process.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use mitra_consensus::ProcessId;
use mitra_consensus::kv_store::{Change, Event, Request};
use mitra_consensus::replicated_store::Outcome;

use crate::memories::Memories;

/// The client request that waits for an outcome.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Waiter {
    /// The id of the client connection.
    pub(crate) connection: usize,
    /// The number of the request on the connection.
    pub(crate) request: u64,
    /// Whether the request belongs to the client's own session (`MITRA.*`). The reply to a read
    /// then contains the index of the log entry.
    pub(crate) in_session: bool,
}

/// The replicated store at one process. Each request and each change has exactly one outcome, which
/// [`Store::take_outcomes`] returns in any order.
///
/// The caller sleeps between two calls of [`Store::drive`] in three steps: it calls
/// [`Store::arm`], then `drive` again, because work may have arrived before `arm`, and sleeps only
/// if that call had none.
pub(crate) trait Store {
    /// Queues a read, or a request of a client's own session.
    fn request(&mut self, waiter: Waiter, request: Request);

    /// Queues a change of a client without a session.
    fn change(&mut self, waiter: Waiter, change: Change);

    /// Takes part in the protocol without sleeping, and submits what is queued. Returns whether
    /// there was work, apart from what was queued.
    ///
    /// # Errors
    /// `InvalidData` if the memories hold what this version cannot decode.
    fn drive(&mut self) -> io::Result<bool>;

    /// Returns the outcomes and the changes of keys since the last call. The changes are in the
    /// order in which the store applied them, and include those of other processes.
    fn take_outcomes(&mut self) -> (Vec<(Waiter, Outcome)>, Vec<Event>);

    /// The descriptors that become readable when there is work, once [`Store::arm`] was called.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;

    /// Lets the next work make a descriptor readable.
    fn arm(&mut self);

    /// Takes the events that made a descriptor readable.
    fn drain_events(&mut self);

    /// Returns after which time [`Store::drive`] is due without an event, at most `max`.
    fn next_timeout(&self, max: Duration) -> Duration;

    /// Returns the leader that this process follows.
    fn leader(&self) -> Option<ProcessId>;

    /// Returns whether this process is the leader and can commit changes.
    fn is_leader(&self) -> bool;

    /// Returns the index of the last applied log entry.
    fn applied(&self) -> u64;

    /// What this process knows of the memory nodes.
    fn memories(&self) -> &Memories;

    /// Returns the number of memory nodes, and of other processes, to which this process is
    /// connected.
    fn connected(&self) -> (usize, usize);
}
