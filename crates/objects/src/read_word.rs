use smallvec::smallvec;

use crate::operation::{Operation, Progress};
use crate::request::{Outcome, Request, Word};

/// Reads one word. Cost: one READ, one round trip; one more for each failure in between.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReadWord(
    /// The word.
    pub Word,
);

impl Operation for ReadWord {
    type Output = u64;

    fn start(&mut self) -> Progress<u64> {
        Progress::Post(smallvec![Request::read(self.0)])
    }

    fn on_outcomes(&mut self, outcomes: &[Outcome]) -> Progress<u64> {
        // A READ changes nothing, so it may run again whether or not it was executed.
        outcomes.first().and_then(|outcome| outcome.value()).map_or_else(|| self.start(), Progress::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mitra_verbs::{Key, RemoteAddr};

    #[test]
    fn read_is_repeated_until_its_value_is_known() {
        let word = Word::new(RemoteAddr { addr: 64, rkey: Key(7) }).unwrap();
        let mut read = ReadWord(word);
        let post = Progress::Post(smallvec![Request::read(word)]);
        assert_eq!(read.start(), post);
        for outcome in [Outcome::ValueLost, Outcome::NotExecuted, Outcome::Unknown] {
            assert_eq!(read.on_outcomes(&[outcome]), post);
        }
        assert_eq!(read.on_outcomes(&[Outcome::Executed { value: 5 }]), Progress::Done(5));
    }
}
