//! The workloads over queue pairs of `mitra sim` find nothing and repeat from their seeds. `objects_seeded` tests the workload of objects.

use mitra_sim::seeded::{SeededWorkload, WORKLOADS};
use mitra_sim::seeds;

/// Returns the workloads over queue pairs.
fn workloads() -> impl Iterator<Item = &'static SeededWorkload> {
    WORKLOADS.iter().filter(|workload| ["failover", "rc"].contains(&workload.name))
}

#[test]
fn no_workload_finds_a_violation() {
    for workload in workloads() {
        let (mut operations, mut faults) = (0, 0);
        for seed in seeds(300) {
            let run = (workload.run)(seed, 0);
            (operations, faults) = (operations + run.operations, faults + run.faults);
            assert_eq!(
                run.findings,
                [],
                "seed {seed}\nREPRODUCE WITH: mitra sim --workload {} --seeds 1 --from {seed}",
                workload.name
            );
        }
        assert!(operations > 0 && faults > 0, "{}: {operations} operations, {faults} faults", workload.name);
    }
}

#[test]
fn a_seed_repeats_its_run() {
    for workload in workloads() {
        for seed in seeds(10) {
            let (first, second) = ((workload.run)(seed, 1_000), (workload.run)(seed, 1_000));
            assert!(first.trace.len() > 100, "a trace of {} lines", first.trace.len());
            assert_eq!(first, second, "{}, seed {seed}", workload.name);
            assert_eq!((workload.run)(seed, 0).operations, first.operations);
        }
    }
}
