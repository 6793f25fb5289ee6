//! Limits a seed to one region, and to few kinds of faults. A violation that needs a short sequence
//! of the same few steps is rare in seeds with all regions and all kinds of faults.

use mitra_prng::Prng;

use super::step::FAULT_KINDS;

/// The random choices of a seed that hold for its whole adversarial period.
#[derive(Clone, Copy, Debug)]
pub(super) struct Knobs {
    /// The region whose first register all operations access, if the seed concentrates on one
    /// region.
    pub(super) region: Option<u8>,
    /// Whether faults of each kind happen.
    faults: [bool; FAULT_KINDS],
}

impl Knobs {
    pub(super) fn new(regions: usize, rng: &mut Prng) -> Knobs {
        let region = (rng.below(2) == 0).then(|| rng.index(regions) as u8);
        let mut faults = [true; FAULT_KINDS];
        if rng.below(2) == 0 {
            faults = [false; FAULT_KINDS];
            (0..2).for_each(|_| faults[rng.index(FAULT_KINDS)] = true);
        }
        Knobs { region, faults }
    }

    pub(super) fn allows(&self, kind: usize) -> bool {
        self.faults[kind]
    }
}
