//! The workload `objects` of `mitra sim`.

use mitra_sim::{reproduce_command, seeds};
use mitra_sweep::seeded::WORKLOADS;

#[test]
fn clients_of_objects_see_right_values_from_every_seed() {
    let workload = WORKLOADS.iter().find(|workload| workload.name == "objects").unwrap();
    let (mut operations, mut faults) = (0, 0);
    for seed in seeds(60) {
        let run = (workload.run)(seed, 0);
        assert_eq!(run.findings, [], "seed {seed}\n{}", reproduce_command(seed));
        operations += run.operations;
        faults += run.faults;
    }
    println!("{operations} operations, {faults} faults");
    assert!(operations > 0 && faults > 0);
}
