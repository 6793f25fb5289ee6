//! Connecting later. A queue pair of a NIC enters RTR and RTS without its peer. Over several rails it needs the peer's connection data, and
//! a peer whose last connection has ended has none until its program resets it. The queue pair then enters RTR and RTS all the same,
//! continues to query the peer, and connects when the peer answers.

use std::task::Poll;
use std::time::{Duration, Instant};

use mitra_failover::ConnectInfo;
use mitra_verbs::{QpState, Result, RnrTimer};

use super::locked_state::LockedState;
use super::{MultiRailQp, Peer};
use crate::common::lock::lock;
use crate::rails::rendezvous::{Query, connection_data};

/// A connection to a peer that must reset its queue pair first.
pub(super) struct PendingConnection {
    query: Query,
    min_rnr_timer: RnrTimer,
    /// The time since which a send waits for the connection.
    send_waits_since: Option<Instant>,
    /// Whether the peer has no data that fit, or does not answer any more.
    failed: bool,
}

impl PendingConnection {
    /// Creates a connection that is made when the query is answered.
    pub(super) fn new(query: Query, min_rnr_timer: RnrTimer) -> PendingConnection {
        PendingConnection { query, min_rnr_timer, send_waits_since: None, failed: false }
    }

    /// Returns whether the send that waits for the connection fails: because there will be none, or because the send has waited for this time.
    pub(super) fn has_failed(&mut self, timeout: Duration) -> bool {
        self.failed || self.send_waits_since.get_or_insert_with(Instant::now).elapsed() > timeout
    }
}

impl MultiRailQp {
    /// Sends the query of a connection that waits for the peer at once, because the peer has just been reset. Does nothing if another thread
    /// holds the lock, because the query is sent again anyway.
    pub(in crate::rails) fn hasten_connection(&self) {
        if let Ok(mut locked) = self.locked.try_lock()
            && let Some(pending) = &mut locked.pending
        {
            pending.query.resend_soon();
        }
    }

    /// Connects the queue pair if it waits for the peer and the peer has answered. Never blocks.
    pub(super) fn continue_connecting(&self, locked: &mut LockedState) {
        let Some(pending) = &mut locked.pending else { return };
        if pending.failed {
            return;
        }
        self.domain.rendezvous.poll();
        let Poll::Ready(answer) = pending.query.poll() else { return };
        let min_rnr_timer = pending.min_rnr_timer;
        let connected = answer
            .and_then(connection_data)
            .and_then(|info| finish(locked, &info, min_rnr_timer).map(|()| Peer::of(&info)));
        match connected {
            Ok(peer) => {
                locked.pending = None;
                *lock(&self.peer) = peer;
            }
            Err(error) => {
                // The first send fails, as that of a NIC's queue pair without a peer.
                tracing::warn!("queue pair {}: not connected: {error}", self.qpn);
                locked.pending.iter_mut().for_each(|pending| pending.failed = true);
            }
        }
    }
}

/// Connects all rails, up to the state that the program has requested.
fn finish(locked: &mut LockedState, info: &ConnectInfo, min_rnr_timer: RnrTimer) -> Result<()> {
    locked.vqp.modify_to_rtr(info, min_rnr_timer)?;
    match locked.state {
        QpState::Rts => locked.vqp.modify_to_rts(locked.attr.rnr_retry.unwrap_or_default()),
        _ => Ok(()),
    }
}
