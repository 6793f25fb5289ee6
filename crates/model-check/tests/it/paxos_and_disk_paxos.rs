//! Paxos and Disk Paxos, with all their rules, and mutants without one of them.

mod paxos {
    use crate::common::explorations::{Reads, finds_nothing};
    use crate::common::{MINORITY, agrees_and_terminates, mutant_violates};
    use mitra_consensus::paxos::{Paxos, Rules};
    use mitra_consensus::{AllRules, ProcessId};
    use mitra_model_check::{Exhaustive, FaultLimits, World, decision_delays, protocol_worlds};

    fn world<R: Rules>() -> World<Paxos<u8, R>> {
        protocol_worlds::paxos(3, FaultLimits { memory_crashes: 0, ..MINORITY })
    }

    #[test]
    fn initial_leader_decides_in_two_delays_and_other_leader_in_four() {
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
    fn three_processes_agree_in_every_order_of_steps() {
        let limits = FaultLimits { leader_changes: 2, process_crashes: 1, ..FaultLimits::default() };
        let start = protocol_worlds::paxos::<AllRules>(3, limits);
        finds_nothing(
            "paxos_and_disk_paxos::paxos::three_processes_agree_in_every_order_of_steps",
            Reads::Consensus,
            || Exhaustive::agreement(start, 1, vec![10, 11, 12]).explore(),
        );
    }

    #[test]
    fn agrees_and_terminates_from_every_seed() {
        agrees_and_terminates(world::<AllRules>, 4_000);
    }

    mutants! { Rules, world:
        mutant_with_broken_promises_violates_safety: KEEPS_PROMISES;
        mutant_without_adoption_violates_safety: ADOPTS;
        mutant_without_majority_violates_safety: BY_MAJORITY;
    }
}

mod disk_paxos {
    use crate::common::explorations::{Reads, finds_nothing};
    use crate::common::{CRASHES, agrees_and_terminates, mutant_violates};
    use mitra_consensus::disk_paxos::{DiskPaxos, Rules};
    use mitra_consensus::{AllRules, ProcessId};
    use mitra_model_check::{Exhaustive, FaultLimits, World, decision_delays, protocol_worlds};

    fn world<R: Rules>() -> World<DiskPaxos<u8, R>> {
        protocol_worlds::disk_paxos(3, 3, CRASHES)
    }

    #[test]
    fn initial_leader_decides_in_four_delays_and_other_leader_in_eight() {
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
    fn two_processes_agree_in_every_order_of_steps() {
        let limits = FaultLimits { leader_changes: 2, ..FaultLimits::default() };
        let start = protocol_worlds::disk_paxos::<AllRules>(2, 3, limits);
        finds_nothing(
            "paxos_and_disk_paxos::disk_paxos::two_processes_agree_in_every_order_of_steps",
            Reads::Consensus,
            || Exhaustive::agreement(start, 1, vec![10, 11]).explore(),
        );
    }

    #[test]
    fn agrees_and_terminates_from_every_seed() {
        agrees_and_terminates(world::<AllRules>, 4_000);
    }

    mutants! { Rules, world:
        mutant_without_read_after_write_violates_safety: READS_AFTER_WRITE;
        mutant_without_adoption_violates_safety: ADOPTS;
        mutant_with_stale_writes_violates_safety: ONE_AT_A_TIME;
    }
}
