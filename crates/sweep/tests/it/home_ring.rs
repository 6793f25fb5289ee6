//! The workload `homes`: three processes that are connected in a ring and all share atomics.

use mitra_sim::seeds;
use mitra_sweep::seeded::WORKLOADS;

// Hazard: two processes choose different homes
#[test]
fn homes_of_three_processes_agree() {
    let homes = WORKLOADS.iter().find(|workload| workload.name == "homes").expect("a workload");
    for seed in seeds(3) {
        let run = (homes.run)(seed, 0);
        assert!(run.operations > 0 && run.faults > 0, "seed {seed}: {run:?}");
        assert_eq!(
            run.findings,
            [],
            "seed {seed}\nREPRODUCE WITH: mitra sim --workload homes --seeds 1 --from {seed}"
        );
    }
}
