//! The detector of silent rails: an end that waits for an operation, its peer, and the questions
//! and answers in transit on two rails.
//!
//! Time advances in ticks. A rail that works delivers each message before the second tick after it
//! was sent, and a peer that is not suspended answers as fast. An end that was suspended finds the
//! messages of all rails unread.

use core::time::Duration;
use std::collections::VecDeque;

use mitra_failover::silence_detector::{RailQuestions, Step, Wait};
use mitra_prng::Prng;
use mitra_verbs::Time;

use crate::{Exhaustive, Exploration, SeedResult, Violation};

const RAILS: usize = 2;
const ACTIVE: usize = 0;
const TICK: Duration = Duration::from_micros(250);
/// The longest time between two questions.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// The time for which the asking end is suspended.
const SUSPENSION: Duration = Duration::from_millis(8);
/// The time without operations before the active rail fails in the stable period. The round trips
/// that faults have lengthened are forgotten then.
const QUIET: Duration = Duration::from_secs(2);
/// The number of ticks within which a rail that fails after [`QUIET`] is left: the first question
/// after 4, four confirmations of at most 3, and the timeout of 4, with a few to spare.
const MAX_TICKS: u32 = 28;
/// The maximum number of steps before the stable period of a run from a seed.
const MAX_RANDOM_STEPS: u64 = 600;

pub(crate) const PROPERTIES: &[&str] = &[
    "a rail is left only after it has failed",
    "a closed end answers nothing",
    "a rail that has failed is left in time",
];

/// The faults that may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QuestionLimits {
    /// Losses of messages on rails that work. Fewer than the confirmations that a rail needs.
    pub losses: u8,
    /// Directions of rails that fail.
    pub breaks: u8,
    /// Times that the peer is suspended.
    pub absences: u8,
    /// Times that the asking end is suspended.
    pub suspensions: u8,
    /// Whether the peer may close.
    pub closes: bool,
}

/// A step of the world.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QuestionStep {
    /// The asking end reads what has arrived and runs, and a tick passes.
    Tick,
    /// The oldest message of a rail arrives.
    Deliver {
        /// The rail.
        rail: usize,
    },
    /// The peer answers the questions that have arrived.
    Answer,
    /// The asking end's operation completes, and it waits for the next one.
    Progress,
    /// The oldest message of a rail is lost.
    Lose {
        /// The rail.
        rail: usize,
    },
    /// A rail delivers nothing more in one direction.
    Break {
        /// The rail.
        rail: usize,
        /// Whether the direction is that of questions.
        questions: bool,
    },
    /// The peer is suspended, or goes on.
    Suspend {
        /// Whether the peer is suspended.
        absent: bool,
    },
    /// The asking end is suspended for some time.
    Starve,
    /// The peer closes.
    Close,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Packet {
    Question(u64),
    Answer(u64),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Rail {
    /// With the times at which they were sent, or were found unread.
    in_transit: VecDeque<(Packet, Time)>,
    /// The answers that have arrived and were not read.
    arrived: Vec<u64>,
    /// Whether questions, and answers, are lost from now on.
    broken: [bool; 2],
}

/// The two ends and the rails between them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct QuestionWorld {
    now: Time,
    asker: RailQuestions,
    peer: RailQuestions,
    rails: [Rail; RAILS],
    /// The time since which the peer has had a question to answer.
    owes_since: Option<Time>,
    is_peer_absent: bool,
    is_peer_closed: bool,
    progress: u64,
    is_left: bool,
    limits: QuestionLimits,
    /// The first property that does not hold.
    pub violation: Option<&'static str>,
}

impl QuestionWorld {
    /// A world in which both rails have answered once.
    pub fn new(limits: QuestionLimits) -> QuestionWorld {
        let mut asker = RailQuestions::new(RAILS);
        let (now, wait) = (Time::ZERO + TICK, Wait { progress: 0, bytes: 0 });
        if let Step::Ask(number) = asker.run(Time::ZERO, ACTIVE, Some(wait), LONGEST_PAUSE) {
            (0..RAILS).for_each(|rail| asker.on_answer(now, rail, number));
        }
        QuestionWorld {
            now,
            asker,
            peer: RailQuestions::new(RAILS),
            rails: Default::default(),
            owes_since: None,
            is_peer_absent: false,
            is_peer_closed: false,
            progress: 0,
            is_left: false,
            limits,
            violation: None,
        }
    }

    /// Returns all steps that are possible now, always in the same order.
    pub fn steps(&self) -> Vec<QuestionStep> {
        if self.is_left || self.violation.is_some() {
            return Vec::new();
        }
        let mut steps = Vec::new();
        if !self.is_message_late() {
            steps.push(QuestionStep::Tick);
        }
        for (rail, state) in self.rails.iter().enumerate() {
            let waits_for_peer = |packet| matches!(packet, Packet::Question(_)) && self.is_peer_absent;
            if state.in_transit.front().is_some_and(|&(packet, _)| !waits_for_peer(packet)) {
                steps.push(QuestionStep::Deliver { rail });
            }
            if self.limits.losses > 0 && !state.in_transit.is_empty() {
                steps.push(QuestionStep::Lose { rail });
            }
            for questions in [false, true] {
                if self.limits.breaks > 0 && !state.broken[usize::from(questions)] {
                    steps.push(QuestionStep::Break { rail, questions });
                }
            }
        }
        if self.owes_since.is_some() && !self.is_peer_absent {
            steps.push(QuestionStep::Answer);
        }
        if self.progress == 0 && self.rails[ACTIVE].broken == [false; 2] && !self.is_peer_closed {
            steps.push(QuestionStep::Progress);
        }
        if self.is_peer_absent || self.limits.absences > 0 {
            steps.push(QuestionStep::Suspend { absent: !self.is_peer_absent });
        }
        if self.limits.suspensions > 0 {
            steps.push(QuestionStep::Starve);
        }
        if self.limits.closes && !self.is_peer_closed {
            steps.push(QuestionStep::Close);
        }
        steps
    }

    /// Whether a message must arrive, or an answer be sent, before the next tick.
    fn is_message_late(&self) -> bool {
        let is_late = |since: Time| since < self.now;
        let mut in_transit = self.rails.iter().flat_map(|rail| &rail.in_transit);
        in_transit.any(|&(packet, sent_at)| match packet {
            Packet::Question(_) => is_late(sent_at) && !self.is_peer_absent,
            Packet::Answer(_) => is_late(sent_at),
        }) || !self.is_peer_absent && self.owes_since.is_some_and(is_late)
    }

    /// Applies a step from [`QuestionWorld::steps`].
    pub fn apply(&mut self, step: QuestionStep) {
        match step {
            QuestionStep::Tick => {
                self.run_asker(Some(Wait { progress: self.progress, bytes: 0 }));
                self.now += TICK;
            }
            QuestionStep::Deliver { rail } => match self.rails[rail].in_transit.pop_front() {
                Some((Packet::Question(number), _)) => {
                    self.peer.on_question(rail, number);
                    self.owes_since.get_or_insert(self.now);
                }
                Some((Packet::Answer(number), _)) => self.rails[rail].arrived.push(number),
                None => {}
            },
            QuestionStep::Answer => {
                self.owes_since = None;
                for rail in 0..RAILS {
                    for number in self.peer.take_owed(rail, self.is_peer_closed) {
                        if self.is_peer_closed {
                            self.violation = Some(PROPERTIES[1]);
                        }
                        self.send(rail, Packet::Answer(number));
                    }
                }
            }
            QuestionStep::Progress => self.progress += 1,
            QuestionStep::Lose { rail } => {
                self.rails[rail].in_transit.pop_front();
                self.limits.losses -= 1;
            }
            QuestionStep::Break { rail, questions } => {
                self.break_rail(rail, questions);
                self.limits.breaks -= 1;
            }
            QuestionStep::Suspend { absent } => {
                self.is_peer_absent = absent;
                self.limits.absences -= u8::from(absent);
                self.find_unread();
            }
            QuestionStep::Starve => {
                self.now += SUSPENSION;
                self.limits.suspensions -= 1;
                self.find_unread();
            }
            QuestionStep::Close => self.is_peer_closed = true,
        }
    }

    /// Handles the answers that have arrived, and runs the asking end.
    fn run_asker(&mut self, wait: Option<Wait>) {
        for rail in 0..RAILS {
            for number in core::mem::take(&mut self.rails[rail].arrived) {
                self.asker.on_answer(self.now, rail, number);
            }
        }
        match self.asker.run(self.now, ACTIVE, wait, LONGEST_PAUSE) {
            Step::Rest => {}
            Step::Ask(number) => (0..RAILS).for_each(|rail| self.send(rail, Packet::Question(number))),
            Step::Condemn => {
                self.is_left = true;
                if self.rails[ACTIVE].broken == [false; 2] {
                    self.violation = Some(PROPERTIES[0]);
                }
            }
        }
    }

    fn send(&mut self, rail: usize, packet: Packet) {
        let (rail, is_question) = (&mut self.rails[rail], matches!(packet, Packet::Question(_)));
        if !rail.broken[usize::from(is_question)] {
            rail.in_transit.push_back((packet, self.now));
        }
    }

    fn break_rail(&mut self, rail: usize, questions: bool) {
        let rail = &mut self.rails[rail];
        rail.broken[usize::from(questions)] = true;
        rail.in_transit.retain(|(packet, _)| matches!(packet, Packet::Question(_)) != questions);
    }

    /// What lies unread when an end goes on arrives from now on.
    fn find_unread(&mut self) {
        let unread = self.rails.iter_mut().flat_map(|rail| &mut rail.in_transit);
        unread.for_each(|(_, sent_at)| *sent_at = self.now);
        self.owes_since = self.owes_since.map(|_| self.now);
    }

    /// Returns whether the active rail is left in time if it fails after a quiet time without
    /// further faults.
    fn is_left_in_time(&self) -> bool {
        let mut world = self.clone();
        if world.is_left || world.is_peer_closed || world.rails[1].broken != [false; 2] {
            return true;
        }
        world.is_peer_absent = false;
        world.deliver_all();
        world.run_asker(None);
        world.now += QUIET;
        world.break_rail(ACTIVE, true);
        world.progress += 1;
        for _ in 0..MAX_TICKS {
            world.apply(QuestionStep::Tick);
            world.deliver_all();
            if world.is_left {
                return true;
            }
        }
        false
    }

    fn deliver_all(&mut self) {
        self.apply(QuestionStep::Answer);
        while let Some(rail) = (0..RAILS).find(|&rail| !self.rails[rail].in_transit.is_empty()) {
            self.apply(QuestionStep::Deliver { rail });
            self.apply(QuestionStep::Answer);
        }
    }
}

/// Explores the worlds of an end that asks questions which are reachable within the limits and this
/// number of ticks.
pub fn exhaustive_questions(limits: QuestionLimits, ticks: u32) -> Exhaustive<QuestionWorld, QuestionStep> {
    let end = Time::ZERO + ticks * TICK + u32::from(limits.suspensions) * SUSPENSION;
    let start = QuestionWorld::new(limits);
    Exhaustive::new(start, QuestionWorld::steps, QuestionWorld::apply)
        .within(move |world| world.now <= end)
        .always(PROPERTIES[0], |world| world.violation != Some(PROPERTIES[0]))
        .always(PROPERTIES[1], |world| world.violation != Some(PROPERTIES[1]))
        .always(PROPERTIES[2], |world| world.violation.is_some() || world.is_left_in_time())
}

impl QuestionLimits {
    /// No fault.
    pub const NONE: QuestionLimits =
        QuestionLimits { losses: 0, breaks: 0, absences: 0, suspensions: 0, closes: false };
    /// One message fewer than the questions that another rail must answer is lost.
    pub const LOSSES: QuestionLimits = QuestionLimits { losses: 3, ..QuestionLimits::NONE };
    /// One direction of a rail fails, and the peer may close.
    pub const ONE_BREAK: QuestionLimits = QuestionLimits { breaks: 1, closes: true, ..QuestionLimits::NONE };
    /// The peer is suspended once.
    pub const ONE_ABSENCE: QuestionLimits = QuestionLimits { absences: 1, ..QuestionLimits::NONE };
    /// The asking end is suspended once.
    pub const ONE_SUSPENSION: QuestionLimits = QuestionLimits { suspensions: 1, ..QuestionLimits::NONE };
}

pub(crate) fn explore() -> Exploration {
    let explore = |limits, ticks| exhaustive_questions(limits, ticks).explore();
    explore(QuestionLimits::LOSSES, 17)
        .and_then(|| explore(QuestionLimits::ONE_BREAK, 15))
        .and_then(|| explore(QuestionLimits::ONE_ABSENCE, 15))
        .and_then(|| explore(QuestionLimits::ONE_SUSPENSION, 6))
}

pub(crate) fn run_from_seed(seed: u64) -> SeedResult {
    let mut prng = Prng::new(seed);
    let kinds = [
        QuestionLimits::LOSSES,
        QuestionLimits { suspensions: 1, ..QuestionLimits::LOSSES },
        QuestionLimits { losses: 1, absences: 3, suspensions: 5, ..QuestionLimits::NONE },
        QuestionLimits { losses: 1, breaks: 2, absences: 2, suspensions: 2, closes: true },
    ];
    let limits = *prng.pick(&kinds);
    let mut world = QuestionWorld::new(limits);
    // In some runs, the active rail and the time take their steps only if there is no other.
    let (is_active_rail_slow, is_time_slow) = (prng.index(2) == 0, prng.index(2) == 0);
    let steps_per_fault = [4, 24][prng.index(2)];
    let steps = prng.below(MAX_RANDOM_STEPS);
    let mut faults = 0;
    for _ in 0..steps {
        let (going, causes): (Vec<_>, Vec<_>) = world.steps().into_iter().partition(|step| {
            use QuestionStep::{Answer, Deliver, Tick};
            matches!(step, Tick | Deliver { .. } | Answer)
        });
        let is_fault = !causes.is_empty() && prng.index(steps_per_fault) == 0;
        let (slow, fast): (Vec<_>, Vec<_>) = going.into_iter().partition(|step| match step {
            QuestionStep::Tick => is_time_slow,
            QuestionStep::Deliver { rail: ACTIVE } => is_active_rail_slow,
            _ => false,
        });
        // Time passes before the slow rail delivers, as long as it may.
        let first = |steps: Vec<_>| {
            if steps.contains(&QuestionStep::Tick) { vec![QuestionStep::Tick] } else { steps }
        };
        let choices = if is_fault {
            causes
        } else if fast.is_empty() {
            first(slow)
        } else {
            fast
        };
        if choices.is_empty() {
            break;
        }
        faults += u32::from(is_fault);
        world.apply(*prng.pick(&choices));
    }
    let late = || (!world.is_left_in_time()).then_some(PROPERTIES[2]);
    let violation = world.violation.or_else(late).map(Violation::Property);
    SeedResult { steps, faults, violation }
}
