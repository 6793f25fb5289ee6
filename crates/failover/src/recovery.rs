//! A vQP's recovery: detect, fence, give and take evidence, move. The rules are in `agreement`, `evidence` and `decide`;
//! here they meet the rails.

use core::time::Duration;
use std::collections::VecDeque;

use mitra_verbs::{
    AsyncEvent, Data, Error, QpAttr, QpState, RecvWr, SendOp, SendWr, SgeList, Time, WcOpcode, WcStatus,
};

use crate::agreement::{Action, CloseReason};
use crate::ballot::Role;
use crate::config::{Fencing, Policy};
use crate::evidence::Evidence;
use crate::ledger::RecoveryStats;
use crate::message::{Body, Message};
use crate::outcome::{Completion, Outcome, UnresolvedError};
use crate::traffic::{DRAIN, RECV};
use crate::vqp::VirtualQp;

/// Why a rail was given up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cause {
    /// An operation completed so.
    Completion(WcStatus),
    /// The port is down, or the NIC dead.
    Device,
    /// Heartbeats were missed.
    Heartbeat,
    /// The peer proposed to move.
    Peer,
}

/// What one failover did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailoverReport {
    /// The epoch that it began.
    pub epoch: u16,
    /// The old rail.
    pub from: usize,
    /// The new rail.
    pub to: usize,
    /// The detector.
    pub cause: Cause,
    /// What became of the operations that were in flight at this end.
    pub stats: RecoveryStats,
    /// When this end learnt of it.
    pub detected_at: Time,
    /// When this end's fence was confirmed.
    pub fenced_at: Time,
    /// When everything was decided, and the replay began.
    pub decided_at: Time,
    /// When the last operation that was in flight had completed.
    pub completed_at: Option<Time>,
}

/// A marker posted behind everything in a queue that is in ERR: when it comes back, so has everything before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Marker {
    ToPost,
    Posted,
    Back,
}

/// At every so manieth look a NIC that says nothing by itself is asked whether it lives, and the rails that are not in use are
/// looked at: a system call on a software NIC, for a message that comes once in a failure.
const LOOKS_BETWEEN_WIDE_ONES: u32 = 4;
/// ... and after so long at any look: the peer waits for who looks seldom.
const SELDOM: Duration = Duration::from_millis(1);

/// How long a device may take to drain a queue pair in ERR ...
const FENCE_PATIENCE: Duration = Duration::from_millis(50);
/// ... and how often it must have been polled in vain after that: a host that sleeps, wherever in its code, has not seen a
/// device stall.
const FENCE_POLLS: u32 = 100;

/// How far this end's fence is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fence {
    /// Not under way.
    None,
    /// In ERR; completions are being drained up to the markers. A device that takes longer than `until`, and was polled
    /// in vain so often, is reset.
    Draining { send: Marker, recv: Marker, until: Time, in_vain: u32 },
    /// No marker can come back (the NIC is dead, or there is no fence): what has completed is polled until there is no more.
    Emptying { live: bool },
    /// Done; `live` if the NIC could be read.
    Done { live: bool },
}

impl Fence {
    pub(crate) fn polled_in_vain(&mut self) {
        if let Fence::Draining { in_vain, .. } = self {
            *in_vain = in_vain.saturating_add(1);
        }
    }

    pub(crate) fn marker_came_back(&mut self, of_recv: bool) {
        if let Fence::Draining { send, recv, .. } = self {
            *(if of_recv { recv } else { send }) = Marker::Back;
        }
    }
}

/// Rails that carry control messages, so that they are ready again whenever they were left, and no data: their path has a smaller
/// MTU than their ports, or a filter.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Fruitless {
    /// How far the ledger was ...
    at: (u64, u64),
    /// ... since when, and until when ...
    since: Time,
    last: Time,
    /// ... and how often retries were in vain there.
    times: usize,
}

impl Fruitless {
    /// Retries were in vain once more. Whether each of so many rails has had more than one chance by now, and all of them together
    /// this long. A rail that lasted as long itself has carried something, if only the word that no receive is posted.
    fn again(&mut self, now: Time, at: (u64, u64), rails: usize, patience: Duration) -> bool {
        if self.times == 0 || self.at != at || now.saturating_since(self.last) >= patience {
            *self = Fruitless { at, since: now, ..Fruitless::default() };
        }
        (self.last, self.times) = (now, self.times + 1);
        self.times > 2 * rails && now.saturating_since(self.since) >= patience
    }
}

impl VirtualQp {
    pub(crate) fn rail_failed(&mut self, rail: usize, cause: Cause) {
        let now = self.now();
        let Some(peer) = &self.peer else { return };
        let active = peer.agreement.is_active() && peer.agreement.active() == rail;
        let in_vain = active
            && cause == Cause::Completion(WcStatus::RetryExceeded)
            && self.fruitless.again(now, self.ledger.progress(), self.rails.len(), self.config.peer_timeout);
        if in_vain || active && self.config.policy == Policy::None {
            return self.end(CloseReason::NoRail);
        }
        if active {
            self.moving.get_or_insert_with(|| report(rail, cause, now));
            // Where it can go: what became of the other rails may not have been heard yet.
            (0..self.rails.len())
                .filter(|&other| other != rail)
                .for_each(|other| self.look_at_device(other, true));
        }
        let broken = cause != Cause::Device || self.rails[rail].provider().query_port().is_err();
        let Some(peer) = &mut self.peer else { return };
        peer.agreement.rail_failed(now, rail, broken);
        self.run_actions();
    }

    /// Control messages, events, heartbeats and timers.
    pub(crate) fn housekeeping(&mut self) {
        let now = self.now();
        let unseen = now.saturating_since(core::mem::replace(&mut self.last_look, now));
        if self.peer.is_none() {
            return;
        }
        if self.ended.is_some() {
            // Only to tell a peer that has not heard.
            (0..self.rails.len()).for_each(|rail| self.poll_control(rail, now));
            return;
        }
        self.looks = self.looks.wrapping_add(1);
        let wide = !self.is_move_confirmed()
            || unseen >= SELDOM
            || self.looks.is_multiple_of(LOOKS_BETWEEN_WIDE_ONES);
        let active = self.active_rail();
        for rail in (0..self.rails.len()).filter(|&rail| wide || rail == active) {
            self.look_at_device(rail, wide);
            self.poll_control(rail, now);
        }
        self.renew_rails(now);
        self.heartbeats(now, unseen);
        if let Some(peer) = &mut self.peer {
            peer.agreement.handle_timeout(now);
        }
        self.run_actions();
        self.drive_fence();
    }

    /// Takes the NIC's events; `ask` asks the NIC itself too.
    fn look_at_device(&mut self, rail: usize, ask: bool) {
        let failed = self.domain.rail_down(rail);
        if rail == self.active_rail() && self.fence == Fence::None && self.ends_by_event(rail) {
            return;
        }
        if !failed && !ask {
            return;
        }
        // A NIC may die without a word; then it does not answer.
        let dead = ask && self.rails[rail].provider().query_port().is_err();
        let (down, bit) = (failed || dead, 1 << rail);
        if down && self.down & bit == 0 {
            self.down |= bit;
            self.rail_failed(rail, Cause::Device);
        } else if dead && let Some(peer) = &mut self.peer {
            // It was its link that was down before.
            peer.agreement.rail_failed(self.rails[0].provider().now(), rail, true);
            self.run_actions();
        } else if !down && self.down & bit != 0 {
            self.down &= !bit;
            self.rail_recovered(rail);
            self.run_actions();
        }
    }

    /// Ends it if the NIC has reported that the peer's request broke a rule.
    pub(crate) fn ends_by_event(&mut self, rail: usize) -> bool {
        let Some(event) = self.domain.take_qp_error(rail, self.rails[rail].qpn) else { return false };
        self.broken_rule = Some(match event {
            AsyncEvent::QpAccessError(_) => AsyncEvent::QpAccessError(self.qpn),
            AsyncEvent::QpRequestError(_) => AsyncEvent::QpRequestError(self.qpn),
            _ => AsyncEvent::QpFatal(self.qpn),
        });
        self.end(CloseReason::RequestError);
        true
    }

    fn rail_recovered(&mut self, rail: usize) {
        let now = self.now();
        let Some(peer) = &mut self.peer else { return };
        peer.agreement.rail_recovered(now, rail);
        if self.is_active() && !self.is_stranded() {
            self.moving = None; // its own link is back
        }
    }

    fn poll_control(&mut self, rail: usize, now: Time) {
        let cookie = self.cookie;
        let Some(peer) = &mut self.peer else { return };
        let peer_role = if peer.role == Role::Zero { Role::One } else { Role::Zero };
        let (mut heard, mut rejected, mut path) = (false, 0, None);
        // A dead NIC brings no messages; its death is an event.
        let _ = self.rails[rail].poll_control(&mut self.wcs, |bytes| {
            match Message::decode(bytes, peer_role, cookie) {
                Ok(message) => {
                    heard = true;
                    if let Body::Path(said) = message.body {
                        path = Some((message.ballot, said));
                    }
                    peer.agreement.handle(now, message);
                }
                Err(_) => rejected += 1,
            }
        });
        self.rejected += rejected;
        if heard {
            self.rails[rail].heard = now;
            self.met = true;
        }
        self.run_actions();
        // Of several that came together the last is enough: it says all that those before it did, or they are asked again.
        if let Some((ballot, path)) = path {
            self.on_path(now, rail, ballot, path);
        }
    }

    fn heartbeats(&mut self, now: Time, unseen: Duration) {
        let detector = self.config.detector;
        if detector.max_missed_heartbeats == 0 {
            return;
        }
        if unseen > detector.heartbeat_interval * detector.max_missed_heartbeats / 2 {
            // This end was not running: the silence may be its own.
            for rail in &mut self.rails {
                rail.heard = now;
            }
        }
        if now >= self.next_heartbeat {
            self.next_heartbeat = now + detector.heartbeat_interval;
            let Some(peer) = &self.peer else { return };
            let message = Message { ballot: peer.agreement.ballot(), body: Body::Heartbeat };
            self.send_everywhere(&message);
        }
        let active = self.active_rail();
        let silent = now.saturating_since(self.rails[active].heard);
        let patience = detector.heartbeat_interval * detector.max_missed_heartbeats;
        let patience = if self.met { patience } else { patience.max(detector.first_contact_timeout) };
        if self.is_active() && silent > patience {
            self.rail_failed(active, Cause::Heartbeat);
        }
    }

    fn send_everywhere(&self, message: &Message) {
        let Some(peer) = &self.peer else { return };
        let bytes = message.encode(peer.role, peer.cookie);
        for (i, rail) in self.rails.iter().enumerate() {
            if self.down & (1 << i) == 0 {
                rail.send_control(&bytes);
            }
        }
    }

    /// Does what the agreement asks for.
    pub(crate) fn run_actions(&mut self) {
        while let Some(action) = self.peer.as_mut().and_then(|p| p.agreement.poll_action()) {
            match action {
                Action::Send(message) => {
                    if let Body::Evidence { rail, .. } = message.body
                        && matches!(self.fence, Fence::Done { .. })
                    {
                        // Before the evidence leaves: the peer may replay a SEND at once.
                        self.post_recvs_on(usize::from(rail));
                    }
                    self.send_everywhere(&message);
                }
                Action::Fence { rail } => {
                    let rail = usize::from(rail);
                    if self.moving.is_none() {
                        self.moving = Some(report(rail, Cause::Peer, self.now()));
                    }
                    if self.down & (1 << rail) == 0 {
                        self.rail_recovered(rail); // what failed was the path, or the queue pair
                    }
                    self.begin_fence(rail);
                }
                Action::Decide { rail, theirs } => self.decide(usize::from(rail), &theirs),
                Action::PeerMoved { torn } => self.release_held(Some(torn)),
                Action::End(why) => self.on_end(why),
            }
        }
    }

    /// Whether what is left is fenced.
    pub(crate) fn fences(&self) -> bool {
        self.config.fencing == Fencing::On && self.config.policy == Policy::Exact
    }

    fn begin_fence(&mut self, rail: usize) {
        if !self.fences() {
            self.fence = Fence::Emptying { live: true };
            return;
        }
        let p = self.rails[rail].provider();
        self.fence = match p.modify_qp(self.rails[rail].qpn, &QpAttr::to(QpState::Err)) {
            Ok(()) => {
                let until = self.now() + FENCE_PATIENCE;
                Fence::Draining { send: Marker::ToPost, recv: Marker::ToPost, until, in_vain: 0 }
            }
            // The NIC does not answer: dead, or hung and still writing.
            Err(_) => return self.fence_by_reset(rail),
        };
        self.drive_fence();
    }

    /// Ends whatever the NIC still does, for every queue pair on it.
    fn fence_by_reset(&mut self, rail: usize) {
        if self.rails[rail].provider().reset().is_ok() {
            self.fence = Fence::Emptying { live: false };
        } else if let Some(peer) = &mut self.peer {
            peer.agreement.unfenced();
        }
    }

    /// Posts the markers (a queue is full until its flushed requests were polled: then at the next call), and sees
    /// whether they have come back.
    fn drive_fence(&mut self) {
        let now = self.now();
        let rail = &self.rails[self.active_rail()];
        let Fence::Draining { send, recv, until, in_vain } = &mut self.fence else { return };
        if *send == Marker::ToPost && rail.post(&[SendWr::new(DRAIN, SendOp::Send, Data::empty())]).is_ok() {
            *send = Marker::Posted;
        }
        if *recv == Marker::ToPost {
            let wr = RecvWr { wr_id: DRAIN | RECV, sges: SgeList::new() };
            if rail.provider().post_recv(rail.qpn, &[wr]).is_ok() {
                *recv = Marker::Posted;
            }
        }
        if now <= *until {
            *in_vain = 0; // what counts is how often it is asked after that
        }
        if (*send, *recv) == (Marker::Back, Marker::Back) {
            self.fence_done(true);
        } else if rail.provider().query_port().is_err() || *in_vain >= FENCE_POLLS {
            // The NIC died or stalled while it was being drained: the markers will not come back.
            self.fence_by_reset(self.active_rail());
        }
    }

    /// The old path is dead for good: records what was executed for the peer, and moves the receives.
    pub(crate) fn fence_done(&mut self, live: bool) {
        self.fence = Fence::Done { live };
        let rail = self.active_rail();
        let now = self.now();
        let Some(peer) = &mut self.peer else { return };
        let (p, qpn) = (self.rails[rail].provider(), self.rails[rail].qpn);
        let capabilities = p.attr().capabilities;
        let mut evidence = Evidence { received: self.received, ..Evidence::default() };
        if self.config.policy == Policy::Exact {
            evidence.log = self.log.as_ref().and_then(|log| log.last(peer.agreement.ballot().epoch));
            if live && capabilities.psn_query {
                evidence.psn = p.query_qp(qpn).ok().map(|status| status.rq_psn);
            }
            if live && capabilities.saved_results {
                evidence.saved = p.saved_results(qpn).unwrap_or_default().into_iter().collect();
            }
        }
        if let Some(moving) = &mut self.moving {
            moving.fenced_at = now;
        }
        self.posted_recvs = 0;
        peer.agreement.fenced(now, evidence);
        self.run_actions();
    }

    fn decide(&mut self, rail: usize, theirs: &Evidence) {
        while let Some(completion) = self.ledger.pop() {
            self.ready.push_back(completion);
        }
        let placed = matches!(self.fence, Fence::Done { live: true });
        let psn = self.rails[rail].first_psn;
        let old = self.active_rail();
        let placed_acks = self.peer.as_ref().is_none_or(|p| p.placed_acks[old]);
        let below = self.ledger.next_seq();
        let mut values = Vec::new();
        let tally =
            match self.ledger.decide(self.config.policy, theirs, placed, placed_acks, psn, &mut values) {
                Ok(tally) => tally,
                Err(contradiction) => {
                    self.contradiction = Some(contradiction);
                    return self.end(CloseReason::Contradiction);
                }
            };
        let mut stored = true;
        for recovered in values {
            if !self.domain.store(recovered.at, recovered.value) {
                self.ledger.value_lost(recovered.seq);
                stored = false;
            }
        }
        if !stored {
            return self.end(CloseReason::RequestError);
        }
        let now = self.now();
        let Some(peer) = &mut self.peer else { return };
        peer.agreement.moved(now, tally.imm_bytes_kept);
        let epoch = peer.agreement.ballot().epoch;
        self.fence = Fence::None;
        self.received = 0;
        (self.held, self.torn_in) = (Some(VecDeque::new()), 0);
        self.rails[rail].heard = now;
        if let Some(moving) = self.moving.take() {
            let report =
                FailoverReport { epoch, from: old, to: rail, stats: tally, decided_at: now, ..moving };
            self.last = Some((report, below));
        }
        self.post_recvs_on(rail);
        self.pump();
    }

    /// Receives that waited for the peer's word about its torn WRITE with immediate. That operation is the first
    /// that it replays, so it is the first that is received.
    ///
    /// `None`: the word will never come. Whether more had arrived of that message is lost.
    fn release_held(&mut self, torn: Option<u32>) {
        let Some(mut held) = self.held.take() else { return };
        match (held.front_mut(), torn) {
            (Some(first), Some(torn)) => first.byte_len = first.byte_len.saturating_add(torn),
            (Some(first), None) => first.outcome = Outcome::Unresolved(UnresolvedError::ValueLost),
            (None, torn) => self.torn_in = torn.unwrap_or(0),
        }
        self.ready.append(&mut held);
    }

    /// Hands a receive over, unless it must wait.
    pub(crate) fn deliver(&mut self, mut completion: Completion) {
        let with_imm = completion.opcode == WcOpcode::RecvWithImm;
        if let Some(held) = &mut self.held {
            if with_imm || !held.is_empty() {
                return held.push_back(completion);
            }
            self.held = None; // a SEND came first: nothing was torn
        }
        let torn = core::mem::take(&mut self.torn_in);
        if with_imm {
            completion.byte_len = completion.byte_len.saturating_add(torn);
        }
        self.ready.push_back(completion);
    }

    pub(crate) fn end(&mut self, why: CloseReason) {
        if let Some(peer) = &mut self.peer {
            peer.agreement.end(why);
        }
        self.run_actions();
    }

    fn on_end(&mut self, why: CloseReason) {
        if self.ended.is_some() {
            return;
        }
        // Nobody may reach this end's memory through it any more, its own NICs with late responses included: what has ended
        // is not touched again. A NIC that does not answer is dead, or hung and still writing.
        let mut fenced = true;
        for (i, rail) in self.rails.iter().enumerate() {
            if rail.provider().modify_qp(rail.qpn, &QpAttr::to(QpState::Err)) == Err(Error::DeviceFatal) {
                fenced &= rail.provider().reset().is_ok() || i != self.active_rail();
            }
        }
        self.ended = Some(if fenced { why } else { CloseReason::Unfenced });
        self.moving = None;
        self.ending = true;
        if !self.polling {
            self.finish_end();
        }
    }

    /// Says of each request how it ended. What completed before the end was told, the peer was told too: it counts.
    pub(crate) fn finish_end(&mut self) {
        self.ending = false;
        let Some(why) = self.ended else { return };
        let active = self.active_rail();
        if !matches!(self.fence, Fence::Done { .. }) {
            self.take_completions(active);
        }
        self.fence = Fence::None;
        if self.recv_rail != active {
            // The peer has moved already. How much of its first message had arrived here before, it tells nobody any more.
            self.release_held(None);
            (self.held, self.torn_in) = (Some(VecDeque::new()), 0);
            self.take_completions(self.recv_rail);
        }
        self.ledger.abandon(UnresolvedError::Undecided(why));
        while let Some(completion) = self.ledger.pop() {
            self.ready.push_back(completion);
        }
        self.release_held(None);
        let left = core::mem::take(&mut self.recvs);
        for (i, wr) in (0..).zip(&left) {
            self.ready.push_back(self.unreceived(wr, i, WcStatus::Flushed));
        }
    }

    /// Everything that has completed on a rail.
    fn take_completions(&mut self, rail: usize) {
        let mut wcs = Vec::new();
        while self.rails[rail].provider().poll_cq(self.rails[rail].cq, 64, &mut wcs).is_ok()
            && !wcs.is_empty()
        {
            for wc in wcs.drain(..) {
                self.on_completion(rail, &wc);
            }
        }
    }
}

fn report(rail: usize, cause: Cause, now: Time) -> FailoverReport {
    FailoverReport {
        epoch: 0,
        from: rail,
        to: rail,
        cause,
        stats: RecoveryStats::default(),
        detected_at: now,
        fenced_at: now,
        decided_at: now,
        completed_at: None,
    }
}
