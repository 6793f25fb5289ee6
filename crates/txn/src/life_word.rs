//! The life word, which has the state of a coordinator's latest life.
//!
//! | bits | content |
//! |---|---|
//! | 48–63 | the incarnation of the latest life that has begun; 0 if there was none |
//! | 32–47 | its state: 0 recovered, 1 live, 2 claimed |
//! | 16–31 | the coordinator that recovers it |
//! | 0–15 | the incarnation of that coordinator |
//!
//! The line of a coordinator has this word at byte 0, and its heartbeat at byte 8
//! ([`Detector`](crate::Detector)).

use crate::lock_word::Life;

/// A coordinator's life word: the state of its latest life. Every 64-bit value is valid.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LifeWord(u64);

/// The state of the life that a [`LifeWord`] names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LifeState {
    /// The life has ended, and its log has been applied.
    Recovered,
    /// The life runs, or has ended unnoticed.
    Live,
    /// The named life recovers this life.
    Claimed(Life),
}

impl LifeWord {
    const LIVE: u64 = 1;
    const CLAIMED: u64 = 2;

    /// Returns the word for a life in this state.
    pub fn new(life: Life, state: LifeState) -> LifeWord {
        let (state, recoverer) = match state {
            LifeState::Recovered => (0, Life { coordinator: 0, incarnation: 0 }),
            LifeState::Live => (LifeWord::LIVE, Life { coordinator: 0, incarnation: 0 }),
            LifeState::Claimed(recoverer) => (LifeWord::CLAIMED, recoverer),
        };
        let recoverer = u64::from(recoverer.coordinator) << 16 | u64::from(recoverer.incarnation);
        LifeWord(u64::from(life.incarnation) << 48 | state << 32 | recoverer)
    }

    /// Returns the word with this content of the memory.
    pub fn from_bits(bits: u64) -> LifeWord {
        LifeWord(bits)
    }

    /// The content of the memory.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// The incarnation of the latest life that has begun; 0 if there was none.
    pub fn incarnation(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// The state of the latest life. A state that does not exist counts as live, so that a recovery
    /// precedes the next life.
    pub fn state(self) -> LifeState {
        match self.0 >> 32 & 0xffff {
            0 => LifeState::Recovered,
            LifeWord::CLAIMED => {
                LifeState::Claimed(Life { coordinator: (self.0 >> 16) as u16, incarnation: self.0 as u16 })
            }
            _ => LifeState::Live,
        }
    }

    /// Returns whether a life of the word's coordinator has ended, and its log has been applied.
    /// Its locks may be freed then ([`free_stale_lock`](crate::free_stale_lock)).
    pub fn is_recovered(self, life: Life) -> bool {
        self.incarnation() > life.incarnation
            || self.incarnation() == life.incarnation && self.state() == LifeState::Recovered
    }
}

/// A coordinator has no incarnation left: numbers are not used twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("coordinator {0} has had all its 65535 incarnations; start the process with another number")]
pub struct NoIncarnation(pub u16);

impl Life {
    /// Returns the life with which a coordinator starts. `highest` is the highest of its
    /// incarnations that a memory node has ever admitted or fenced, 0 if there is none.
    ///
    /// # Errors
    /// [`NoIncarnation`] after incarnation 65535.
    pub fn next(coordinator: u16, highest: u16) -> Result<Life, NoIncarnation> {
        let incarnation = highest.checked_add(1).ok_or(NoIncarnation(coordinator))?;
        Ok(Life { coordinator, incarnation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Life = Life { coordinator: 3, incarnation: 0x0405 };

    #[test]
    fn words_say_what_they_were_made_of() {
        let recoverer = Life { coordinator: 0x0607, incarnation: 0x0809 };
        for state in [LifeState::Recovered, LifeState::Live, LifeState::Claimed(recoverer)] {
            let word = LifeWord::from_bits(LifeWord::new(LIFE, state).bits());
            assert_eq!((word.incarnation(), word.state()), (LIFE.incarnation, state));
        }
        assert_eq!(LifeWord::new(LIFE, LifeState::Claimed(recoverer)).bits(), 0x0405_0002_0607_0809);
        assert_eq!(LifeWord::from_bits(0).state(), LifeState::Recovered);
        assert_eq!(LifeWord::from_bits(u64::MAX).state(), LifeState::Live);
    }

    #[test]
    fn a_life_is_recovered_when_its_word_says_so_or_has_a_later_life() {
        let earlier = Life { incarnation: LIFE.incarnation - 1, ..LIFE };
        let later = Life { incarnation: LIFE.incarnation + 1, ..LIFE };
        for state in [LifeState::Recovered, LifeState::Live, LifeState::Claimed(later)] {
            let word = LifeWord::new(LIFE, state);
            assert_eq!(word.is_recovered(LIFE), state == LifeState::Recovered);
            assert!(word.is_recovered(earlier) && !word.is_recovered(later));
        }
    }

    #[test]
    fn incarnations_end() {
        assert_eq!(Life::next(3, 0), Ok(Life { coordinator: 3, incarnation: 1 }));
        assert_eq!(Life::next(3, u16::MAX - 1).map(|life| life.incarnation), Ok(u16::MAX));
        assert_eq!(Life::next(3, u16::MAX), Err(NoIncarnation(3)));
    }
}
