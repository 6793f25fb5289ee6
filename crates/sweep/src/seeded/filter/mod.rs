//! The RPC of `mitra-filter`: over UD queue pairs, and over virtual queue pairs that repeat all
//! requests in flight after a failover.

mod call_record;
mod corrupting_carrier;
mod programs;
mod ud_world;
mod vqp_world;

use mitra_verbs::Error;

use super::SeedRun;
use super::parts::{Left, Reduced};
use mitra_sim::{Config, Prng, Testbed, World};

/// The number of calls of each client.
const CALLS: u32 = 24;
const QKEY: u32 = 0x1_1111;

pub(super) struct Filter;

impl Reduced for Filter {
    fn run(seed: u64, left: &mut Left<'_>, kept_records: usize, result: &mut SeedRun) -> Result<(), Error> {
        run_counted(seed, left, kept_records, result).map(|_| ())
    }
}

impl Left<'_> {
    fn calls_of(&self, client: u8) -> u32 {
        let has_calls = self.reduction.connections.is_none_or(|left| usize::from(client) < left);
        if has_calls { self.reduction.operations_of(0, CALLS as usize) as u32 } else { 0 }
    }
}

/// How often the filter of a world had to act.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Encounters {
    /// Copies that the filter recognized.
    pub(super) copies: u64,
    /// Messages that the filter refused.
    pub(super) refused: u64,
    /// Messages that a checksum showed as corrupted, at either end.
    pub(super) corrupted: u64,
    pub(super) unknown: u64,
}

fn run_counted(
    seed: u64,
    left: &mut Left<'_>,
    kept_records: usize,
    result: &mut SeedRun,
) -> Result<Encounters, Error> {
    let rng = &mut Prng::stream(seed, "seeded filter");
    let mut config = Config::swarm(seed);
    left.leave_out_noise(&mut config);
    left.parts.operations = [CALLS as usize, 0];
    let rails = if rng.below(2) == 0 { 1 } else { 2 };
    let mut testbed = Testbed::from_world(World::with_trace_len(seed, config, kept_records), rails);
    let run = if rails == 1 { ud_world::run } else { vqp_world::run };
    let encounters = run(&mut testbed, rng, left, result);
    result.keep_trace(&testbed.world, kept_records, || {
        vec![format!("{encounters:?}\n{:?}", testbed.world.config())]
    });
    result.faults = left.faults;
    encounters
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeded::Reduction;

    #[test]
    fn calls_are_executed_exactly_once_over_every_carrier() {
        let mut total = [Encounters::default(); 2];
        for seed in mitra_sim::seeds(160) {
            let (whole, mut result) = (Reduction::default(), SeedRun::default());
            let met = run_counted(seed, &mut Left::new(&whole), 0, &mut result).expect("the NICs have room");
            assert!(result.findings.is_empty(), "seed {seed}: {:#?}", result.findings);
            let rails = if Prng::stream(seed, "seeded filter").below(2) == 0 { 0 } else { 1 };
            let sum = &mut total[rails];
            sum.copies += met.copies;
            sum.refused += met.refused;
            sum.corrupted += met.corrupted;
            sum.unknown += met.unknown;
        }
        println!("UD {:?}\nvQP {:?}", total[0], total[1]);
        if mitra_sim::seeds(160).count() == 160 {
            let [ud, vqp] = total;
            assert!(ud.copies > 30 && ud.refused > 60 && ud.corrupted > 10 && ud.unknown > 0, "{ud:?}");
            assert!(vqp.copies > 10 && vqp.corrupted > 10, "{vqp:?}");
        }
    }
}
