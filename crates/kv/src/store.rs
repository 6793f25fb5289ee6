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
/// The caller may sleep after a call of [`Store::handle_events`], for at most
/// [`Store::next_timeout`].
pub(crate) trait Store {
    /// Queues a read, or a request of a client's own session.
    fn request(&mut self, waiter: Waiter, request: Request);

    /// Queues a change of a client without a session.
    fn change(&mut self, waiter: Waiter, change: Change);

    /// Takes part in the protocol, and submits what is queued, for a caller that does not sleep
    /// before its next call. Returns whether there was work, apart from what was queued.
    ///
    /// # Errors
    /// `InvalidData` if the memories hold what this version cannot decode.
    fn poll(&mut self) -> io::Result<bool>;

    /// As [`Store::poll`], but handles only what has raised an event or is due.
    ///
    /// # Errors
    /// As [`Store::poll`].
    fn handle_events(&mut self) -> io::Result<bool>;

    /// Returns the outcomes and the changes of keys since the last call. The changes are in the
    /// order in which the store applied them, and include those of other processes.
    fn take_outcomes(&mut self) -> (Vec<(Waiter, Outcome)>, Vec<Event>);

    /// The descriptor that becomes readable when [`Store::handle_events`] has something to do.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Returns after which time [`Store::handle_events`] is due without an event, at most `max`.
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
