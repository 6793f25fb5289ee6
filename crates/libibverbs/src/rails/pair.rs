//! A reliable connection of the program as a virtual queue pair.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use mitra_failover::{
    CloseReason, Completion, ConnectInfo, Outcome, RemoteRegion, UnresolvedError, VirtualQp,
};
use mitra_verbs::{
    AsyncEvent, Error, Gid, PostError, QpAttr, QpInitAttr, QpState, QpStatus, QpType, Qpn, RecvWr, Result,
    RnrTimer, SendWr, Wc, WcOpcode, WcStatus, check_modify,
};

use super::bounce::Bounce;
use super::completions::Completions;
use super::parted::Parted;
use super::shared_receives::SharedReceives;
use super::spanning::{self, Spanning};
use crate::common::lock::lock;
use inner::Inner;

/// Lines that a queue pair writes about what could not be recovered.
const LINES: u32 = 8;

/// What a queue pair was made with, in the program's terms.
pub(crate) struct Made {
    pub(crate) init: QpInitAttr,
    pub(crate) sends: Arc<Completions>,
    pub(crate) recvs: Arc<Completions>,
    pub(crate) shared: Option<Arc<SharedReceives>>,
    /// Tells the program of an asynchronous event.
    pub(crate) on_event: Box<dyn Fn(AsyncEvent) + Send + Sync>,
}

/// A virtual queue pair, and where it completes.
pub(crate) struct Pair {
    spanning: Arc<Spanning>,
    made: Made,
    qpn: Qpn,
    inner: Mutex<Inner>,
    /// The peer's NICs, or the one that the program wants to be connected to; none before that.
    peer: Mutex<Vec<Gid>>,
    failovers: AtomicU64,
}

impl Pair {
    pub(super) fn new(spanning: Arc<Spanning>, vqp: VirtualQp, made: Made) -> Arc<Pair> {
        let qpn = vqp.qpn();
        let inner = Inner::new(vqp);
        let pair = Arc::new(Pair {
            spanning,
            qpn,
            inner: Mutex::new(inner),
            peer: Mutex::default(),
            failovers: AtomicU64::new(0),
            made,
        });
        pair.made.sends.join(&pair);
        pair.made.recvs.join(&pair);
        if let Some(shared) = &pair.made.shared {
            shared.join(&pair);
        }
        pair
    }

    pub(crate) fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub(super) fn failovers(&self) -> u64 {
        self.failovers.load(Ordering::Relaxed)
    }

    /// Whether who asks from there is told about it: anybody, until it is known who the peer is.
    pub(super) fn expects(&self, from: Gid) -> bool {
        let peer = lock(&self.peer);
        peer.is_empty() || peer.contains(&from)
    }

    /// What its peer needs to connect.
    pub(super) fn local_info(&self) -> Result<ConnectInfo> {
        lock(&self.inner).vqp.local_info()
    }

    /// Whether it was connected, and is not any more: who asks how to connect to it waits until it is reset.
    pub(super) fn has_ended(&self) -> bool {
        lock(&self.inner).vqp.close_reason().is_some()
    }

    /// `ibv_modify_qp`. To RTR it asks the peer how to reach all its rails, and waits for the answer.
    pub(crate) fn modify(&self, attr: &QpAttr) -> Result<()> {
        let from = lock(&self.inner).state;
        let to = check_modify(QpType::Rc, from, attr)?;
        if to == QpState::Sqd {
            return Err(Error::Unsupported("draining the send queue of a connection that spans rails"));
        }
        if to == QpState::Reset {
            return self.reset();
        }
        if (from, to) == (QpState::Init, QpState::Rtr)
            && let (Some(gid), Some(qpn)) = (attr.dest_gid, attr.dest_qpn)
        {
            *lock(&self.peer) = vec![gid];
            let min_rnr_timer = RnrTimer::from_code(attr.min_rnr_timer.unwrap_or_default());
            let connected = if qpn == self.qpn && self.local_info()?.gids().any(|own| own == gid) {
                lock(&self.inner).connect_to_itself(&self.spanning, min_rnr_timer)
            } else {
                // Without the lock: the peer may ask this end the same.
                self.spanning.meeting.connection(gid, qpn).and_then(|info| {
                    lock(&self.inner).vqp.modify_to_rtr(&info, min_rnr_timer)?;
                    Ok(info)
                })
            };
            let connected = connected.map(|info| info.gids().collect::<Vec<_>>());
            *lock(&self.peer) = connected.clone().unwrap_or_default();
            connected?;
        }
        let mut inner = lock(&self.inner);
        if (from, to) == (QpState::Rtr, QpState::Rts) {
            let rnr_retry = attr.rnr_retry.unwrap_or_default();
            inner.halves().try_for_each(|half| half.modify_to_rts(rnr_retry))?;
        }
        inner.attr.update(&QpAttr { state: None, ..*attr });
        inner.state = to;
        if to == QpState::Err {
            inner.shutdown();
            self.collect(&mut inner);
            self.give_up(&mut inner, WcStatus::Flushed);
            // The program takes no more of it.
            inner.bounce.iter_mut().for_each(Bounce::forget);
        }
        self.hand_over(&mut inner);
        Ok(())
    }

    /// Back to RESET: what is outstanding goes without a word, and its number stays.
    fn reset(&self) -> Result<()> {
        let mut inner = lock(&self.inner);
        if inner.state == QpState::Reset {
            return Ok(());
        }
        let heir = inner.vqp.reset_replacement([spanning::random()?, spanning::random()?])?;
        let Inner { vqp, sender, .. } = std::mem::replace(&mut *inner, Inner::new(heir));
        [Some(vqp), sender].into_iter().flatten().for_each(|former| self.spanning.part_with(former));
        lock(&self.peer).clear();
        Ok(())
    }

    /// `ibv_query_qp`. PSNs are those of the rails, and nobody's business.
    pub(crate) fn query(&self) -> QpStatus {
        let inner = lock(&self.inner);
        let psn = |psn: Option<mitra_verbs::Psn>| psn.unwrap_or(mitra_verbs::Psn::new(0));
        QpStatus {
            state: inner.state,
            init: self.made.init,
            rq_psn: psn(inner.attr.rq_psn),
            sq_psn: psn(inner.attr.sq_psn),
            attr: inner.attr,
            sq_drain: mitra_verbs::SqDrain::NotInSqd,
        }
    }

    pub(crate) fn post_send(&self, wrs: &[SendWr]) -> Result<(), PostError> {
        for (index, wr) in wrs.iter().enumerate() {
            self.post_send_all(std::slice::from_ref(wr)).map_err(|refused| PostError { index, ..refused })?;
        }
        Ok(())
    }

    /// Posts all, or none.
    pub(crate) fn post_send_all(&self, wrs: &[SendWr]) -> Result<(), PostError> {
        let refused = |index| move |error| PostError { index, error };
        let mut inner = lock(&self.inner);
        for (index, wr) in wrs.iter().enumerate() {
            inner = self.make_known(inner, wr).map_err(refused(index))?;
        }
        if inner.state == QpState::Err {
            // As on a real queue pair in ERR: they are flushed.
            wrs.iter().for_each(|wr| self.flush_at_once(wr));
            return Ok(());
        }
        if inner.state != QpState::Rts {
            let (call, needs) = ("post_send", "RTS");
            let error = Error::WrongState { call, qpn: self.qpn, needs, state: inner.state };
            return Err(refused(0)(error));
        }
        if let Some(parted) = &mut inner.parted {
            let (kept, depth) = (parted.len().0, self.made.init.cap.send_wrs);
            for index in 0..wrs.len() {
                self.room("send queue", kept + index, depth).map_err(refused(index))?;
            }
            for wr in wrs {
                parted.post_send(wr, |wr_id, opcode| self.wc(wr_id, WcStatus::Flushed, opcode));
            }
            return Ok(());
        }
        let all_signaled = self.made.init.sq_sig_all;
        inner.sender().post_send_all(wrs.iter().map(|wr| {
            let mut wr = wr.clone();
            if all_signaled {
                wr.flags |= mitra_verbs::SendFlags::SIGNALED;
            }
            wr
        }))
    }

    /// Has the queue pair know the peer's memory that a request names. Asks the peer for it without the lock.
    fn make_known<'a>(&'a self, inner: MutexGuard<'a, Inner>, wr: &SendWr) -> Result<MutexGuard<'a, Inner>> {
        let Some(remote) = wr.op.remote() else { return Ok(inner) };
        if inner.state != QpState::Rts || inner.parted.is_some() || inner.known.contains(&remote.rkey) {
            return Ok(inner);
        }
        drop(inner);
        let peer = lock(&self.peer).clone();
        let region = self.spanning.meeting.region(&peer, remote.rkey)?;
        let mut inner = lock(&self.inner);
        match region {
            Some(region) => {
                inner.sender().import(&region)?;
                inner.known.insert(remote.rkey);
            }
            // The peer's NIC is to say that there is no such memory, and the next request asks anew.
            None => inner.sender().import(&RemoteRegion::with_unknown_key(remote, peer.len()))?,
        }
        Ok(inner)
    }

    /// Whether a queue takes one more.
    fn room(&self, queue: &'static str, used: usize, depth: u32) -> Result<()> {
        if used >= depth as usize {
            return Err(Error::QueueFull { queue, qpn: self.qpn, depth });
        }
        Ok(())
    }

    fn flush_at_once(&self, wr: &SendWr) {
        self.made.sends.push(self.wc(wr.wr_id, WcStatus::Flushed, wr.op.wc_opcode()));
    }

    pub(crate) fn post_recv(&self, wrs: &[RecvWr]) -> Result<(), PostError> {
        let mut inner = lock(&self.inner);
        if self.made.shared.is_some() {
            let error = Error::Invalid("this queue pair receives from its shared receive queue");
            return Err(PostError { index: 0, error });
        }
        for (index, wr) in wrs.iter().enumerate() {
            let as_wc = |wr_id, opcode| self.wc(wr_id, WcStatus::Flushed, opcode);
            if let Some(parted) = &mut inner.parted {
                self.room("receive queue", parted.len().1, self.made.init.cap.recv_wrs)
                    .map_err(|error| PostError { index, error })?;
                parted.post_recv(wr, as_wc);
                continue;
            }
            if inner.state == QpState::Err {
                self.made.recvs.push(as_wc(wr.wr_id, WcOpcode::Recv));
                continue;
            }
            inner.vqp.post_recv(wr.clone()).map_err(|error| PostError { index, error })?;
        }
        Ok(())
    }

    /// There are new shared receives: messages that wait get them.
    pub(super) fn feed(&self) {
        let mut inner = lock(&self.inner);
        if !inner.gone {
            self.hand_over(&mut inner);
        }
    }

    fn hand_over(&self, inner: &mut Inner) {
        let Some(shared) = &self.made.shared else { return };
        self.give_messages(inner, shared);
        // IBTA volume 1, 11.6.3.4: it is in ERR, and takes nothing more from its shared receive queue.
        if inner.state == QpState::Err
            && inner.bounce.as_ref().is_none_or(Bounce::is_empty)
            && !std::mem::replace(&mut inner.told_last, true)
        {
            (self.made.on_event)(AsyncEvent::LastWqeReached(self.qpn));
        }
    }

    fn give_messages(&self, inner: &mut Inner, shared: &SharedReceives) {
        if inner.bounce.is_none()
            && matches!(inner.state, QpState::Rtr | QpState::Rts)
            && inner.vqp.close_reason().is_none()
            && shared.longest() > 0
        {
            // Without room for it no message is taken: the peer is told to try again.
            inner.bounce = Bounce::new(&self.spanning, shared, &mut inner.vqp).ok();
        }
        let Some(bounce) = &mut inner.bounce else { return };
        let mut failed = false;
        while let Some((wr_id, placed, message)) = bounce.next(shared, &mut inner.vqp) {
            let (status, vendor_err) = status(message.outcome);
            let status = if status == WcStatus::Success { placed } else { status };
            failed |= status != WcStatus::Success;
            self.made
                .recvs
                .push(Wc { vendor_err, ..as_wc(&message, self.wc(wr_id, status, message.opcode)) });
        }
        if failed {
            self.fail(inner);
        }
    }

    /// As on a real queue pair: the first error is the last thing that is executed.
    fn fail(&self, inner: &mut Inner) {
        if inner.state != QpState::Err {
            inner.state = QpState::Err;
            inner.shutdown();
        }
    }

    /// A completion of this queue pair without data.
    fn wc(&self, wr_id: u64, status: WcStatus, opcode: WcOpcode) -> Wc {
        Wc {
            wr_id,
            status,
            opcode,
            qpn: self.qpn,
            byte_len: 0,
            imm: None,
            invalidated: None,
            src_qp: Qpn::new(0),
            solicited: false,
            vendor_err: 0,
        }
    }

    /// What is kept since the peer closed its end completes.
    fn give_up(&self, inner: &mut Inner, oldest: WcStatus) {
        for wc in inner.parted.take().into_iter().flat_map(|parted| parted.fail(oldest)) {
            let received = wc.opcode == WcOpcode::Recv;
            if received { self.made.recvs.push(wc) } else { self.made.sends.push(wc) }
        }
    }

    /// Drives it, and puts its completions where the program looks for them.
    pub(crate) fn drive(&self) {
        let mut inner = lock(&self.inner);
        self.collect(&mut inner);
    }

    /// Takes its part in a recovery, if nobody else is just driving it.
    pub(super) fn attend(&self) {
        if let Ok(mut inner) = self.inner.try_lock() {
            inner.halves().for_each(VirtualQp::progress);
            self.collect(&mut inner);
        }
    }

    fn collect(&self, inner: &mut MutexGuard<'_, Inner>) {
        // Who drives several knows those that have just been destroyed.
        if inner.gone {
            return;
        }
        let mut scratch = std::mem::take(&mut inner.scratch);
        inner.halves().for_each(|half| {
            half.poll(&mut scratch);
        });
        for completion in scratch.drain(..) {
            self.complete(inner, &completion);
        }
        inner.scratch = scratch;
        self.hand_over(inner);
        if let Some(event) = inner.vqp.qp_error_event()
            && !std::mem::replace(&mut inner.told_rule, true)
        {
            self.fail(inner);
            (self.made.on_event)(event);
        }
        match inner.vqp.close_reason() {
            Some(CloseReason::PeerClosed) if inner.state != QpState::Err => {
                inner.parted.get_or_insert_default();
            }
            // Without a completion that says so: what is posted from here on is flushed.
            Some(why) if why != CloseReason::Closed && inner.state == QpState::Rts => {
                tracing::warn!("queue pair {}: the connection has ended: {why:?}", self.qpn);
                self.fail(inner);
                (self.made.on_event)(AsyncEvent::QpFatal(self.qpn));
            }
            _ => {}
        }
        if inner.parted.as_ref().is_some_and(Parted::is_due) {
            tracing::warn!("queue pair {}: a send fails: the peer has closed its end", self.qpn);
            inner.state = QpState::Err;
            self.give_up(inner, WcStatus::RetryExceeded);
        }
        self.tell_of_failover(inner);
    }

    fn complete(&self, inner: &mut Inner, completion: &Completion) {
        let received = matches!(completion.opcode, WcOpcode::Recv | WcOpcode::RecvWithImm);
        let (status, vendor_err) = status(completion.outcome);
        if status != WcStatus::Success
            && inner.vqp.close_reason() == Some(CloseReason::PeerClosed)
            && inner.state != QpState::Err
        {
            let wc = self.wc(completion.wr_id, status, completion.opcode);
            let parted = inner.parted.get_or_insert_default();
            match (received, &self.made.shared) {
                (true, None) => parted.keep_recv(wc),
                // The receives of a shared queue are not flushed with one of its users.
                (true, Some(_)) => {}
                (false, _) => parted.keep_send(wc),
            }
            return;
        }
        if let Outcome::Unresolved(error) = completion.outcome
            && !matches!(error, UnresolvedError::Undecided(CloseReason::Closed))
            && inner.lines < LINES
        {
            inner.lines += 1;
            tracing::warn!(
                "queue pair {}: {:?}, wr_id {:#x}: {error}",
                self.qpn,
                completion.opcode,
                completion.wr_id
            );
        }
        if status != WcStatus::Success {
            self.fail(inner);
        }
        if received && let Some(bounce) = &mut inner.bounce {
            // The receives of a shared queue are not flushed with one of its users.
            if status != WcStatus::Flushed {
                bounce.arrived(*completion);
            }
            return;
        }
        let wc = Wc { vendor_err, ..as_wc(completion, self.wc(completion.wr_id, status, completion.opcode)) };
        if received { self.made.recvs.push(wc) } else { self.made.sends.push(wc) }
    }

    fn tell_of_failover(&self, inner: &mut Inner) {
        let Some(report) = inner.sender().last_failover() else { return };
        if inner.told_epoch == Some(report.epoch) {
            return;
        }
        inner.told_epoch = Some(report.epoch);
        self.failovers.fetch_add(1, Ordering::Relaxed);
        let tally = report.stats;
        tracing::warn!(
            "queue pair {} moved from rail {} to rail {} ({:?}) in {:.1?}: of {} in flight, {} had been executed, {} \
             are sent again",
            self.qpn,
            report.from,
            report.to,
            report.cause,
            report.decided_at.saturating_since(report.detected_at),
            tally.in_flight,
            tally.executed,
            tally.replayed
        );
    }

    /// Asks for an event at its next completion.
    pub(super) fn arm(&self) -> Result<()> {
        let mut inner = lock(&self.inner);
        if inner.gone {
            return Ok(());
        }
        inner.halves().try_for_each(|half| half.arm())?;
        // What came before that.
        self.collect(&mut inner);
        Ok(())
    }

    /// After an event that brought nothing that the program waits for: asks for the next.
    pub(super) fn arm_again(&self) {
        if self.made.sends.is_armed() || self.made.recvs.is_armed() {
            // A NIC that refuses is dead, which the vQP sees.
            let _ = self.arm();
        }
    }

    /// Ends it and tells the peer, if nobody is in the way.
    pub(super) fn farewell(&self) {
        if let Ok(mut inner) = self.inner.try_lock() {
            inner.shutdown();
        }
    }

    /// `ibv_destroy_qp`: it completes nothing any more. Its rails go a little later, so that the peer hears of it.
    pub(crate) fn destroy(&self) {
        let mut inner = lock(&self.inner);
        inner.shutdown();
        inner.state = QpState::Err;
        inner.gone = true;
        for side in [&self.made.sends, &self.made.recvs] {
            side.leave(self);
            side.forget(self);
        }
        if let Some(shared) = &self.made.shared {
            shared.leave(self);
        }
    }

    /// Polls it once more for its peer's sake.
    pub(super) fn linger(&self) {
        let mut inner = lock(&self.inner);
        let mut scratch = std::mem::take(&mut inner.scratch);
        for half in inner.halves() {
            half.progress();
            half.poll(&mut scratch);
            scratch.clear();
        }
        inner.scratch = scratch;
    }

    /// Frees its rails.
    pub(super) fn close(&self) -> Result<()> {
        let mut inner = lock(&self.inner);
        let mut closed = Ok(());
        for half in inner.halves() {
            closed = closed.and(half.close());
        }
        inner.bounce = None;
        closed
    }
}

/// With what came along.
fn as_wc(completion: &Completion, wc: Wc) -> Wc {
    let Completion { byte_len, imm, invalidated, solicited, .. } = *completion;
    Wc { byte_len, imm, invalidated, solicited, ..wc }
}

/// How the outcome of an operation looks to a program that knows verbs only, and a number that tells which it was.
///
/// What may or may not have been executed is what [`WcStatus::RetryExceeded`] means; what was executed, but not as the
/// program needs it, ends as [`WcStatus::RemoteOperation`].
fn status(outcome: Outcome) -> (WcStatus, u32) {
    match outcome {
        Outcome::Success => (WcStatus::Success, 0),
        Outcome::Failed(status) => (status, 0),
        Outcome::Unresolved(UnresolvedError::Undecided(CloseReason::Closed)) => (WcStatus::Flushed, 0),
        Outcome::Unresolved(UnresolvedError::Indeterminate) => (WcStatus::RetryExceeded, 1),
        Outcome::Unresolved(UnresolvedError::Undecided(_)) => (WcStatus::RetryExceeded, 2),
        Outcome::Unresolved(UnresolvedError::ValueLost) => (WcStatus::RemoteOperation, 3),
        Outcome::Unresolved(_) => (WcStatus::RemoteOperation, 4),
    }
}

mod inner;
#[cfg(test)]
mod tests;
