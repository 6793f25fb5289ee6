//! Paxos and Disk Paxos, with all their rules and without each of them.

mod common;

mod paxos {
    use super::common::{MINORITY, errs, holds};
    use crate::mutants;
    use mitra_consensus::paxos::{Paxos, Rules};
    use mitra_consensus::{AllRules, ProcessId};
    use mitra_consensus_check::{Exhaustive, FaultLimits, World, decision_delays, protocol_worlds};

    fn world<R: Rules>() -> World<Paxos<u8, R>> {
        protocol_worlds::paxos(3, FaultLimits { memory_crashes: 0, ..MINORITY })
    }

    #[test]
    fn the_first_leader_decides_in_two_delays_and_another_in_four() {
        let delays = |leader| {
            decision_delays(
                protocol_worlds::paxos::<AllRules>(3, FaultLimits::default()),
                ProcessId(leader),
                20,
            )
        };
        assert_eq!(delays(0), Some((2, 3)));
        assert_eq!(delays(1), Some((4, 5)));
    }

    #[test]
    fn three_processes_agree_in_every_order() {
        let limits = FaultLimits { leader_changes: 2, process_crashes: 1, ..FaultLimits::default() };
        let start = protocol_worlds::paxos::<AllRules>(3, limits);
        let found = Exhaustive::agreement(start, 1, vec![10, 11, 12]).explore();
        assert_eq!(found.counterexample, None);
        assert!(found.states > 10_000, "{} states: less than before", found.states);
    }

    #[test]
    fn it_agrees_and_ends_from_every_seed() {
        holds(world::<AllRules>, 4_000);
    }

    mutants! { Rules, world:
        with_broken_promises_it_errs: KEEPS_PROMISES;
        without_adoption_it_errs: ADOPTS;
        without_a_majority_it_errs: BY_MAJORITY;
    }
}

mod disk_paxos {
    use super::common::{CRASHES, errs, holds};
    use crate::mutants;
    use mitra_consensus::disk_paxos::{DiskPaxos, Rules};
    use mitra_consensus::{AllRules, ProcessId};
    use mitra_consensus_check::{Exhaustive, FaultLimits, World, decision_delays, protocol_worlds};

    fn world<R: Rules>() -> World<DiskPaxos<u8, R>> {
        protocol_worlds::disk_paxos(3, 3, CRASHES)
    }

    #[test]
    fn the_first_leader_decides_in_four_delays_and_another_in_eight() {
        let delays = |leader| {
            decision_delays(
                protocol_worlds::disk_paxos::<AllRules>(3, 3, FaultLimits::default()),
                ProcessId(leader),
                20,
            )
        };
        assert_eq!(delays(0), Some((4, 5)));
        assert_eq!(delays(1), Some((8, 9)));
    }

    #[test]
    fn two_processes_agree_in_every_order() {
        let limits = FaultLimits { leader_changes: 2, ..FaultLimits::default() };
        let start = protocol_worlds::disk_paxos::<AllRules>(2, 3, limits);
        let found = Exhaustive::agreement(start, 1, vec![10, 11]).explore();
        assert_eq!(found.counterexample, None);
        assert!(found.states > 10_000, "{} states: less than before", found.states);
    }

    #[test]
    fn it_agrees_and_ends_from_every_seed() {
        holds(world::<AllRules>, 4_000);
    }

    mutants! { Rules, world:
        without_the_last_read_it_errs: READS_AFTER_WRITE;
        without_adoption_it_errs: ADOPTS;
        with_stale_writes_it_errs: ONE_AT_A_TIME;
    }
}
