//! Connecting a queue pair with a shared backup ([`crate::rails::connection::registry`]).

use std::sync::Arc;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use mitra_verbs::{Error, Gid, QpState, Qpn, Result, RnrTimer};

use super::locked_state::LockedState;
use super::pending_connection::PendingConnection;
use super::{MultiRailQp, Peer};
use crate::common::lock::lock;
use crate::common::random::random;
use crate::rails::connection::registry::{Backup, PairId};
use crate::rails::protection_domain::MultiRailPd;
use crate::rails::rendezvous::{self, Announcement, MemberAnswer, Offer, Query, Subject};

/// The number of backups that may be gone at the peer before a connection fails.
const MAX_GONE: u32 = 16;

impl MultiRailQp {
    /// Returns whether the queue pair has a shared backup when it is connected.
    pub(super) fn has_shared_backup(&self) -> bool {
        lock(&self.locked).vqp.backed().is_some()
    }

    /// Connects to the peer for receiving, and waits for that, but not until the peer resets its queue pair.
    ///
    /// # Errors
    /// `Invalid` if the peer does not answer, has no such queue pair, or its data do not fit; `Unsupported` if the peer is this queue pair; the error of a NIC.
    pub(super) fn connect_backed(&self, gid: Gid, qpn: Qpn, min_rnr_timer: RnrTimer) -> Result<Option<Peer>> {
        let query =
            Query::with_search(&self.domain.rendezvous, random()?, gid, Subject::Connection(qpn), random()?);
        let mut pending = PendingConnection::new(query, min_rnr_timer);
        pending.is_awaited = true;
        lock(&self.locked).pending = Some(pending);
        loop {
            self.domain.rendezvous.poll();
            let mut locked = lock(&self.locked);
            let polled = self.poll_connecting(&mut locked, qpn);
            let Some(pending) = &mut locked.pending else {
                return Err(Error::Invalid(
                    "the queue pair was destroyed or reset while it was being connected",
                ));
            };
            if polled.is_pending() && pending.awaits_reset() {
                pending.is_awaited = false;
                return Ok(None);
            }
            if let Poll::Ready(connected) = polled {
                locked.pending = None;
                return connected.map(Some);
            }
            drop(locked);
            thread::sleep(Duration::from_micros(20));
        }
    }

    /// Connects the queue pair if it waits for the peer and the peer has answered, up to the state that the program has requested.
    pub(super) fn continue_connecting_backed(&self, locked: &mut LockedState) {
        let qpn = locked.attr.dest_qpn.unwrap_or(Qpn::new(0));
        let Poll::Ready(connected) = self.poll_connecting(locked, qpn) else { return };
        let sends = matches!(locked.state, QpState::Rts | QpState::Sqe);
        let rnr_retry = locked.attr.rnr_retry.unwrap_or_default();
        let connected = connected.and_then(|peer| {
            if sends { locked.vqp.modify_to_rts(rnr_retry).map(|()| peer) } else { Ok(peer) }
        });
        match connected {
            Ok(peer) => {
                locked.pending = None;
                *lock(&self.peer) = peer;
            }
            Err(error) => self.fail_connecting(locked, &error),
        }
    }

    /// Handles the peer's answer, if there is one. Returns the peer when the queue pair is connected. Never blocks.
    ///
    /// # Errors
    /// Those of [`MultiRailQp::connect_backed`].
    fn poll_connecting(&self, locked: &mut LockedState, qpn: Qpn) -> Poll<Result<Peer>> {
        let Some(pending) = &mut locked.pending else { return Poll::Pending };
        let Poll::Ready(answer) = pending.poll_answer() else { return Poll::Pending };
        let offered = pending.backup();
        let next = answer.and_then(|answer| match offered {
            None => self.offer_backup(locked, qpn, &rendezvous::announcement(answer)?).map(|()| None),
            Some(backup) => self.handle_member(locked, qpn, &backup, &rendezvous::existing(answer)?),
        });
        next.map_or_else(
            |error| Poll::Ready(Err(error)),
            |peer| peer.map_or(Poll::Pending, |peer| Poll::Ready(Ok(peer))),
        )
    }

    /// Queries the peer for its queue pair with the shared backup of the two protection domains.
    fn offer_backup(&self, locked: &mut LockedState, qpn: Qpn, peer: &Announcement) -> Result<()> {
        let pd = self.shared_backup_pd(locked)?;
        let own = pd.token();
        if peer.pd == own && qpn == self.qpn {
            return Err(Error::Unsupported(
                "a queue pair that is connected to itself with --shared-backups; run without that option, or connect two queue pairs",
            ));
        }
        let is_second = peer.pd == own && qpn < self.qpn;
        let backup = self.domain.backups.open(&pd, PairId { own, peer: peer.pd, is_second })?;
        let subject = Subject::Member { qpn, offer: Box::new(backup.offer()?) };
        let query = Query::new(&self.domain.rendezvous, random()?, peer.gids.clone(), subject);
        if let Some(pending) = &mut locked.pending {
            pending.offer(query, backup);
        }
        Ok(())
    }

    /// Connects the queue pair to the peer's in an answer. If the peer's end of the backup is gone, offers another one.
    fn handle_member(
        &self,
        locked: &mut LockedState,
        qpn: Qpn,
        backup: &Arc<Backup>,
        answer: &[u8],
    ) -> Result<Option<Peer>> {
        let min_rnr_timer = locked.pending.as_ref().map(|pending| pending.min_rnr_timer);
        if let MemberAnswer::Member { offer, member } = MemberAnswer::decode(answer)?
            && let Some(min_rnr_timer) = min_rnr_timer
            && backup.connect(offer.id, &offer.info)?
        {
            let backed = locked.vqp.backed().ok_or(Error::Invalid("the queue pair has no shared backup"))?;
            backed.connect(backup, &member, min_rnr_timer)?;
            return Ok(Some(Peer::Connected(backup.shared().peer_gids())));
        }
        backup.set_gone();
        if let Some(pending) = &mut locked.pending {
            pending.gone += 1;
            if pending.gone > MAX_GONE {
                return Err(Error::Invalid("the peer's shared backups close as soon as they are made"));
            }
        }
        let gids = lock(&self.peer).gids().to_vec();
        let gids = if backup.shared().peer_gids().is_empty() { gids } else { backup.shared().peer_gids() };
        let peer = Announcement { pd: backup.pair().peer, gids };
        self.offer_backup(locked, qpn, &peer).map(|()| None)
    }

    fn shared_backup_pd(&self, locked: &mut LockedState) -> Result<Arc<MultiRailPd>> {
        let backed = locked.vqp.backed().map(|backed| Arc::clone(backed.pd()));
        backed.ok_or(Error::Invalid("the queue pair has no shared backup"))
    }

    /// Joins the backup that a peer offers, and returns the answer to the peer. `None` if the queue pair has no shared backup, is connected with another
    /// one, or cannot be connected.
    pub(in crate::rails) fn join_offered_backup(&self, offer: &Offer) -> Option<Vec<u8>> {
        let mut locked = lock(&self.locked);
        let pd = self.shared_backup_pd(&mut locked).ok()?;
        let log = |error| tracing::warn!("queue pair {}: the peer cannot connect: {error}", self.qpn);
        let Some(backup) = self.domain.backups.accept(&pd, offer).map_err(log).ok()? else {
            return Some(MemberAnswer::Gone.encode());
        };
        let member = locked.vqp.backed()?.join(&backup).map_err(log).ok()?;
        let offer = backup.offer().map_err(log).ok()?;
        Some(MemberAnswer::Member { offer: Box::new(offer), member }.encode())
    }
}
