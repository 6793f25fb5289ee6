//! A counter in one word, whose adds count exactly once. Next to the value, the word has one field
//! per requester, which counts the adds of this requester.
//!
//! ```text
//!  63                   n·m n·m-1                        0
//! ┌────────────────────────┬───────┬─────┬───────┬───────┐
//! │ value, signed          │ n − 1 │  …  │   1   │   0   │   one field of m bits per requester
//! └────────────────────────┴───────┴─────┴───────┴───────┘
//! ```
//!
//! An add of δ by requester i, whose field contains f, is one FAA of δ·2^(n·m) + (f′ − f)·2^(i·m),
//! where f′ = (f + 1) mod 2^m (the single-bit sequence number of Eslick, DeHon and Knight, 1994; m
//! = 1 is that bit). Only requester i changes field i, and its adds are executed in order. So f is
//! the field's content when the add is executed, the field takes the value f′ between 0 and 2^m −
//! 1, and nothing is carried into the next field or into the value. After a failure and the fence,
//! the field tells how many of the undecided adds were executed, as long as at most 2^m − 1 adds
//! are undecided.
//!
//! # Limits
//! n requesters with fields of m bits, 1 ≤ m ≤ 3 and n·m ≤ 48; 2^m − 1 adds under way per
//! requester. The value is signed and has v = 64 − n·m bits. Each requester may add up to ±(2^(v−1)
//! − 1)/n in total, so the sum of all adds never wraps. The counter refuses an add beyond this
//! share ([`CounterError::ShareUsedUp`]).

use mitra_mutants::Mutant;
use smallvec::SmallVec;

use crate::operation::{Operation, Progress, Requests};
use crate::read_word::ReadWord;
use crate::request::{Outcome, Request, Word};

/// The highest number of bits that all fields together may have, which leaves a value of 16 bits.
pub const MAX_FIELD_BITS: u8 = 48;

/// The error of a counter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CounterError {
    /// The layout is out of range.
    #[error(
        "{requesters} fields of {field_bits} bits do not fit; use 1 to 3 bits, and at most {MAX_FIELD_BITS} for all fields"
    )]
    Layout {
        /// The number of requesters.
        requesters: u8,
        /// The bits of each field.
        field_bits: u8,
    },
    /// The layout has no such requester.
    #[error("requester {0} has no field; the numbers begin with 0")]
    NoSuchRequester(u8),
    /// More adds than the field can decide.
    #[error("a field can decide up to {max} adds at once, and at least one must be given; split them")]
    Adds {
        /// 2^m − 1.
        max: u8,
    },
    /// The requester's adds would leave its share of the value's range.
    #[error(
        "the adds of a requester may sum up to ±{share}, so that the value never wraps; use fewer fields or a new counter"
    )]
    ShareUsedUp {
        /// The share.
        share: i64,
    },
    /// The field contradicts the known outcomes of the adds.
    #[error(
        "the requester's field contains {found}, which contradicts what is known of its adds; give each requester a field of its own"
    )]
    Contradiction {
        /// The content of the field.
        found: u64,
    },
}

/// The bit layout of a counter's word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CounterLayout {
    requesters: u8,
    field_bits: u8,
}

impl CounterLayout {
    /// Creates a layout with a field of `field_bits` bits for each requester.
    ///
    /// # Errors
    /// [`CounterError::Layout`].
    pub fn new(requesters: u8, field_bits: u8) -> Result<CounterLayout, CounterError> {
        let fits = requesters >= 1
            && (1..=3).contains(&field_bits)
            && requesters.checked_mul(field_bits).is_some_and(|bits| bits <= MAX_FIELD_BITS);
        if fits {
            Ok(CounterLayout { requesters, field_bits })
        } else {
            Err(CounterError::Layout { requesters, field_bits })
        }
    }

    /// Returns the counter's value from the content of its word.
    pub fn value(self, content: u64) -> i64 {
        content.cast_signed() >> self.value_shift()
    }

    /// Returns the field of a requester from the content of the word: the number of its executed
    /// adds modulo 2^m.
    pub fn field(self, content: u64, requester: u8) -> u64 {
        content >> (u32::from(requester) * u32::from(self.field_bits)) & self.field_max()
    }

    /// Returns the highest number of adds that a requester may have under way: 2^m − 1.
    pub fn max_adds(self) -> u8 {
        self.field_max() as u8
    }

    /// Returns the highest absolute value of the sum of all adds of a requester.
    pub fn share(self) -> i64 {
        (i64::MAX >> self.value_shift()) / i64::from(self.requesters)
    }

    fn value_shift(self) -> u32 {
        u32::from(self.requesters) * u32::from(self.field_bits)
    }

    fn field_max(self) -> u64 {
        (1 << self.field_bits) - 1
    }

    /// Returns the addend of the FAA that adds `delta` and steps the field from the content
    /// `field`.
    fn addend(self, requester: u8, field: u64, delta: i64) -> u64 {
        let unit = 1_u64 << (u32::from(requester) * u32::from(self.field_bits));
        let step = if field == self.field_max() && !Mutant::FieldCarries.is_on() {
            (field * unit).wrapping_neg()
        } else {
            unit
        };
        (delta.cast_unsigned() << self.value_shift()).wrapping_add(step)
    }
}

/// A requester of a counter that has no add under way.
///
/// An add takes the requester, and its result returns the requester. Never use a copy of a
/// requester as well, because both would step the same field.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CounterClient {
    word: Word,
    layout: CounterLayout,
    requester: u8,
    field: u64,
    contributed: i64,
}

impl CounterClient {
    /// Creates a requester that has not added anything yet. The word is 0 before its first use. The
    /// first requester has number 0.
    ///
    /// # Errors
    /// [`CounterError::NoSuchRequester`].
    pub fn new(word: Word, layout: CounterLayout, requester: u8) -> Result<CounterClient, CounterError> {
        if requester >= layout.requesters {
            return Err(CounterError::NoSuchRequester(requester));
        }
        Ok(CounterClient { word, layout, requester, field: 0, contributed: 0 })
    }

    /// Continues an earlier life of the requester. `content` was read from the word, after
    /// everything that the earlier life had posted was fenced. `contributed` is the sum of its
    /// adds, or a bound of larger absolute value.
    ///
    /// # Errors
    /// [`CounterError::ShareUsedUp`] if `contributed` exceeds the requester's share.
    pub fn resume(self, content: u64, contributed: i64) -> Result<CounterClient, CounterError> {
        let field = self.layout.field(content, self.requester);
        self.check_share(contributed)?;
        Ok(CounterClient { field, contributed, ..self })
    }

    /// Returns the sum of this requester's adds.
    pub fn contributed(&self) -> i64 {
        self.contributed
    }

    /// Reads the counter, for [`CounterLayout::value`]. Cost: one READ.
    pub fn read(&self) -> ReadWord {
        ReadWord(self.word)
    }

    /// Adds 1 to 2^m − 1 numbers, in order.
    ///
    /// Cost: one FAA each, one round trip for all; after a failure that left adds undecided, one
    /// READ.
    ///
    /// # Errors
    /// [`CounterError::Adds`] and [`CounterError::ShareUsedUp`], with the requester. Nothing is
    /// added then.
    pub fn add_all(self, deltas: &[i64]) -> Result<Add, (CounterClient, CounterError)> {
        match self.check(deltas) {
            Err(error) => Err((self, error)),
            Ok(contributed) => Ok(Add {
                client: CounterClient { contributed, ..self },
                deltas: SmallVec::from_slice(deltas),
                previous: SmallVec::new(),
                outcomes: SmallVec::new(),
            }),
        }
    }

    /// Returns the sum of all adds after `deltas`.
    fn check(&self, deltas: &[i64]) -> Result<i64, CounterError> {
        let max = self.layout.max_adds();
        if !(1..=usize::from(max)).contains(&deltas.len()) {
            return Err(CounterError::Adds { max });
        }
        // Every prefix stays within the share, because a failure may leave any prefix executed.
        deltas.iter().try_fold(self.contributed, |sum, &delta| self.check_share(sum.saturating_add(delta)))
    }

    fn check_share(&self, sum: i64) -> Result<i64, CounterError> {
        let share = self.layout.share();
        if sum.unsigned_abs() > share.unsigned_abs() {
            return Err(CounterError::ShareUsedUp { share });
        }
        Ok(sum)
    }
}

/// The result of an add: every number was added exactly once.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Added {
    /// The requester, for the next add.
    pub client: CounterClient,
    /// The value before each add. `None` where a failure lost it.
    pub previous: SmallVec<[Option<i64>; 4]>,
}

/// An add under way.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Add {
    client: CounterClient,
    deltas: SmallVec<[i64; 4]>,
    /// The value before each executed add. The later adds are not executed, or undecided.
    previous: SmallVec<[Option<i64>; 4]>,
    /// The outcomes of the adds behind the executed adds, while the READ that decides them is under
    /// way. Otherwise empty.
    outcomes: SmallVec<[Outcome; 4]>,
}

impl Add {
    /// Returns the field before the add at this position behind the executed adds.
    fn field_before(&self, position: usize) -> u64 {
        (self.client.field + position as u64) & self.client.layout.field_max()
    }

    fn remaining(&self) -> Requests {
        let CounterClient { word, layout, requester, .. } = self.client;
        let deltas = self.deltas[self.previous.len()..].iter().enumerate();
        deltas
            .map(|(position, &delta)| {
                Request::fetch_add(word, layout.addend(requester, self.field_before(position), delta))
            })
            .collect()
    }

    /// Records the first `executed` adds of `outcomes` as executed, and posts the remaining adds.
    fn take(&mut self, outcomes: &[Outcome], executed: usize) -> Progress<Result<Added, CounterError>> {
        let layout = self.client.layout;
        for (position, outcome) in outcomes[..executed].iter().enumerate() {
            let found = outcome.value().map(|content| layout.field(content, self.client.requester));
            if let Some(found) = found.filter(|&found| found != self.field_before(position)) {
                return Progress::Done(Err(CounterError::Contradiction { found }));
            }
        }
        self.client.field = self.field_before(executed);
        let values = outcomes[..executed].iter().map(|o| o.value().map(|content| layout.value(content)));
        self.previous.extend(values);
        if self.previous.len() == self.deltas.len() {
            let (client, previous) = (self.client.clone(), self.previous.clone());
            return Progress::Done(Ok(Added { client, previous }));
        }
        Progress::Post(self.remaining())
    }

    /// Decides the undecided adds from the field.
    fn decide(&mut self, content: u64) -> Progress<Result<Added, CounterError>> {
        let outcomes = core::mem::take(&mut self.outcomes);
        let found = self.client.layout.field(content, self.client.requester);
        let executed = (found.wrapping_sub(self.client.field) & self.client.layout.field_max()) as usize;
        let agrees = |(position, outcome): (usize, &Outcome)| match outcome {
            Outcome::Unknown => true,
            outcome => outcome.is_executed() == (position < executed),
        };
        if executed > outcomes.len() || !outcomes.iter().enumerate().all(agrees) {
            return Progress::Done(Err(CounterError::Contradiction { found }));
        }
        self.take(&outcomes, executed)
    }
}

impl Operation for Add {
    type Output = Result<Added, CounterError>;

    fn start(&mut self) -> Progress<Self::Output> {
        Progress::Post(self.remaining())
    }

    fn on_outcomes(&mut self, outcomes: &[Outcome]) -> Progress<Self::Output> {
        let read = Progress::Post(Requests::from_slice(&[Request::read(self.client.word)]));
        if !self.outcomes.is_empty() {
            let content = outcomes.first().and_then(|outcome| outcome.value());
            return content.map_or(read, |content| self.decide(content));
        }
        let executed = outcomes.iter().take_while(|outcome| outcome.is_executed()).count();
        let is_not_executed = |o: &Outcome| *o == Outcome::NotExecuted || Mutant::UnknownAddRepeated.is_on();
        let rest_not_executed = outcomes[executed..].iter().all(is_not_executed);
        if rest_not_executed {
            return self.take(outcomes, executed);
        }
        // An executed add behind an add with unknown outcome also needs the READ: the field must
        // show both adds.
        self.outcomes = SmallVec::from_slice(outcomes);
        read
    }
}
