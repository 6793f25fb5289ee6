//! A memory node and its processes, from seeds: connections, rights, sequence numbers and files.

use mitra_model_check::run_memory_node;
use mitra_prng::seeds;

/// Seeds that violated a property before these errors were fixed:
/// - A refused torn write appeared later.
/// - The record of an incarnation was torn, and the memory node refused the process for good.
/// - A write-once operation failed twice, and the history had the time of the earlier attempt.
/// - The write of a record failed, so its incarnation was not accepted. After a restart, the memory
///   node refused the accepted incarnation because of this record.
///   an incarnation that was not accepted.
const REGRESSIONS: &[u64] = &[1646, 3909, 13014, 513, 2396, 7764, 783437061501, 438230851595];

#[test]
fn registers_are_atomic_and_only_the_holder_of_the_right_writes() {
    let (mut steps, mut faults) = (0, 0);
    for seed in seeds(3_000).chain(REGRESSIONS.iter().copied()) {
        let result = run_memory_node(seed);
        assert_eq!(result.violation, None, "seed {seed}");
        steps += result.steps;
        faults += result.faults;
    }
    let count = seeds(3_000).count();
    assert!(steps as usize > 300 * count && faults as usize > 3 * count, "{steps} steps, {faults} faults");
}
