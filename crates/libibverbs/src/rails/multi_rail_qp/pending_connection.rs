//! A connection that is made after RTR. A NIC's queue pair enters RTR and RTS whether or not its
//! peer is ready. A queue pair over several rails needs the peer's connection data, and a peer
//! whose last connection has ended has none until its program resets its queue pair. Until then,
//! the queue pair is in RTR or RTS without a connection: it queries the peer, and connects when the
//! peer answers.

use std::task::Poll;
use std::time::{Duration, Instant};

use mitra_failover::ConnectInfo;
use mitra_verbs::{Result, RnrTimer};

use crate::rails::rendezvous::{Query, Terms, connection_info};

pub(super) struct PendingConnection {
    pub(super) query: Query,
    pub(super) min_rnr_timer: RnrTimer,
    /// The time since which a send waits for the connection.
    send_waits_since: Option<Instant>,
    /// Whether the peer has no data that fit, or no longer answers.
    pub(super) failed: bool,
}

impl PendingConnection {
    pub(super) fn new(query: Query, min_rnr_timer: RnrTimer) -> PendingConnection {
        PendingConnection { query, min_rnr_timer, send_waits_since: None, failed: false }
    }

    /// Returns the peer's connection data if the peer has answered. Otherwise sends the query again
    /// if that is due. Never blocks, and returns `Pending` once the connection has failed.
    ///
    /// # Errors
    /// `Invalid` if the peer has no such queue pair, or does not answer; `Mismatch` if its terms
    /// are not `own`.
    pub(super) fn poll(&mut self, own: &Terms) -> Poll<Result<ConnectInfo>> {
        if self.failed {
            return Poll::Pending;
        }
        self.query.poll().map(|answer| answer.and_then(|answer| connection_info(answer, own)))
    }

    /// Returns whether a waiting send fails, because there will be no connection or because it has
    /// waited for longer than `timeout`.
    pub(super) fn has_failed(&mut self, timeout: Duration) -> bool {
        self.failed || self.send_waits_since.get_or_insert_with(Instant::now).elapsed() > timeout
    }
}
