//! The detector of silent rails.
//!
//! An end that waits on its active rail without progress asks the peer numbered questions on every
//! rail. The peer answers each question on the rail on which the question arrived. If another rail
//! answers several questions in a row that the active rail leaves unanswered, the active rail has
//! failed. The time alone condemns no rail: a peer that is suspended or slow answers on no rail.
//!
//! The detector is a state machine without I/O and without a clock.

use core::time::Duration;

use mitra_mutants::Mutant;
use mitra_verbs::Time;
use smallvec::{SmallVec, smallvec};

/// The number of questions in a row that another rail must answer before the last timeout of the
/// active rail begins. One more answer after this timeout condemns the active rail. A network that
/// loses 1 % of the packets leaves 2 questions of 100 unanswered, so it leaves four in a row
/// unanswered in 16 of 100 million cases.
const CONFIRMATIONS: u32 = 4;
/// The minimum time without progress before the first question, and between the last confirmation
/// and the condemnation.
const MIN_TIMEOUT: Duration = Duration::from_millis(1);
/// The minimum time between two questions.
const MIN_INTERVAL: Duration = Duration::from_micros(250);
/// The timeout is at least this many times the longest recent round trip of any rail.
const ROUND_TRIPS: u32 = 4;
/// The round trip to a peer that has answered no question yet.
const UNKNOWN_ROUND_TRIP: Duration = Duration::from_millis(1);
/// A longer round trip counts as this long.
const MAX_ROUND_TRIP: Duration = Duration::from_millis(100);
/// The time after which the longest round trip of a rail counts half.
const HALF_LIFE: Duration = Duration::from_millis(50);
/// Questions queue behind data. Each byte in flight adds this time to the timeout, which is the
/// time of a byte at 100 MB/s.
const TIME_PER_BYTE: Duration = Duration::from_nanos(10);
/// The maximum time that bytes in flight add to the timeout.
const MAX_QUEUE_TIME: Duration = Duration::from_millis(100);
/// The number of questions that only measure the round trips. At most one of them is asked in each
/// [`RailQuestions::longest_pause`].
const MEASUREMENTS: u64 = 4;
/// The number of questions whose times are kept.
const KEPT: usize = 8;
/// The maximum number of questions of a rail that wait for the answer. The oldest are dropped.
const MAX_OWED: usize = 4;

/// What this end waits for on its active rail.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Wait {
    /// Changes with each progress.
    pub progress: u64,
    /// The number of bytes in flight, or more.
    pub bytes: u64,
}

impl Wait {
    /// The peer has sent no heartbeat for too long, and nothing else is awaited.
    pub const HEARTBEAT: Wait = Wait { progress: u64::MAX, bytes: 0 };
}

/// What the driver must do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// Nothing before [`RailQuestions::next`].
    Rest,
    /// Send the question with this number on every rail.
    Ask(u64),
    /// The active rail has failed.
    Condemn,
}

/// The questions and answers of one end.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RailQuestions {
    /// The number of the last question; 0 before the first.
    asked: u64,
    /// The times of the last questions. Question n has index n modulo [`KEPT`].
    asked_at: [Time; KEPT],
    rails: SmallVec<[Answers; 2]>,
    /// The active rail and the progress at the last run. `None` if this end waited for nothing.
    watched: Option<(usize, u64)>,
    /// The time of the last progress, answer of the active rail or condemnation.
    since: Time,
    /// The number of times that the active rail answered, or was condemned, since the last
    /// progress. Each doubles the time until the next question.
    backoff: u32,
    /// The time without progress before the first question, as of the last run.
    lag: Duration,
    /// The time for an answer, which may queue behind data, as of the last run.
    timeout: Duration,
    /// The maximum time between two questions of a round that the active rail, or no rail, answers.
    longest_pause: Duration,
    round: Option<Round>,
}

/// The questions and answers of one rail.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Answers {
    /// The highest number that the peer has answered here.
    answered: u64,
    /// The numbers of the peer's questions here that wait for the answer. Each gets an answer of
    /// its own, so that the loss of one message leaves one question unanswered.
    owed: SmallVec<[u64; 1]>,
    round_trip: Option<RoundTrip>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct RoundTrip {
    shortest: Duration,
    /// The longest one, as of `measured_at`.
    longest: Duration,
    measured_at: Time,
}

/// Questions that the active rail has not answered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Round {
    /// The number of questions in a row that another rail has answered within the timeout. An
    /// unanswered question is repeated after the timeout, so each question that confirms was sent
    /// after the answer to the one before.
    confirmations: u32,
    /// The last question that another rail has answered.
    last_answered: u64,
    /// The time of the last confirmation needed.
    confirmed_at: Option<Time>,
    /// Whether another rail has confirmed again after the timeout of the active rail, which could
    /// have answered until then.
    is_condemned: bool,
    next_question: Time,
    /// The pause after the next question if no rail answers it.
    pause: Duration,
}

impl RoundTrip {
    fn longest(self, now: Time) -> Duration {
        let age = now.saturating_since(self.measured_at);
        let half_lives = u32::try_from(age.as_nanos() / HALF_LIFE.as_nanos()).unwrap_or(u32::MAX);
        if Mutant::LagNeverDecays.is_on() {
            return self.longest;
        }
        (self.longest / 2_u32.saturating_pow(half_lives)).max(self.shortest)
    }

    /// A shorter round trip leaves the longest one, and its age.
    fn add(known: Option<RoundTrip>, now: Time, measured: Duration) -> RoundTrip {
        let measured = measured.min(MAX_ROUND_TRIP);
        let shortest = known.map_or(measured, |known| known.shortest.min(measured));
        match known {
            Some(known) if known.longest(now) > measured => RoundTrip { shortest, ..known },
            _ => RoundTrip { shortest, longest: measured, measured_at: now },
        }
    }
}

impl RailQuestions {
    /// The state of an end that has asked nothing.
    pub fn new(rails: usize) -> RailQuestions {
        RailQuestions {
            asked: 0,
            asked_at: [Time::ZERO; KEPT],
            rails: smallvec![Answers::default(); rails],
            watched: None,
            since: Time::ZERO,
            backoff: 0,
            lag: MIN_TIMEOUT,
            timeout: MIN_TIMEOUT,
            longest_pause: MIN_TIMEOUT,
            round: None,
        }
    }

    /// Records a question of the peer, which the driver answers after it has read the messages of
    /// all rails ([`RailQuestions::take_owed`]).
    pub fn on_question(&mut self, rail: usize, number: u64) {
        let owed = &mut self.rails[rail].owed;
        if owed.len() == MAX_OWED {
            owed.remove(0);
        }
        owed.push(number);
    }

    /// Returns the numbers to answer on `rail`. A closed end answers nothing, because its queue
    /// pairs execute nothing.
    pub fn take_owed(&mut self, rail: usize, is_closed: bool) -> SmallVec<[u64; 1]> {
        let owed = core::mem::take(&mut self.rails[rail].owed);
        if is_closed && !Mutant::ClosedVqpAnswers.is_on() { SmallVec::new() } else { owed }
    }

    /// Records the peer's answer to question `number`, which arrived on `rail`.
    pub fn on_answer(&mut self, now: Time, rail: usize, number: u64) {
        if number > self.asked || number <= self.rails[rail].answered {
            return;
        }
        // The times of older questions are not kept, and the oldest kept one is a lower bound.
        let kept = number.max((self.asked + 1).saturating_sub(KEPT as u64));
        let round_trip = now.saturating_since(self.asked_at[kept as usize % KEPT]);
        let answers = &mut self.rails[rail];
        answers.answered = number;
        answers.round_trip = Some(RoundTrip::add(answers.round_trip, now, round_trip));
        let Some((active, _)) = self.watched else { return };
        let Some(round) = &mut self.round else { return };
        if rail == active {
            return self.clear_round(now);
        }
        if number <= round.last_answered {
            return; // another rail has answered it
        }
        round.last_answered = number;
        if round_trip > self.timeout && !Mutant::StaleAnswerCounts.is_on() {
            // One of the ends was suspended or got no processor meanwhile, and may have read this
            // rail before the active one.
            (round.confirmations, round.confirmed_at, round.is_condemned) = (0, None, false);
        } else {
            round.confirmations += 1;
            let needed = if Mutant::OneConfirmation.is_on() { 1 } else { CONFIRMATIONS };
            if round.confirmations == needed {
                round.confirmed_at = Some(now);
            }
            round.is_condemned = round.confirmed_at.is_some_and(|at| now >= at + self.timeout);
        }
        round.next_question = self.asked_at[self.asked as usize % KEPT] + MIN_INTERVAL;
        round.pause = MIN_INTERVAL;
    }

    fn clear_round(&mut self, now: Time) {
        self.round = None;
        self.since = now;
        self.backoff = self.backoff.saturating_add(1);
    }

    /// Records progress of an end that does not run before [`RailQuestions::next`].
    #[inline]
    pub fn note_wait(&mut self, now: Time, active: usize, wait: Option<Wait>) {
        let watched = wait.map(|wait| (active, wait.progress));
        if self.watched != watched {
            self.watched = watched;
            self.round = None;
            self.since = now;
            self.backoff = 0;
        }
    }

    /// Decides the next step. To be called after all messages that have arrived were handled.
    /// `wait` is `None` if this end waits for nothing. `longest_pause` limits the time between two
    /// questions that the active rail has answered, or no rail.
    pub fn run(&mut self, now: Time, active: usize, wait: Option<Wait>, longest_pause: Duration) -> Step {
        self.note_wait(now, active, wait);
        self.longest_pause = longest_pause;
        let Some(wait) = wait else { return Step::Rest };
        // The first answers may be late, because the peer has not begun to poll.
        let last_asked_at = self.asked_at[self.asked as usize % KEPT];
        if self.round.is_none()
            && self.asked < MEASUREMENTS
            && (self.asked == 0 || now >= last_asked_at + longest_pause)
        {
            return self.ask(now);
        }
        self.lag = self.current_lag(now);
        self.timeout = self.lag + queue_time(wait.bytes);
        if self.round.is_none() && now < self.since + self.first_pause() {
            return Step::Rest;
        }
        let is_old =
            Mutant::ClockCondemns.is_on() && now >= self.since + self.first_pause().saturating_mul(4);
        let round = self.round.get_or_insert(Round {
            confirmations: 0,
            last_answered: self.asked,
            confirmed_at: None,
            is_condemned: false,
            next_question: now,
            pause: MIN_INTERVAL,
        });
        let is_overdue = Mutant::StarvedEndCondemns.is_on()
            && round.confirmed_at.is_some_and(|at| now >= at + self.timeout);
        if round.is_condemned || is_old || is_overdue {
            self.clear_round(now);
            return Step::Condemn;
        }
        if now < round.next_question { Step::Rest } else { self.ask(now) }
    }

    fn ask(&mut self, now: Time) -> Step {
        self.asked += 1;
        self.asked_at[self.asked as usize % KEPT] = now;
        if let Some(round) = &mut self.round {
            // An unanswered question may be lost, or the peer is slow.
            round.next_question = now + round.pause.max(self.timeout);
            round.pause = round.pause.saturating_mul(2).min(self.longest_pause);
        }
        Step::Ask(self.asked)
    }

    /// The rails share the lag of the peer's program, so the longest round trip of any rail counts.
    fn current_lag(&self, now: Time) -> Duration {
        let known = self.rails.iter().filter_map(|rail| Some(rail.round_trip?.longest(now)));
        let longest = known.max().unwrap_or(UNKNOWN_ROUND_TRIP);
        MIN_TIMEOUT.max(ROUND_TRIPS * longest)
    }

    /// Whether questions wait for an answer on the active rail.
    pub(crate) fn is_asking(&self) -> bool {
        self.round.is_some()
    }

    /// The time from `since` to the first question of a round.
    fn first_pause(&self) -> Duration {
        let doubled = self.lag.saturating_mul(2_u32.saturating_pow(self.backoff));
        doubled.min(self.longest_pause.max(self.lag))
    }

    /// The time of the next [`RailQuestions::run`]. `None` if this end waits for nothing.
    pub fn next(&self) -> Option<Time> {
        self.watched?;
        Some(self.round.map_or_else(|| self.since + self.first_pause(), |round| round.next_question))
    }

    /// The time of the next run if this end waits as given, and ran last at `last_run`.
    pub fn next_of(&self, active: usize, wait: Wait, last_run: Time) -> Option<Time> {
        if self.watched == Some((active, wait.progress)) { self.next() } else { Some(last_run + MIN_TIMEOUT) }
    }
}

fn queue_time(bytes: u64) -> Duration {
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    TIME_PER_BYTE.saturating_mul(bytes).min(MAX_QUEUE_TIME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_round_trip_counts_less_although_others_are_measured() {
        let millis = Duration::from_millis;
        let (mut now, mut measured) = (Time::ZERO, None);
        for (round_trip, longest) in
            [(80, 80), (1, 80), (1, 80), (1, 40), (1, 40), (1, 20), (60, 60), (1, 60)]
        {
            let added = RoundTrip::add(measured, now, millis(round_trip));
            assert_eq!(
                (added.longest(now), added.shortest),
                (millis(longest), millis(round_trip).min(added.shortest))
            );
            measured = Some(added);
            now += HALF_LIFE * 2 / 5;
        }
        assert_eq!(measured.map(|added| added.longest(now + 20 * HALF_LIFE)), Some(millis(1)));
    }
}
