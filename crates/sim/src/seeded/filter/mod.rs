//! The RPC of `mitra-filter`: over UD queue pairs, and over virtual queue pairs that send everything in flight again after a failover.

mod call_record;
mod corrupting_carrier;
mod programs;
mod ud_world;
mod vqp_world;

use super::{Finding, SeedRun};
use crate::{Config, Prng, Testbed, World};

/// The number of calls of each client.
const CALLS: u32 = 24;
/// The Q_Key of the service.
const QKEY: u32 = 0x1_1111;

/// Runs the world of a seed.
pub(super) fn run(seed: u64, kept_records: usize) -> SeedRun {
    run_counted(seed, kept_records).0
}

/// What the filter of a world met, besides the result of the world.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Encounters {
    /// Copies that the filter recognized.
    pub(super) copies: u64,
    /// Messages that the filter refused.
    pub(super) refused: u64,
    /// Messages that a checksum found corrupted, at either end.
    pub(super) corrupted: u64,
    /// Calls that ended as unknown.
    pub(super) unknown: u64,
}

fn run_counted(seed: u64, kept_records: usize) -> (SeedRun, Encounters) {
    let rng = &mut Prng::stream(seed, "seeded filter");
    let config = Config::swarm(seed);
    let rails = if rng.below(2) == 0 { 1 } else { 2 };
    let mut testbed = Testbed::from_world(World::with_trace_len(seed, config, kept_records), rails);
    let run = if rails == 1 { ud_world::run } else { vqp_world::run };
    let (mut result, encounters) = run(&mut testbed, rng).unwrap_or_else(|error| {
        let findings = vec![Finding::violation("connect", error.to_string())];
        (SeedRun { findings, ..SeedRun::default() }, Encounters::default())
    });
    if kept_records > 0 {
        result.trace.push(format!("{encounters:?}\n{:?}", testbed.world.config()));
        result.trace.extend(testbed.world.trace_tail(kept_records));
    }
    (result, encounters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_executed_exactly_once_over_every_carrier() {
        let mut total = [Encounters::default(); 2];
        for seed in crate::seeds(160) {
            let (result, met) = run_counted(seed, 0);
            assert!(result.findings.is_empty(), "seed {seed}: {:#?}", result.findings);
            let rails = if Prng::stream(seed, "seeded filter").below(2) == 0 { 0 } else { 1 };
            let sum = &mut total[rails];
            sum.copies += met.copies;
            sum.refused += met.refused;
            sum.corrupted += met.corrupted;
            sum.unknown += met.unknown;
        }
        println!("UD {:?}\nvQP {:?}", total[0], total[1]);
        if crate::seeds(160).count() == 160 {
            let [ud, vqp] = total;
            assert!(ud.copies > 30 && ud.refused > 60 && ud.corrupted > 10 && ud.unknown > 0, "{ud:?}");
            assert!(vqp.copies > 10 && vqp.corrupted > 10, "{vqp:?}");
        }
    }
}
