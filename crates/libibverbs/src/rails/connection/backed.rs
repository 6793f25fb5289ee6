//! A queue pair with a shared backup. Before it is connected, it belongs to no backup, because its peer is unknown.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mitra_failover::{
    BackedQp, BackedQpInfo, CloseReason, Completion, Config, Outcome, RemoteRegion, SharedReceiveQueue,
    UnresolvedError,
};
use mitra_verbs::{
    Access, AsyncEvent, Error, Gid, PostError, Qpn, RecvWr, Result, RnrTimer, SendWr, WcStatus,
};

use super::registry::Backup;
use crate::rails::protection_domain::MultiRailPd;
use crate::rails::rendezvous::Announcement;

const NOT_CONNECTED: Error = Error::Invalid("this queue pair is not connected yet");
const CONNECTED: Error = Error::Invalid("this queue pair is connected already, or has closed");

/// A queue pair that has a shared backup when it is connected.
pub(in crate::rails) struct BackedConnection {
    pd: Arc<MultiRailPd>,
    config: Config,
    srq: Option<Arc<SharedReceiveQueue>>,
    /// The backup, and the queue pair with it. An unconnected one may still be replaced.
    member: Option<(Arc<Backup>, BackedQp)>,
    is_connected: bool,
    /// The time of connecting, until the queue pair has a rail.
    connecting_since: Option<Instant>,
    /// Whether the peer did not connect its end in time.
    is_unreachable: bool,
    is_closed: bool,
    /// The receives that were posted before the queue pair was connected.
    recvs: VecDeque<RecvWr>,
}

impl BackedConnection {
    /// Creates an unconnected one.
    pub(in crate::rails) fn new(
        pd: &Arc<MultiRailPd>,
        config: Config,
        srq: Option<&Arc<SharedReceiveQueue>>,
    ) -> BackedConnection {
        BackedConnection {
            pd: Arc::clone(pd),
            config,
            srq: srq.cloned(),
            member: None,
            is_connected: false,
            connecting_since: None,
            is_unreachable: false,
            is_closed: false,
            recvs: VecDeque::new(),
        }
    }

    /// Returns an unconnected one with the same parameters, which permits its peer nothing.
    pub(super) fn replacement(&self) -> BackedConnection {
        let config = Config { access: Access::empty(), ..self.config };
        BackedConnection::new(&self.pd, config, self.srq.as_ref())
    }

    /// Returns what the end tells peers that want to connect to it.
    pub(super) fn announcement(&self) -> Announcement {
        Announcement { pd: self.pd.token(), gids: self.pd.failover().gids() }
    }

    pub(in crate::rails) fn pd(&self) -> &Arc<MultiRailPd> {
        &self.pd
    }

    /// Makes the queue pair one of this backup, unless it is one. The backup is connected.
    ///
    /// # Errors
    /// `Invalid` if the queue pair is connected with another backup or closed; the errors of [`mitra_failover::SharedBackup::queue_pair`].
    pub(in crate::rails) fn join(&mut self, backup: &Arc<Backup>) -> Result<BackedQpInfo> {
        let is_member = |(of, qp): &(Arc<Backup>, BackedQp)| {
            Arc::ptr_eq(of, backup) && (self.is_connected || qp.close_reason().is_none())
        };
        if let Some((_, qp)) = self.member.as_ref().filter(|member| is_member(member)) {
            return Ok(qp.local_info());
        }
        if self.is_connected || self.is_closed {
            return Err(CONNECTED);
        }
        self.member = None;
        let qp = match &self.srq {
            Some(queue) => backup.shared().queue_pair_with_shared_receives(self.config, queue)?,
            None => backup.shared().queue_pair(self.config)?,
        };
        let info = qp.local_info();
        self.member = Some((Arc::clone(backup), qp));
        Ok(info)
    }

    /// Connects the queue pair for receiving.
    ///
    /// # Errors
    /// `Invalid` if it is connected or closed; those of [`BackedConnection::join`], [`BackedQp::modify_to_rtr`] and [`BackedQp::post_recv`].
    pub(in crate::rails) fn connect(
        &mut self,
        backup: &Arc<Backup>,
        peer: &BackedQpInfo,
        min_rnr_timer: RnrTimer,
    ) -> Result<()> {
        if self.is_connected || self.is_closed {
            return Err(CONNECTED);
        }
        self.join(backup)?;
        let Some((_, qp)) = &mut self.member else { return Err(NOT_CONNECTED) };
        qp.modify_to_rtr(peer, min_rnr_timer)?;
        self.is_connected = true;
        self.connecting_since = Some(Instant::now());
        self.recvs.drain(..).try_for_each(|wr| qp.post_recv(wr))
    }

    /// Returns the queue pair, if it is connected.
    fn connected(&self) -> Option<&BackedQp> {
        self.member.as_ref().filter(|_| self.is_connected).map(|(_, qp)| qp)
    }

    fn connected_mut(&mut self) -> Option<&mut BackedQp> {
        self.member.as_mut().filter(|_| self.is_connected).map(|(_, qp)| qp)
    }

    pub(super) fn config(&self) -> Config {
        self.config
    }

    pub(in crate::rails) fn close_reason(&self) -> Option<CloseReason> {
        match self.connected() {
            Some(_) if self.is_unreachable => Some(CloseReason::PeerUnreachable),
            Some(qp) => qp.close_reason(),
            None => self.is_closed.then_some(CloseReason::Closed),
        }
    }

    pub(super) fn peer_gids(&self) -> Vec<Gid> {
        let member = self.member.as_ref().filter(|_| self.is_connected);
        member.map_or_else(Vec::new, |(backup, _)| backup.shared().peer_gids())
    }

    pub(super) fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        self.give_up_unconnected_peer();
        let is_unreachable = self.is_unreachable;
        if let Some(qp) = self.connected_mut() {
            qp.poll(out);
        } else if self.is_closed {
            let flushed = |wr: RecvWr| Completion::failed_receive(wr.wr_id, 0, WcStatus::Flushed);
            out.extend(self.recvs.drain(..).map(flushed));
        }
        if is_unreachable {
            let closed = Outcome::Unresolved(UnresolvedError::Undecided(CloseReason::Closed));
            let unreachable = Outcome::Unresolved(UnresolvedError::Undecided(CloseReason::PeerUnreachable));
            let ended = out[before..].iter_mut().filter(|completion| completion.outcome == closed);
            ended.for_each(|completion| completion.outcome = unreachable);
        }
        out.len() - before
    }

    /// Closes the queue pair if the peer has not connected its end within the time for the first contact, and requests wait for that.
    fn give_up_unconnected_peer(&mut self) {
        let Some(since) = self.connecting_since else { return };
        let timeout: Duration = self.config.detector.first_contact_timeout;
        let Some(qp) = self.connected_mut() else { return };
        if qp.has_rail() || qp.close_reason().is_some() {
            self.connecting_since = None;
        } else if qp.outstanding() > 0 && since.elapsed() > timeout {
            qp.close();
            (self.connecting_since, self.is_unreachable) = (None, true);
        }
    }

    pub(super) fn progress(&mut self) {
        if let Some((_, qp)) = &mut self.member {
            qp.progress();
        }
    }

    pub(super) fn arm(&self) -> Result<()> {
        self.connected().map_or(Ok(()), BackedQp::arm)
    }

    pub(super) fn shutdown(&mut self) {
        self.is_closed = true;
        match self.connected_mut() {
            Some(qp) => qp.close(),
            None => self.member = None,
        }
    }

    /// Closes the queue pair and destroys it on the NICs. Its completions can be polled no more.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        (self.member, self.is_connected) = (None, false);
        self.recvs.clear();
    }

    pub(super) fn set_access(&mut self, access: Access) -> Result<()> {
        self.config.access = access;
        self.member.as_mut().map_or(Ok(()), |(_, qp)| qp.set_access(access))
    }

    pub(super) fn modify_to_rts(&mut self, rnr_retry: u8) -> Result<()> {
        self.connected_mut().ok_or(NOT_CONNECTED)?.modify_to_rts(rnr_retry)
    }

    pub(super) fn take_established(&mut self) -> bool {
        self.connected_mut().is_some_and(BackedQp::take_established)
    }

    pub(super) fn resume(&mut self) {
        if let Some(qp) = self.connected_mut() {
            qp.resume();
        }
    }

    pub(super) fn qp_error_event(&self) -> Option<AsyncEvent> {
        self.connected().and_then(BackedQp::qp_error_event)
    }

    pub(super) fn waiting_messages(&self) -> usize {
        self.connected().map_or(0, BackedQp::waiting_messages)
    }

    pub(super) fn outstanding(&self) -> usize {
        self.connected().map_or(0, BackedQp::outstanding)
    }

    pub(super) fn import(&mut self, region: &RemoteRegion) -> Result<()> {
        self.connected_mut().ok_or(NOT_CONNECTED)?.import(region)
    }

    pub(super) fn check_send(&self, wr: &SendWr) -> Result<()> {
        self.pd.failover().check_send(wr, &self.config)
    }

    pub(super) fn post_send_all(&mut self, wrs: impl IntoIterator<Item = SendWr>) -> Result<(), PostError> {
        match self.connected_mut() {
            Some(qp) => qp.post_send_all(wrs),
            None => Err(PostError { index: 0, error: NOT_CONNECTED }),
        }
    }

    pub(super) fn post_recv(&mut self, wr: RecvWr) -> Result<()> {
        if let Some(qp) = self.connected_mut() {
            return qp.post_recv(wr);
        }
        if self.is_closed {
            return Err(CONNECTED);
        }
        let (depth, sges) = (self.config.recv_wrs, wr.sges.len() as u64);
        if self.recvs.len() >= depth as usize {
            let qpn = Qpn::new(0); // MultiRailQp::post_recv puts its number in
            return Err(Error::QueueFull { queue: "receive queue", qpn, depth });
        }
        let limit = u64::from(self.config.recv_sges);
        if sges > limit {
            return Err(Error::Limit { attribute: "scatter entries", requested: sges, limit });
        }
        self.recvs.push_back(wr);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
