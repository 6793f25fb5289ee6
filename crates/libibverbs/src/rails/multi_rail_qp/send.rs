//! Posting sends.
//!
//! A request that names a memory region of the peer may have to be replayed on any rail. It can
//! therefore be posted only when the keys of the region on all rails are known. The first request
//! with a new rkey is deferred until the peer has been queried for the keys, and all requests after
//! it are deferred too. `ibv_post_send` does not wait for the answer. Polls of the completion queue
//! and the progress thread post the deferred requests, in order, when the answer has arrived.
//! Requests are also deferred while the queue pair waits for its connection. Requests of UC are
//! deferred until the peer was heard ([`super::first_contact`]).

use std::time::Instant;

use mitra_failover::{CloseReason, RemoteRegion};
use mitra_verbs::{
    Data, Error, Key, PostError, QpState, QpType, Qpn, RemoteAddr, Result, SendFlags, SendOp, SendWr,
    WcStatus,
};

use super::MultiRailQp;
use super::first_contact::FirstContact;
use super::locked_state::LockedState;
use crate::common::lock::lock;
use crate::common::random::random;
use crate::rails::peer_region_keys::{Lookup, PeerObject};
use crate::rails::rendezvous::{Query, Subject};

impl MultiRailQp {
    /// Posts all requests, or none. Never waits for the peer.
    ///
    /// # Errors
    /// The index and the error of the first request that is refused.
    pub(super) fn post_all_or_none(&self, locked: &mut LockedState, wrs: &[SendWr]) -> Result<(), PostError> {
        if matches!(self.params.init.qp_type, QpType::XrcRecv(_)) && !wrs.is_empty() {
            let error =
                Error::Invalid("an XRC receive queue pair sends nothing; post to an XRC send queue pair");
            return Err(PostError { index: 0, error });
        }
        // The queue pair is connected to itself. `sender` would bind the window, but requests
        // arrive at `vqp`, so the window would grant them nothing.
        if locked.sender.is_some()
            && let Some(index) = wrs.iter().position(|wr| wr.op.is_local())
        {
            let error = Error::Unsupported(
                "memory windows on a queue pair that is connected to itself, with several rails; connect two queue pairs",
            );
            return Err(PostError { index, error });
        }
        let has_ended = match locked.vqp.close_reason() {
            Some(CloseReason::PeerClosed) => self.is_unreliable(),
            reason => reason.is_some() || locked.sender().is_halted(),
        };
        if has_ended && matches!(locked.state, QpState::Rts | QpState::Sqd) {
            // The last post has found an error, which no poll has read.
            self.collect(locked); // completes the earlier requests, and changes the state
        }
        match locked.state {
            QpState::Rts | QpState::Sqd => {}
            QpState::Err | QpState::Sqe => {
                // A request that is posted in an error state is flushed (IBTA volume 1, 10.3.1.5).
                self.flush_deferred(locked);
                wrs.iter().for_each(|wr| self.complete_send(wr, WcStatus::Flushed));
                return Ok(());
            }
            state => {
                let (call, needs) = ("post_send", "RTS or SQD");
                let error = Error::WrongState { call, qpn: self.qpn, needs, state };
                return Err(PostError { index: 0, error });
            }
        }
        if let Some(peer_closed) = &locked.peer_closed {
            let (used, depth) = (peer_closed.sends.len(), self.params.init.cap.send_wrs);
            for index in (0..wrs.len()).filter(|_| !self.is_unreliable()) {
                self.check_room("send queue", used + index, depth)
                    .map_err(|error| PostError { index, error })?;
            }
            locked.deferred.extend(wrs.iter().cloned());
            self.withhold_deferred(locked);
            return Ok(());
        }
        if locked.deferred.is_empty()
            && locked.pending.is_none()
            && locked.first_contact.is_none()
            // The error is delivered only after the operations before it have been replayed.
            // Requests that are posted until then are deferred, and flushed behind the error.
            && !locked.sender().is_halted()
            && wrs.iter().all(|wr| locked.region_keys.can_post(wr) && !wr.is_short_atomic())
        {
            let wrs = wrs.iter().map(|wr| self.with_default_flags(wr));
            return locked.sender().post_send_all(wrs);
        }
        self.defer(locked, wrs)?;
        self.post_deferred(locked);
        Ok(())
    }

    /// Returns a copy of the request, which is signalled if the queue pair signals all requests.
    fn with_default_flags(&self, wr: &SendWr) -> SendWr {
        let mut wr = wr.clone();
        if self.params.init.sq_sig_all {
            wr.flags |= SendFlags::SIGNALED;
        }
        wr
    }

    /// # Errors
    /// `QueueFull` if `used` is at least `depth`.
    pub(super) fn check_room(&self, queue: &'static str, used: usize, depth: u32) -> Result<()> {
        if used >= depth as usize {
            return Err(Error::QueueFull { queue, qpn: self.qpn, depth });
        }
        Ok(())
    }

    /// Defers all requests, or none, and queries the peer for the keys that they need. If many
    /// queries are outstanding, the remaining keys are queried later.
    ///
    /// # Errors
    /// The index and the error of the first request that is refused.
    fn defer(&self, locked: &mut LockedState, wrs: &[SendWr]) -> Result<(), PostError> {
        let depth = locked.sender().config().send_wrs;
        let used = locked.sender().outstanding() + locked.deferred.len();
        for (index, wr) in wrs.iter().enumerate() {
            self.check_room("send queue", used + index, depth)
                .and_then(|()| if wr.is_short_atomic() { Ok(()) } else { locked.sender().check_send(wr) })
                .map_err(|error| PostError { index, error })?;
        }
        self.prefetch_regions(locked, wrs.iter()).map_err(|error| PostError { index: 0, error })?;
        locked.deferred.extend(wrs.iter().map(|wr| self.with_default_flags(wr)));
        Ok(())
    }

    /// Queries the peer for the regions that requests name, in order, until [`may_prefetch`] is
    /// false.
    ///
    /// # Errors
    /// `System` if the system's random source cannot be read.
    ///
    /// [`may_prefetch`]: crate::rails::peer_region_keys::RegionKeys::may_prefetch
    fn prefetch_regions<'a>(
        &self,
        locked: &mut LockedState,
        mut wrs: impl Iterator<Item = &'a SendWr>,
    ) -> Result<()> {
        wrs.try_for_each(|wr| {
            if locked.region_keys.may_prefetch() { self.request_region(locked, wr) } else { Ok(()) }
        })
    }

    /// Queries the peer for the region and the shared receive queue that a request names, unless
    /// they are known or already queried.
    fn request_region(&self, locked: &mut LockedState, wr: &SendWr) -> Result<()> {
        for object in locked.region_keys.unrequested(wr) {
            let query = self.query_peer(locked, |qpn| object.subject(qpn))?;
            locked.region_keys.queries.insert(object, query);
        }
        Ok(())
    }

    /// Queries the peer's device, and does not wait for the answer. `about` makes the subject from
    /// the number of the peer's queue pair.
    fn query_peer(&self, locked: &LockedState, about: impl FnOnce(Qpn) -> Subject) -> Result<Query> {
        self.follow_peer(locked);
        // A queue pair in RTS has a destination, so the default is never used.
        let subject = about(locked.attr.dest_qpn.unwrap_or(Qpn::new(0)));
        let peer = lock(&self.peer).gids().to_vec();
        Ok(Query::new(&self.domain.rendezvous, random()?, (peer, locked.peer_endpoint), subject, None))
    }

    /// Queries the peer for the region that the oldest deferred request names, and prefetches the
    /// regions of the requests after it.
    fn request_next_regions(&self, locked: &mut LockedState) -> Result<()> {
        let deferred = std::mem::take(&mut locked.deferred);
        let front = deferred.front().map_or(Ok(()), |wr| self.request_region(locked, wr));
        let requested = front.and_then(|()| self.prefetch_regions(locked, deferred.iter()));
        locked.deferred = deferred;
        requested
    }

    /// Posts the deferred requests in order, up to the first request whose keys are still unknown.
    /// The deferred requests end without being posted if the oldest request fails, or in the cases
    /// of `end_deferred`. Never blocks.
    pub(super) fn post_deferred(&self, locked: &mut LockedState) {
        if locked.deferred.is_empty() {
            return;
        }
        if self.end_deferred(locked) || locked.state == QpState::Sqd {
            return; // in SQD no request begins, so none fails
        }
        if let Some(pending) = &mut locked.pending {
            if !pending.has_failed(self.domain.rendezvous.timeout()) {
                return;
            }
            return if self.is_unreliable() {
                self.lose_deferred(locked);
            } else {
                self.fail_front(locked, WcStatus::RetryExceeded);
            };
        }
        self.domain.rendezvous.poll();
        // A poll sends a query again if that is due.
        locked.region_keys.queries.values_mut().for_each(|query| _ = query.poll());
        loop {
            let Ok(admitted) = self.admit_deferred(locked) else {
                return self.fail_front(locked, WcStatus::LocalQpOperation);
            };
            let can_post = |wr: &&SendWr| locked.region_keys.can_post(wr) && !wr.is_short_atomic();
            let ready = locked.deferred.iter().take(admitted).take_while(can_post).count();
            if post_oldest(locked, ready).is_err() {
                // All requests were checked when they were deferred, so the virtual queue pair has
                // failed since then.
                return self.fail_front(locked, WcStatus::LocalQpOperation);
            }
            if ready == admitted {
                return; // the others wait for the peer
            }
            if locked.deferred.front().is_some_and(SendWr::is_short_atomic) {
                let status =
                    if self.is_unreliable() { WcStatus::LocalQpOperation } else { WcStatus::LocalLength };
                return self.fail_front(locked, status);
            }
            let missing = locked.deferred.front().and_then(|wr| locked.region_keys.missing(wr));
            let Some(object) = missing else { return };
            let is_silent = locked.first_contact.as_ref().is_some_and(FirstContact::is_silent);
            match locked.region_keys.lookup(object) {
                Lookup::Pending if !is_silent => return,
                Lookup::Found(region) => {
                    if locked.sender().import(&region).is_err() {
                        return self.fail_front(locked, WcStatus::BadResponse);
                    }
                    locked.region_keys.set_imported(object);
                }
                Lookup::FoundQueue => locked.region_keys.set_imported(object),
                Lookup::Failed(status) if !self.is_unreliable() => return self.fail_front(locked, status),
                Lookup::NotQueried if !is_silent => {
                    if self.request_next_regions(locked).is_err() {
                        return self.fail_front(locked, WcStatus::LocalQpOperation);
                    }
                    return;
                }
                Lookup::NotFound | Lookup::Failed(_) | Lookup::Pending | Lookup::NotQueried => {
                    // The request is posted with an unknown key, so that the peer's NIC refuses it
                    // (NAK: remote access error) and reports an event to the peer's program. In UC,
                    // the peer's NIC drops it.
                    let key = match object {
                        PeerObject::Region(key) => key,
                        PeerObject::SharedReceiveQueue(_) => replace_by_refused_request(locked),
                    };
                    let region = RemoteRegion::with_unknown_key(key, self.domain.failover.nics().len());
                    locked.region_keys.queries.remove(&object);
                    if locked.sender().import(&region).and_then(|()| post_oldest(locked, 1)).is_err() {
                        return self.fail_front(locked, WcStatus::RemoteAccess);
                    }
                }
            }
        }
    }

    /// Returns how many of the oldest deferred requests do not wait for the peer's first message.
    /// Binds and invalidations never wait for this message.
    ///
    /// # Errors
    /// `System` if the system's random source cannot be read.
    fn admit_deferred(&self, locked: &mut LockedState) -> Result<usize> {
        let deferred = locked.deferred.len();
        if locked.vqp.is_peer_heard() {
            locked.first_contact = None;
        }
        let Some(mut contact) = locked.first_contact.take() else { return Ok(deferred) };
        let local = locked.deferred.iter().take_while(|wr| wr.op.is_local()).count();
        let ask = || self.query_peer(locked, |qpn| Subject::Connected { qpn, asker: self.qpn });
        let admitted = if local == deferred { Ok(0) } else { contact.admit(deferred, ask) };
        if admitted.as_ref().is_ok_and(|&n| n > 0) {
            locked.vqp.send_to_unheard_peer();
        }
        locked.first_contact = Some(contact);
        admitted.map(|n| n.max(local))
    }

    /// Completes the oldest deferred request with an error, and flushes the other deferred
    /// requests.
    ///
    /// Does nothing while earlier requests are outstanding, because requests complete in posting
    /// order. The next [`MultiRailQp::post_deferred`] tries again, and gives up the outstanding
    /// requests after the timeout of a query. Also does nothing if the virtual queue pair has
    /// ended, because [`MultiRailQp::collect`] then decides how the requests end.
    fn fail_front(&self, locked: &mut LockedState, status: WcStatus) {
        if locked.sender().close_reason().is_some() {
            return;
        }
        if locked.sender().outstanding() > 0 {
            // Unsignalled requests complete only with a later signalled request. No later request
            // will be posted, so the wait is bounded.
            let since = *locked.failing_since.get_or_insert_with(Instant::now);
            if since.elapsed() < self.domain.rendezvous.timeout() {
                return;
            }
        }
        self.take_completions(locked);
        if self.end_deferred(locked) || locked.sender().close_reason().is_some() {
            return;
        }
        let Some(wr) = locked.deferred.pop_front() else { return };
        locked.first_contact.iter_mut().for_each(|contact| contact.on_posted(1));
        self.fail_sends(locked);
        self.take_completions(locked);
        self.complete_send(&wr, status);
        self.flush_deferred(locked);
    }

    /// Ends the deferred requests if the queue pair is in ERR or SQE, or the peer has closed its
    /// end. Otherwise does nothing, and returns false.
    fn end_deferred(&self, locked: &mut LockedState) -> bool {
        if matches!(locked.state, QpState::Err | QpState::Sqe) {
            self.flush_deferred(locked);
        } else if locked.peer_closed.is_some() {
            self.withhold_deferred(locked);
        } else {
            return false;
        }
        true
    }

    /// Completes the deferred requests of a UC queue pair as if they had been sent.
    fn lose_deferred(&self, locked: &mut LockedState) {
        for wr in locked.deferred.drain(..) {
            if self.params.init.sq_sig_all || wr.flags.contains(SendFlags::SIGNALED) {
                self.complete_send(&wr, WcStatus::Success);
            }
        }
        locked.region_keys.queries.clear();
    }

    fn withhold_deferred(&self, locked: &mut LockedState) {
        if self.is_unreliable() {
            return self.lose_deferred(locked);
        }
        let Some(peer_closed) = &mut locked.peer_closed else { return };
        for wr in locked.deferred.drain(..) {
            peer_closed.withhold_send(self.wc(wr.wr_id, WcStatus::Flushed, wr.op.wc_opcode()));
        }
        locked.region_keys.queries.clear();
    }

    pub(super) fn flush_deferred(&self, locked: &mut LockedState) {
        if locked.deferred.is_empty() {
            return;
        }
        // The virtual queue pair has ended, so one poll returns the completions of all requests
        // that were posted before the deferred requests.
        self.take_completions(locked);
        for wr in std::mem::take(&mut locked.deferred) {
            self.complete_send(&wr, WcStatus::Flushed);
        }
        locked.first_contact.iter_mut().for_each(|contact| contact.on_posted(usize::MAX));
        locked.region_keys.queries.clear();
    }

    fn complete_send(&self, wr: &SendWr, status: WcStatus) {
        self.params.send_cq.push(self.wc(wr.wr_id, status, wr.op.wc_opcode()));
    }
}

/// The oldest deferred request names a shared receive queue that the peer does not have. Replaces
/// the request by a WRITE with the returned key to the last byte of the address space. No region or
/// window contains this byte, so the peer's NIC refuses the WRITE with the same error as such a
/// request.
fn replace_by_refused_request(locked: &mut LockedState) -> Key {
    let key = Key(u32::MAX);
    if let Some(wr) = locked.deferred.front_mut() {
        let to = RemoteAddr { addr: u64::MAX, rkey: key };
        *wr = SendWr::new(wr.wr_id, SendOp::Write(to), Data::inline(&[0]));
    }
    key
}

/// Posts the oldest `n` deferred requests, and removes the posted requests from the deferred ones.
///
/// # Errors
/// The error of the first request that is refused. The requests before it are posted.
fn post_oldest(locked: &mut LockedState, n: usize) -> Result<()> {
    if n == 0 {
        return Ok(());
    }
    let LockedState { vqp, sender, deferred, .. } = locked;
    let vqp = sender.as_mut().unwrap_or(vqp);
    let (posted, result) = match vqp.post_send_all(deferred.iter().take(n).cloned()) {
        Ok(()) => (n, Ok(())),
        Err(refused) => {
            let before = vqp.post_send_all(deferred.iter().take(refused.index).cloned());
            (if before.is_ok() { refused.index } else { 0 }, Err(refused.error))
        }
    };
    deferred.drain(..posted);
    locked.first_contact.iter_mut().for_each(|contact| contact.on_posted(posted));
    result
}
