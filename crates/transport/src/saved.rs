//! Results of atomics, saved for duplicates (IBTA volume 1, 9.7.5).

use std::collections::VecDeque;

use mitra_verbs::{Psn, SavedResult};

/// The half of the PSN circle in which a PSN before the expected one is a duplicate (IBTA volume 1, 9.7).
pub(crate) const DUPLICATE_REGION: u32 = 1 << 23;

/// The last results, oldest first.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Saved {
    /// Each with the count of PSNs executed before it, which does not wrap.
    results: VecDeque<(u64, SavedResult)>,
}

impl Saved {
    /// Saves a result, `executed` PSNs having been executed before; keeps the last `most`.
    pub(crate) fn save(&mut self, executed: u64, result: SavedResult, most: u8) {
        while self.results.len() >= usize::from(most.max(1)) {
            self.results.pop_front();
        }
        self.results.push_back((executed, result));
    }

    /// The results whose PSNs are still in the duplicate region.
    pub(crate) fn list(&self, executed: u64) -> impl DoubleEndedIterator<Item = SavedResult> {
        self.results
            .iter()
            .filter(move |(at, _)| executed - at <= u64::from(DUPLICATE_REGION))
            .map(|&(_, result)| result)
    }

    /// The result of the atomic with this PSN.
    pub(crate) fn find(&self, executed: u64, psn: Psn) -> Option<u64> {
        self.list(executed).rev().find(|result| result.psn == psn).map(|result| result.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_results_are_kept_until_their_psns_leave_the_duplicate_region() {
        let mut saved = Saved::default();
        for i in 0..3 {
            saved.save(i, SavedResult { psn: Psn::new(i as u32), value: 10 + i }, 2);
        }
        let region = u64::from(DUPLICATE_REGION);
        assert_eq!(saved.find(3, Psn::new(0)), None);
        assert_eq!(saved.find(3, Psn::new(1)), Some(11));
        assert_eq!(saved.list(1 + region).count(), 2);
        assert_eq!(saved.find(2 + region, Psn::new(1)), None);
        assert_eq!(saved.find(2 + region, Psn::new(2)), Some(12));
        assert_eq!(saved.list(3 + region).count(), 0);
    }
}
