//! Whether an owed acknowledgement leaves at an idle poll or waits for company, learnt from the requester.

/// The first idle polls that are not waited at, and the least number after a disappointment.
const LEAST: u32 = 64;
/// The greatest number.
const MOST: u32 = 1 << 16;

/// A requester that goes on without acknowledgement (two sides that answer each other's messages) is better served by one
/// acknowledgement for sixteen requests: each costs both sides a system call in the middle of their exchange. One
/// that waits for its completion is better served at once. Which it is shows when an acknowledgement is held
/// back: the next request comes, or it does not. Each time that it does not, the next try is put off twice as long.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Patience {
    waiting: bool,
    /// Idle polls left at which it does not wait.
    eager: u32,
    /// What `eager` becomes at the next disappointment.
    backoff: u32,
}

impl Patience {
    pub(crate) fn new() -> Patience {
        Patience { waiting: false, eager: LEAST, backoff: LEAST }
    }

    /// Whether an acknowledgement waits beyond an idle poll.
    pub(crate) fn waiting(&self) -> bool {
        self.waiting
    }

    /// An idle poll: whether to wait.
    pub(crate) fn wait(&mut self) -> bool {
        self.waiting = self.eager == 0;
        self.eager = self.eager.saturating_sub(1);
        self.waiting
    }

    /// A request came that wants an acknowledgement too.
    pub(crate) fn rewarded(&mut self) {
        if std::mem::take(&mut self.waiting) {
            self.backoff = LEAST;
        }
    }

    /// It left before it could be known.
    pub(crate) fn interrupted(&mut self) {
        self.waiting = false;
    }

    /// The timer came first.
    pub(crate) fn disappointed(&mut self) {
        if std::mem::take(&mut self.waiting) {
            self.eager = self.backoff;
            self.backoff = (self.backoff * 2).min(MOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Idle polls at which it waited, of `n`, if the requester behaves so each time.
    fn waits(patience: &mut Patience, n: u32, goes_on: bool) -> u32 {
        let outcome = if goes_on { Patience::rewarded } else { Patience::disappointed };
        (0..n)
            .filter(|_| {
                let waited = patience.wait();
                outcome(patience);
                waited
            })
            .count() as u32
    }

    #[test]
    fn it_waits_for_who_goes_on_and_hardly_ever_for_who_does_not() {
        let mut patience = Patience::new();
        assert_eq!(waits(&mut patience, 64, true), 0);
        assert_eq!(waits(&mut patience, 1000, true), 1000);
        assert!(waits(&mut patience, 100_000, false) <= 12);
        // It finds out again when the requester changes.
        assert!(waits(&mut patience, 100_000, true) >= 30_000);
    }
}
