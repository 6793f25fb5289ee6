//! The rail negotiation of a virtual queue pair: two ends, their rails and the messages in transit.
//!
//! The world runs [`RailNegotiation`] as virtual queue pairs do, and simulates the rest of each
//! end: its fences, its queue pairs and the failures that it detects. A message that was sent may
//! arrive at any later time, any number of times or never, so the world covers loss, duplication,
//! reordering and delay. An end may take no step for a while. Heartbeats arrive at once or never.
//! Outdated heartbeats are left out.

use std::collections::BTreeSet;
use std::time::Duration;

use mitra_failover::rail_negotiation::{
    Action, Ballot, Body, CloseReason, Evidence, Message, NewQp, RailFailure, RailNegotiation, Role,
};
use mitra_verbs::{Psn, Qpn, Time};

pub(crate) const RAILS: usize = 2;
/// The time without an answer after which an end closes.
pub(crate) const PEER_TIMEOUT: Duration = Duration::from_millis(64);
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// A step of the world. `end` is 0 or 1.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum RailStep {
    /// A message arrives. The message stays in transit, because it may arrive again.
    Deliver {
        /// The receiver.
        end: u8,
        /// The message.
        message: Message,
    },
    /// A heartbeat arrives, which contains the rails that its sender cannot use now.
    Heartbeat {
        /// The receiver.
        end: u8,
    },
    /// The fence of the old rail is complete.
    Fenced {
        /// The end that fenced.
        end: u8,
    },
    /// An end sends the parameters of its new queue pair.
    Probe {
        /// The sender.
        end: u8,
        /// The rail of the queue pair.
        rail: u8,
    },
    /// An end detects a failure.
    Fail {
        /// The end that detects it.
        end: u8,
        /// The failed rail.
        rail: u8,
        /// The kind of the failure.
        failure: RailFailure,
    },
    /// The link of a rail is up again, or its NIC answers again.
    Recover {
        /// The end that detects it.
        end: u8,
        /// The rail.
        rail: u8,
    },
    /// The timer of an end expires.
    Timer {
        /// The end.
        end: u8,
        /// Whether the end sees the expiration only after the peer timeout.
        is_late: bool,
    },
    /// The application of an end closes the vQP. The end is still driven.
    Close {
        /// The end.
        end: u8,
    },
    /// The process of an end dies.
    Crash {
        /// The end.
        end: u8,
    },
    /// From now on, an end cannot bind its queue pair on the new rail: other virtual queue pairs of
    /// its process have not fenced theirs on the old home rail.
    HoldHome {
        /// The end.
        end: u8,
    },
    /// The others have fenced their queue pairs.
    FreeHome {
        /// The end.
        end: u8,
    },
}

/// The number of failures that a world may inject.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RailFaultLimits {
    /// Failures at both ends together.
    pub failures: u8,
    /// The kinds of failures at each end.
    pub kinds: [&'static [RailFailure]; 2],
    /// Expirations of timers, at both ends together.
    pub timers: u8,
    /// Expirations of timers that an end sees only after the peer timeout.
    pub late_timers: u8,
    /// Crashes of processes.
    pub crashes: u8,
    /// Closes by applications.
    pub closes: u8,
    /// Whether end 0's NIC of rail 1 is dead from the beginning, without end 1's knowledge.
    pub starts_degraded: bool,
    /// Whether a dead NIC may answer again, as a NIC does that hung and was reset.
    pub nics_recover: bool,
    /// Times that an end must wait before it binds its queue pair on a new rail.
    pub home_holds: u8,
}

impl RailFaultLimits {
    /// One failure of any kind, expired timers, an end that sleeps for the peer timeout, and a
    /// crash.
    pub const ONE_FAILURE: RailFaultLimits = RailFaultLimits {
        failures: 1,
        kinds: [ALL_FAILURES; 2],
        timers: 2,
        late_timers: 1,
        crashes: 1,
        closes: 0,
        starts_degraded: false,
        nics_recover: false,
        home_holds: 0,
    };
    /// Links that go down twice.
    pub const TWO_LINKS_DOWN: RailFaultLimits = RailFaultLimits {
        failures: 2,
        kinds: [&[RailFailure::LinkDown]; 2],
        timers: 0,
        late_timers: 0,
        crashes: 0,
        closes: 0,
        starts_degraded: false,
        nics_recover: false,
        home_holds: 0,
    };
    /// A queue pair that fails, before or after an application closes its end.
    pub const ONE_CLOSE: RailFaultLimits = RailFaultLimits {
        failures: 1,
        kinds: [&[RailFailure::QpFailed]; 2],
        timers: 1,
        late_timers: 0,
        crashes: 0,
        closes: 1,
        starts_degraded: false,
        nics_recover: false,
        home_holds: 0,
    };
    /// Both ends can use one rail only. End 0's queue pair on this rail fails, and end 1 hears
    /// nothing on the rail for a while. In some orders of steps, an end declines the peer's
    /// proposal because its own last move is unconfirmed. The peer then stays on the rail.
    pub const LAST_RAIL: RailFaultLimits = RailFaultLimits {
        failures: 2,
        kinds: [&[RailFailure::QpFailed], &[RailFailure::Silent]],
        timers: 0,
        late_timers: 0,
        crashes: 0,
        closes: 0,
        starts_degraded: true,
        nics_recover: false,
        home_holds: 0,
    };
    /// A queue pair or a link that fails while the old home rail of an end is still in use.
    pub const HELD_HOME: RailFaultLimits = RailFaultLimits {
        failures: 1,
        kinds: [&[RailFailure::QpFailed, RailFailure::LinkDown]; 2],
        timers: 1,
        late_timers: 0,
        crashes: 0,
        closes: 0,
        starts_degraded: false,
        nics_recover: false,
        home_holds: 2,
    };
    pub(crate) const MANY_FAILURES: RailFaultLimits = RailFaultLimits {
        failures: 24,
        kinds: [&[RailFailure::LinkDown, RailFailure::QpFailed, RailFailure::Silent]; 2],
        // Less than half of the peer timeout passes.
        timers: 30,
        late_timers: 0,
        crashes: 0,
        closes: 0,
        starts_degraded: false,
        nics_recover: false,
        home_holds: 0,
    };
}

pub(crate) const ALL_FAILURES: &[RailFailure] =
    &[RailFailure::LinkDown, RailFailure::NicDead, RailFailure::QpFailed, RailFailure::Silent];

/// A rule of the driver that a test may leave out, to show that the checked properties detect the
/// omission.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RailRule {
    /// An end connects its new queue pair only to the peer's queue pair of the same ballot.
    SameBallot,
    /// An end sends the same evidence in every message of a move.
    OneEvidence,
    /// An end that could not bind its queue pair on the new rail takes the same step again.
    StepRepeated,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Qp {
    /// The ballot for which the queue pair was created. `None` for the rail's first queue pair.
    ballot: Option<Ballot>,
    /// `Some` if the queue pair is connected. Contains the `ballot` of the peer's queue pair to
    /// which it is connected.
    peer: Option<Option<Ballot>>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct End {
    pub(crate) negotiation: RailNegotiation,
    pub(crate) now: Time,
    is_fencing: bool,
    /// The number of times that this end gave evidence. Each evidence differs from all earlier
    /// evidence.
    evidences: u32,
    /// The ballot and the rail of each move.
    pub(crate) moves: Vec<(Ballot, usize)>,
    qps: [Qp; RAILS],
    pub(crate) closed: Option<CloseReason>,
    /// Bit i: the link of rail i is up.
    pub(crate) links: u8,
    /// Bit i: the NIC of rail i is dead.
    pub(crate) dead: u8,
    pub(crate) is_crashed: bool,
    /// Whether the old home rail is still in use.
    is_home_held: bool,
    /// The last ballot for which the end bound its queue pair on the new rail.
    bound_for: Option<Ballot>,
}

/// Two ends of a virtual queue pair, and the messages in transit.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RailWorld {
    pub(crate) ends: [End; 2],
    /// The messages that were sent, with their receivers.
    in_transit: BTreeSet<(u8, Message)>,
    limits: RailFaultLimits,
    without: Option<RailRule>,
    /// Whether an end slept for the peer timeout.
    pub(crate) was_late: bool,
    /// The first violated property.
    pub(crate) violation: Option<&'static str>,
}

pub(crate) const ONE_EVIDENCE: &str = "an end decides by the evidence of the peer's fence of the same move";
pub(crate) const ONE_ORDER: &str = "both ends move by the same ballots to the same rails";
pub(crate) const FINAL_EVIDENCE: &str =
    "an end decides by the final evidence of the rail to which it is bound";
pub(crate) const KNOWN_EVIDENCE: &str =
    "an end whose peer has closed and still runs decides by the peer's evidence";
const ALL_RAILS: u8 = u8::MAX >> (8 - RAILS);
pub(crate) const NO_HURRY: &str =
    "an end gives up before the peer timeout is over only if all its NICs are dead";
pub(crate) const SAME_QPS: &str = "operations are posted between queue pairs of the same ballot";

impl RailWorld {
    /// Returns a connected virtual queue pair.
    pub fn new(limits: RailFaultLimits, without: Option<RailRule>) -> RailWorld {
        let end = |role| {
            let mut negotiation = RailNegotiation::new(role, RAILS, RETRY_INTERVAL, PEER_TIMEOUT);
            negotiation.allow_replacing_active_qps();
            End {
                negotiation,
                now: Time::ZERO,
                is_fencing: false,
                evidences: 0,
                moves: Vec::new(),
                qps: [Qp { ballot: None, peer: Some(None) }; RAILS],
                closed: None,
                links: u8::MAX,
                dead: 0,
                is_crashed: false,
                is_home_held: false,
                bound_for: None,
            }
        };
        let ends = [Role::Zero, Role::One].map(end);
        let in_transit = BTreeSet::new();
        let mut world = RailWorld { ends, in_transit, limits, without, was_late: false, violation: None };
        if limits.starts_degraded {
            world.fail(0, 1, RailFailure::NicDead);
        }
        world
    }

    /// The steps that may come next.
    pub fn steps(&self) -> Vec<RailStep> {
        let mut steps = Vec::new();
        if self.violation.is_some() {
            return steps;
        }
        let arriving = self.in_transit.iter().filter(|(to, _)| !self.ends[usize::from(*to)].is_crashed);
        steps.extend(arriving.map(|(to, message)| RailStep::Deliver { end: *to, message: message.clone() }));
        for (end, e) in (0u8..).zip(&self.ends).filter(|(_, e)| !e.is_crashed) {
            steps.push(RailStep::Heartbeat { end });
            if e.is_fencing {
                steps.push(RailStep::Fenced { end });
            }
            if e.closed.is_none() && e.negotiation.poll_timeout().is_some() {
                let timers = [(false, self.limits.timers), (true, self.limits.late_timers)];
                let timers = timers.into_iter().filter(|(_, left)| *left > 0);
                steps.extend(timers.map(|(is_late, _)| RailStep::Timer { end, is_late }));
            }
            if e.is_home_held {
                steps.push(RailStep::FreeHome { end });
            } else if self.limits.home_holds > 0 && e.negotiation.move_ballot().is_some() {
                steps.push(RailStep::HoldHome { end });
            }
            if self.limits.crashes > 0 {
                steps.push(RailStep::Crash { end });
            }
            if self.limits.closes > 0 && e.closed.is_none() {
                steps.push(RailStep::Close { end });
            }
            for rail in 0..RAILS as u8 {
                if e.negotiation.awaits_new_qps(rail.into()) {
                    steps.push(RailStep::Probe { end, rail });
                }
                if e.links & (1 << rail) == 0 {
                    steps.push(RailStep::Recover { end, rail });
                }
                if self.limits.failures > 0 && e.closed.is_none() {
                    let is_active = usize::from(rail) == e.negotiation.active();
                    let failures = [
                        (RailFailure::LinkDown, e.links & (1 << rail) != 0),
                        (RailFailure::NicDead, e.dead & (1 << rail) == 0),
                        (RailFailure::QpFailed, is_active && e.negotiation.is_active()),
                        (RailFailure::Silent, is_active && e.negotiation.is_active()),
                    ];
                    for (failure, may_happen) in failures {
                        if may_happen && self.limits.kinds[usize::from(end)].contains(&failure) {
                            steps.push(RailStep::Fail { end, rail, failure });
                        }
                    }
                }
            }
        }
        steps
    }

    /// Executes a step.
    pub fn apply(&mut self, step: RailStep) {
        match step {
            RailStep::Deliver { end, message } => {
                self.receive(end.into(), message);
                self.run_actions(end.into());
            }
            RailStep::Heartbeat { end } => self.heartbeat(end.into()),
            RailStep::Fenced { end } => self.fenced(end.into()),
            RailStep::Probe { end, rail } => self.send_new_qp(end.into(), rail.into(), None),
            RailStep::Fail { end, rail, failure } => {
                self.limits.failures -= 1;
                self.fail(end.into(), rail.into(), failure);
            }
            RailStep::Recover { end, rail } => self.recover(end.into(), rail.into()),
            RailStep::Timer { end, is_late } => {
                self.limits.timers -= u8::from(!is_late);
                self.limits.late_timers -= u8::from(is_late);
                self.was_late |= is_late;
                let e = &mut self.ends[usize::from(end)];
                let late = if is_late { PEER_TIMEOUT } else { Duration::ZERO };
                e.now = e.negotiation.poll_timeout().map_or(e.now, |at| at.max(e.now)) + late;
                e.negotiation.handle_timeout(e.now);
                self.run_actions(end.into());
            }
            RailStep::Close { end } => {
                self.limits.closes -= 1;
                self.ends[usize::from(end)].negotiation.close(CloseReason::Closed);
                self.run_actions(end.into());
            }
            RailStep::Crash { end } => {
                self.limits.crashes -= 1;
                self.ends[usize::from(end)].is_crashed = true;
            }
            RailStep::HoldHome { end } => {
                self.limits.home_holds -= 1;
                self.ends[usize::from(end)].is_home_held = true;
            }
            RailStep::FreeHome { end } => self.free_home(end.into()),
        }
        self.check();
    }

    pub(crate) fn take_messages(&mut self) -> BTreeSet<(u8, Message)> {
        core::mem::take(&mut self.in_transit)
    }

    /// Returns whether a message can pass on a rail.
    pub(crate) fn is_rail_up(&self, rail: usize) -> bool {
        self.ends.iter().all(|e| e.links & !e.dead & (1 << rail) != 0)
    }

    /// Passes the peer's current heartbeat to an end.
    pub(crate) fn heartbeat(&mut self, end: usize) {
        let peer = &self.ends[1 - end];
        if peer.is_crashed || peer.closed.is_some() {
            return;
        }
        let body = Body::Heartbeat { unusable: peer.negotiation.local_unusable() };
        let message = Message { ballot: peer.negotiation.ballot(), body };
        self.receive(end, message);
        self.run_actions(end);
    }

    pub(crate) fn fenced(&mut self, end: usize) {
        let e = &mut self.ends[end];
        if !core::mem::take(&mut e.is_fencing) {
            return;
        }
        e.evidences += 1;
        let evidence = evidence(end, e.evidences);
        e.negotiation.fenced(e.now, evidence);
        self.run_actions(end);
    }

    /// Creates an end's new queue pair, and sends its parameters. `answered` is the peer's message
    /// that these parameters answer.
    pub(crate) fn send_new_qp(&mut self, end: usize, rail: usize, answered: Option<(Ballot, NewQp)>) {
        let e = &mut self.ends[end];
        let Some(left) = e.negotiation.left_by(rail).filter(|_| e.links & !e.dead & (1 << rail) != 0) else {
            return;
        };
        if e.qps[rail].ballot != Some(left) {
            e.qps[rail] = Qp { ballot: Some(left), peer: None };
        }
        let mut asks = answered.is_none();
        if let Some((ballot, qp)) = answered {
            if ballot != left && self.without != Some(RailRule::SameBallot) {
                return;
            }
            e.qps[rail].peer.get_or_insert(Some(ballot));
            e.negotiation.local_qp_connected(rail);
            if qp.connected {
                e.negotiation.peer_qp_connected(e.now, rail);
            }
            if !qp.asks {
                return self.run_actions(end);
            }
            asks = !qp.connected;
        }
        let connected = !e.negotiation.is_local_qp_missing(rail);
        let qp = NewQp { rail: rail as u8, connected, asks, qpn: Qpn::new(2), psn: Psn::new(0) };
        self.send(end, Message { ballot: left, body: Body::NewQp(qp) });
        self.run_actions(end);
    }

    pub(crate) fn receive(&mut self, end: usize, message: Message) {
        if let Body::NewQp(qp) = message.body {
            return self.send_new_qp(end, qp.rail.into(), Some((message.ballot, qp)));
        }
        let e = &mut self.ends[end];
        e.negotiation.handle(e.now, message);
    }

    fn fail(&mut self, end: usize, rail: usize, failure: RailFailure) {
        let e = &mut self.ends[end];
        let bit = 1 << rail;
        match failure {
            RailFailure::LinkDown => e.links &= !bit,
            RailFailure::NicDead => {
                e.links &= !bit;
                e.dead |= bit;
            }
            RailFailure::QpFailed | RailFailure::Silent => {}
        }
        e.negotiation.rail_failed(e.now, rail, failure);
        self.run_actions(end);
    }

    /// Brings the link of a rail up. A dead NIC stays dead, unless NICs recover.
    pub(crate) fn recover(&mut self, end: usize, rail: usize) {
        let nics_recover = self.limits.nics_recover;
        let e = &mut self.ends[end];
        if nics_recover {
            e.dead &= !(1 << rail);
        }
        if e.dead & (1 << rail) == 0 {
            e.links |= 1 << rail;
            e.negotiation.rail_recovered(e.now, rail);
            self.run_actions(end);
        }
    }

    pub(crate) fn free_home(&mut self, end: usize) {
        let is_repeated = self.without != Some(RailRule::StepRepeated);
        let e = &mut self.ends[end];
        if core::mem::take(&mut e.is_home_held) && is_repeated {
            e.negotiation.home_may_be_free();
            self.run_actions(end);
        }
    }

    /// Binds the queue pair of the new rail for a ballot. Returns false if the end must wait.
    fn bind(&mut self, end: usize, ballot: Option<Ballot>) -> bool {
        let e = &mut self.ends[end];
        let is_bound = !e.is_home_held || e.bound_for == ballot;
        if is_bound {
            e.bound_for = ballot;
        }
        is_bound
    }

    pub(crate) fn run_actions(&mut self, end: usize) {
        while let Some(action) = self.ends[end].negotiation.poll_action() {
            let e = &mut self.ends[end];
            match action {
                Action::Fence { rail } => {
                    e.is_fencing = true;
                    if e.links & (1 << rail) != 0 {
                        e.negotiation.rail_recovered(e.now, rail.into());
                    }
                }
                Action::Send(message) => {
                    let is_evidence = matches!(message.body, Body::Evidence { .. });
                    if !is_evidence || self.bind(end, Some(message.ballot)) {
                        self.send(end, message);
                    }
                }
                Action::Decide { rail, peer_evidence } => {
                    let ballot = e.negotiation.move_ballot();
                    if self.bind(end, ballot) {
                        self.decide(end, rail.into(), &peer_evidence);
                    }
                }
                Action::PeerMoved { .. } | Action::Stay => {}
                Action::Close { reason, peer_evidence } => self.close(end, reason, peer_evidence),
            }
        }
    }

    fn send(&mut self, end: usize, mut message: Message) {
        if let Body::Evidence { evidence: e, .. } = &mut message.body
            && self.without == Some(RailRule::OneEvidence)
        {
            self.ends[end].evidences += 1;
            *e = evidence(end, self.ends[end].evidences);
        }
        self.in_transit.insert((1 - end as u8, message));
    }

    /// Closes an end, which sends its final evidence and decides by the peer's evidence.
    fn close(&mut self, end: usize, reason: CloseReason, peer_evidence: Option<Evidence>) {
        let is_peer_reachable =
            !self.ends[1 - end].is_crashed && (0..RAILS).any(|rail| self.is_rail_up(rail));
        if reason == CloseReason::PeerClosed && peer_evidence.is_none() && is_peer_reachable && !self.was_late
        {
            self.violation.get_or_insert(KNOWN_EVIDENCE);
        }
        let gives_up = matches!(
            reason,
            CloseReason::NoRail | CloseReason::FailedDuringRecovery | CloseReason::PeerUnreachable
        );
        let is_early = self.ends[end].now < Time::ZERO + PEER_TIMEOUT;
        if gives_up && is_early && self.ends[end].dead & ALL_RAILS != ALL_RAILS {
            self.violation.get_or_insert(NO_HURRY);
        }
        let expected = evidence(1 - end, self.ends[end].moves.len() as u32 + 1);
        if peer_evidence.is_some_and(|evidence| evidence != expected) {
            self.violation.get_or_insert(FINAL_EVIDENCE);
        }
        let e = &mut self.ends[end];
        e.closed = Some(reason);
        e.negotiation.closed(Some(evidence(end, e.evidences + 1)));
    }

    fn decide(&mut self, end: usize, rail: usize, peer_evidence: &Evidence) {
        let number = self.ends[end].moves.len();
        let expected = evidence(1 - end, number as u32 + 1);
        if (peer_evidence.psn, self.ends[end].evidences) != (expected.psn, number as u32 + 1) {
            self.violation.get_or_insert(ONE_EVIDENCE);
        }
        let e = &mut self.ends[end];
        e.negotiation.moved(e.now, 0);
        e.moves.push((e.negotiation.ballot(), rail));
    }

    fn check(&mut self) {
        let [a, b] = &self.ends;
        if a.moves.iter().zip(&b.moves).any(|(a, b)| a != b) {
            self.violation.get_or_insert(ONE_ORDER);
        }
        let are_bound_alike = a.moves == b.moves && a.negotiation.may_post() && b.negotiation.may_post();
        let rail = a.negotiation.active();
        if are_bound_alike
            && (a.qps[rail].peer != Some(b.qps[rail].ballot) || b.qps[rail].peer != Some(a.qps[rail].ballot))
        {
            self.violation.get_or_insert(SAME_QPS);
        }
    }
}

fn evidence(end: usize, number: u32) -> Evidence {
    Evidence { psn: Some(Psn::new(1000 * end as u32 + number)), ..Evidence::default() }
}
