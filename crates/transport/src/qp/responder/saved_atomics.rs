//! The saved results of atomics, with which the responder answers duplicates (IBTA volume 1,
//! 9.7.5).

use std::collections::VecDeque;

use mitra_mutants::Mutant;
use mitra_verbs::{Psn, SavedResult};

/// A request counts as a duplicate if its PSN is one of this many PSNs before the expected PSN:
/// half of the PSN space (IBTA volume 1, 9.7).
pub(super) const DUPLICATE_REGION: u32 = 1 << 23;

/// The results of the last atomics, oldest first.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct SavedAtomics {
    /// Each result with the number of PSNs that were executed before it. Unlike the PSN, that
    /// number does not wrap.
    results: VecDeque<(u64, SavedResult)>,
}

impl SavedAtomics {
    /// Saves the result of an atomic that was executed after `executed_psns` PSNs. Keeps the last
    /// `limit` results.
    pub(super) fn save(&mut self, executed_psns: u64, result: SavedResult, limit: u8) {
        while self.results.len() >= usize::from(limit.max(1)) {
            self.results.pop_front();
        }
        self.results.push_back((executed_psns, result));
    }

    /// Iterates over the results whose PSNs are in the duplicate region after `executed_psns` PSNs,
    /// oldest first.
    pub(super) fn list(&self, executed_psns: u64) -> impl DoubleEndedIterator<Item = SavedResult> {
        self.results
            .iter()
            .filter(move |(before, _)| executed_psns - before <= u64::from(DUPLICATE_REGION))
            .map(|&(_, result)| result)
    }

    /// Returns the old value that the atomic with this PSN read.
    pub(super) fn find(&self, executed_psns: u64, psn: Psn) -> Option<u64> {
        self.list(executed_psns)
            .rev()
            .find(|result| result.psn == psn || Mutant::ResultOfAnotherAtomic.is_on())
            .map(|result| result.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_atomics_keep_last_results_within_duplicate_region() {
        let mut saved = SavedAtomics::default();
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
