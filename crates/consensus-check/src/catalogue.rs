//! The protocols by name, each at the sizes at which it is checked.

use std::net::SocketAddr;

use mitra_consensus::aligned_paxos::AlignedPaxos;
use mitra_consensus::fast_paxos::FastPaxos;
use mitra_consensus::memory_only_omega::MemoryOnlyOmega;
use mitra_consensus::omega::Omega;
use mitra_consensus::{
    AllRules, Process, ProcessId, ProcessSet, disk_paxos, hbo, paxos, protected_memory_paxos,
};

use crate::byzantine_worlds::{
    self, ByzantineSet, CheapQuorumActor, FastAndRobustActor, SmallBroadcastActor, SmallRobustPaxosActor,
};
use crate::{
    Exhaustive, ExhaustiveLog, Exploration, FaultLimits, RunLimits, RunReport, World, protocol_worlds,
    run_adversary, run_agreement, run_agreement_with, run_election, totality_violation,
};

/// Faults and errors of Ω in a run from a seed: all processes but one and a minority of the memories may crash.
const ALL_BUT_ONE: FaultLimits = FaultLimits {
    leader_changes: 16,
    process_crashes: 2,
    memory_crashes: 1,
    disconnects: 4,
    restarts: 0,
    message_losses: 0,
};
/// The same where processes must stay a majority.
const MINORITY: FaultLimits = FaultLimits { process_crashes: 1, memory_crashes: 0, ..ALL_BUT_ONE };
const CHAOS: RunLimits = RunLimits { adversary_steps: 300, stable_steps: 3000 };
/// A log lasts longer: it has to come to be recycled.
const LOG_CHAOS: RunLimits = RunLimits { adversary_steps: 800, stable_steps: 20_000 };
/// The same where processes are Byzantine instead.
const ONE_MEMORY: FaultLimits =
    FaultLimits { leader_changes: 0, process_crashes: 0, disconnects: 3, ..ALL_BUT_ONE };
const SOME_LEADERS: FaultLimits = FaultLimits { leader_changes: 12, ..ONE_MEMORY };
/// For protocols that poll.
const PATIENT: RunLimits = RunLimits { adversary_steps: 600, stable_steps: 20_000 };
const VERY_PATIENT: RunLimits = RunLimits { adversary_steps: 3_000, stable_steps: 60_000 };
/// What three processes propose, with a face or two.
const PROPOSALS: &[u8] = &[10, 11, 12, 20, 21, 22];

/// What is checked of a protocol that decides, and of one that elects.
const DECIDES: &[&str] = &["agreement", "validity"];
const ELECTS: &[&str] = &["election"];

/// A protocol that can be checked.
pub struct CatalogueEntry {
    /// Its name in commands.
    pub name: &'static str,
    /// What is meant to hold.
    pub properties: &'static [&'static str],
    /// The world that is explored exhaustively.
    pub explored_world: &'static str,
    /// The world that is run from seeds.
    pub simulated_world: &'static str,
    explore: fn() -> Exploration,
    serve: fn(SocketAddr),
    run_one: fn(u64) -> RunReport,
}

impl CatalogueEntry {
    /// Explores its small world exhaustively.
    pub fn explore(&self) -> Exploration {
        (self.explore)()
    }

    /// Serves its small world, of several the first, to a browser, for as long as the program runs.
    pub fn serve(&self, at: SocketAddr) {
        (self.serve)(at);
    }

    /// Runs its larger world from a seed.
    pub fn run(&self, seed: u64) -> RunReport {
        (self.run_one)(seed)
    }
}

/// All of them.
pub const CATALOGUE: &[CatalogueEntry] = &[
    CatalogueEntry {
        name: "paxos",
        properties: DECIDES,
        explored_world: "3 processes, of which 1 may crash; Ω speaks twice, each attempts once",
        simulated_world: "3 processes, of which 1 may crash; Ω speaks 16 times",
        explore: || small_paxos().explore(),
        serve: |at| small_paxos().serve(at),
        run_one: |seed| seeded(seed, protocol_worlds::paxos::<AllRules>(3, MINORITY)),
    },
    CatalogueEntry {
        name: "disk-paxos",
        properties: DECIDES,
        explored_world: "2 processes, 3 memories; Ω speaks twice, each attempts once",
        simulated_world: "3 processes, of which 2 may crash, 3 memories, of which 1; Ω speaks 16 times, 4 connections to memories break",
        explore: || small_disk_paxos().explore(),
        serve: |at| small_disk_paxos().serve(at),
        run_one: |seed| seeded(seed, protocol_worlds::disk_paxos::<AllRules>(3, 3, ALL_BUT_ONE)),
    },
    CatalogueEntry {
        name: "protected-memory-paxos",
        properties: DECIDES,
        explored_world: "2 processes, 3 memories, of which 1 may crash; Ω speaks twice, each attempts once",
        simulated_world: "3 processes, of which 2 may crash, 3 memories, of which 1; Ω speaks 16 times, 4 connections to memories break",
        explore: || small_protected_memory_paxos().explore(),
        serve: |at| small_protected_memory_paxos().serve(at),
        run_one: |seed| seeded(seed, protocol_worlds::protected_memory_paxos::<AllRules>(3, 3, ALL_BUT_ONE)),
    },
    CatalogueEntry {
        name: "aligned-paxos",
        properties: DECIDES,
        explored_world: "2 processes, 2 memories; Ω speaks twice, each attempts once",
        simulated_world: "3 processes, 2 memories, of which 1 each may crash; Ω speaks 16 times, 4 connections to memories break",
        explore: || small_aligned_paxos().explore(),
        serve: |at| small_aligned_paxos().serve(at),
        run_one: |seed| {
            let limits = FaultLimits { memory_crashes: 1, ..MINORITY };
            seeded(seed, protocol_worlds::aligned_paxos::<AllRules, AllRules>(3, 2, limits))
        },
    },
    CatalogueEntry {
        name: "fast-paxos",
        properties: DECIDES,
        explored_world: "4 processes, 2 of which propose; the fast ballot alone",
        simulated_world: "4 processes, 2 of which propose and 1 may crash; Ω speaks 16 times",
        explore: || small_fast_paxos().explore(),
        serve: |at| small_fast_paxos().serve(at),
        run_one: |seed| seeded(seed, protocol_worlds::fast_paxos::<AllRules>((4, 1, 1), &[0, 1], MINORITY)),
    },
    CatalogueEntry {
        name: "replicated-log",
        properties: DECIDES,
        explored_world: "2 processes, 1 memory, a ring of 2; Ω speaks twice, each leads once and has 2 commands",
        simulated_world: "3 processes, of which 2 may crash, 3 memories, of which 1; Ω speaks 16 times, 3 restarts, each has 6 commands",
        explore: || small_log().explore(),
        serve: |at| small_log().serve(at),
        run_one: |seed| {
            let limits = FaultLimits { restarts: 3, ..ALL_BUT_ONE };
            run_adversary(
                seed,
                protocol_worlds::log::<AllRules>(protocol_worlds::log_config(3, 3, 2), 6, limits),
                LOG_CHAOS,
            )
        },
    },
    CatalogueEntry {
        name: "non-equivocating-broadcast",
        properties: DECIDES,
        explored_world: "3 processes, 1 memory; the sender is Byzantine, and writes 3 times",
        simulated_world: "3 processes, of which the sender is Byzantine, 3 memories, of which 1 may crash; all deliver or none",
        explore: || small_broadcast().explore(),
        serve: |at| small_broadcast().serve(at),
        run_one: |seed| {
            let sender = ByzantineSet { processes: ProcessSet::first(1), adversary_seed: Some(seed) };
            let world = byzantine_worlds::broadcast::<AllRules>((3, 3), sender, ONE_MEMORY);
            run_agreement_with(
                seed,
                world,
                PATIENT,
                &[protocol_worlds::proposal(0), byzantine_worlds::second_proposal(0)],
                totality_violation,
            )
        },
    },
    CatalogueEntry {
        name: "robust-backup",
        properties: DECIDES,
        explored_world: "3 processes, of which 1 is silent, 1 memory; Ω speaks once, room for 2 turns of each",
        simulated_world: "3 processes, of which 1 is Byzantine, 3 memories, of which 1 may crash; Ω speaks 12 times",
        explore: || small_robust_backup().explore(),
        serve: |at| small_robust_backup().serve(at),
        run_one: |seed| {
            let one = one_of_three(seed);
            match seed / 3 % 2 {
                0 => {
                    let world =
                        byzantine_worlds::robust_backup::<AllRules, AllRules>((3, 3), one, SOME_LEADERS);
                    run_agreement(seed, world, VERY_PATIENT, PROPOSALS)
                }
                _ => {
                    let world = byzantine_worlds::robust_backup_with_forged_histories::<AllRules>(
                        (3, 3),
                        one,
                        SOME_LEADERS,
                    );
                    run_agreement(seed, world, VERY_PATIENT, PROPOSALS)
                }
            }
        },
    },
    CatalogueEntry {
        name: "cheap-quorum",
        properties: &["agreement", "validity", "abort agreement"],
        explored_world: "2 processes, 3 memories; the leader proposes once, the follower panics at once; no further",
        simulated_world: "3 processes, of which 1 is Byzantine, 3 memories, of which 1 may crash; all decide or abort",
        explore: || small_cheap_quorum().explore(),
        serve: |at| small_cheap_quorum().serve(at),
        run_one: |seed| {
            let world = byzantine_worlds::cheap_quorum::<AllRules>(
                (3, 3),
                max_polls(seed),
                one_of_three(seed),
                ONE_MEMORY,
            );
            run_agreement_with(seed, world, PATIENT, PROPOSALS, byzantine_worlds::abort_violation)
        },
    },
    CatalogueEntry {
        name: "fast-and-robust",
        properties: DECIDES,
        explored_world: "2 processes, of which neither waits, 1 memory; Ω speaks once, room for 2 turns of each",
        simulated_world: "3 processes, of which 1 is Byzantine, 3 memories, of which 1 may crash; Ω speaks 12 times",
        explore: || small_fast_and_robust().explore(),
        serve: |at| small_fast_and_robust().serve(at),
        run_one: |seed| {
            let (one, max_polls) = (one_of_three(seed), max_polls(seed));
            match seed / 9 % 2 {
                0 => {
                    let max_polls = (max_polls, byzantine_worlds::TURNS);
                    let world = byzantine_worlds::fast_and_robust::<AllRules, AllRules>(
                        (3, 3),
                        max_polls,
                        one,
                        SOME_LEADERS,
                    );
                    run_agreement(seed, world, VERY_PATIENT, PROPOSALS)
                }
                _ => {
                    let world = byzantine_worlds::fast_and_robust_with_forged_proofs::<AllRules, AllRules>(
                        (3, 3),
                        max_polls,
                        one,
                        SOME_LEADERS,
                    );
                    run_agreement(seed, world, VERY_PATIENT, PROPOSALS)
                }
            }
        },
    },
    CatalogueEntry {
        name: "omega",
        properties: ELECTS,
        explored_world: "2 processes, of which 1 may crash; each wakes twice, then all is calm; and with no links at all, where each wakes once",
        simulated_world: "4 processes, of which 3 may crash; then all is calm; with odd seeds with no links at all",
        explore: || small_omega().explore().and_then(|| small_silent_omega().explore()),
        serve: |at| small_omega().serve(at),
        run_one: |seed| {
            let limits = FaultLimits { process_crashes: 3, ..FaultLimits::default() };
            let chaos = RunLimits { adversary_steps: 400, stable_steps: 10_000 };
            match seed % 2 {
                0 => run_election(seed, protocol_worlds::omega::<AllRules>(4, limits), chaos, Omega::leader),
                _ => {
                    let world = protocol_worlds::memory_only_omega::<AllRules, AllRules>(4, limits);
                    run_election(seed, world, chaos, MemoryOnlyOmega::leader)
                }
            }
        },
    },
    CatalogueEntry {
        name: "hbo",
        properties: DECIDES,
        explored_world: "2 neighbours, of which 1 may crash; one round",
        simulated_world: "a ring of 6 processes, of which 4 may crash",
        explore: || small_hbo().explore(),
        serve: |at| small_hbo().serve(at),
        run_one: |seed| {
            let limits = FaultLimits { process_crashes: 4, ..FaultLimits::default() };
            let chaos = RunLimits { stable_steps: 20_000, ..CHAOS };
            run_agreement(seed, protocol_worlds::hbo::<AllRules>(&ring(6), limits), chaos, &[false, true])
        },
    },
];

fn ring(n: u8) -> Vec<ProcessSet> {
    protocol_worlds::graph(n, &(0..n).map(|p| (p, (p + 1) % n)).collect::<Vec<_>>())
}

fn small_aligned_paxos() -> Exhaustive<AlignedPaxos<u8>> {
    exhaustive(
        protocol_worlds::aligned_paxos(2, 2, FaultLimits { leader_changes: 2, ..FaultLimits::default() }),
        2,
    )
}

fn small_fast_paxos() -> Exhaustive<FastPaxos<u8>> {
    exhaustive(protocol_worlds::fast_paxos((4, 1, 1), &[0, 1], FaultLimits::default()), 2)
}

fn small_log() -> ExhaustiveLog<AllRules> {
    let limits = FaultLimits { leader_changes: 2, ..FaultLimits::default() };
    ExhaustiveLog::new(protocol_worlds::log(protocol_worlds::log_config(2, 1, 1), 2, limits), 1)
}

fn small_broadcast() -> Exhaustive<SmallBroadcastActor> {
    let messages = [protocol_worlds::proposal, byzantine_worlds::second_proposal].map(|of| of(0));
    Exhaustive::agreement(byzantine_worlds::small_broadcast::<AllRules>(), 0, messages.into())
}

/// Another is Byzantine with each seed.
fn one_of_three(seed: u64) -> ByzantineSet {
    ByzantineSet { processes: ProcessSet::only(ProcessId((seed % 3) as u8)), adversary_seed: Some(seed) }
}

/// How often processes poll before they panic: they cannot wait, or can a little, or long enough for most.
fn max_polls(seed: u64) -> u8 {
    [0, 2, 20][(seed / 3 % 3) as usize]
}

fn small_cheap_quorum() -> Exhaustive<CheapQuorumActor> {
    exhaustive_from(byzantine_worlds::small_cheap_quorum::<AllRules>(), 0)
        .with_abort_check(byzantine_worlds::aborts_agree)
}

fn small_fast_and_robust() -> Exhaustive<FastAndRobustActor> {
    exhaustive_from(byzantine_worlds::small_fast_and_robust(), 1)
}

fn small_robust_backup() -> Exhaustive<SmallRobustPaxosActor> {
    let limits = FaultLimits { leader_changes: 1, ..FaultLimits::default() };
    exhaustive_from(byzantine_worlds::small_robust_backup(2, limits), 1)
}

fn small_omega() -> Exhaustive<Omega> {
    let limits = FaultLimits { process_crashes: 1, ..FaultLimits::default() };
    Exhaustive::election(protocol_worlds::omega(2, limits), 2, Omega::leader)
}

fn small_silent_omega() -> Exhaustive<MemoryOnlyOmega> {
    let limits = FaultLimits { process_crashes: 1, disconnects: 1, ..FaultLimits::default() };
    Exhaustive::election(protocol_worlds::memory_only_omega(2, limits), 1, MemoryOnlyOmega::leader)
}

fn small_hbo() -> Exhaustive<hbo::Hbo> {
    let limits = FaultLimits { process_crashes: 1, ..FaultLimits::default() };
    let start = protocol_worlds::hbo(&protocol_worlds::graph(2, &[(0, 1)]), limits);
    Exhaustive::agreement(start, 1, vec![false, true])
}

fn small_paxos() -> Exhaustive<paxos::Paxos<u8>> {
    let limits = FaultLimits { leader_changes: 2, process_crashes: 1, ..FaultLimits::default() };
    exhaustive(protocol_worlds::paxos(3, limits), 3)
}

fn small_disk_paxos() -> Exhaustive<disk_paxos::DiskPaxos<u8>> {
    exhaustive(
        protocol_worlds::disk_paxos(2, 3, FaultLimits { leader_changes: 2, ..FaultLimits::default() }),
        2,
    )
}

fn small_protected_memory_paxos() -> Exhaustive<protected_memory_paxos::ProtectedMemoryPaxos<u8>> {
    let limits = FaultLimits { leader_changes: 2, memory_crashes: 1, ..FaultLimits::default() };
    exhaustive(protocol_worlds::protected_memory_paxos(2, 3, limits), 2)
}

fn exhaustive<P: Process<Value = u8>>(start: World<P>, processes: u8) -> Exhaustive<P> {
    Exhaustive::agreement(start, 1, (0..processes).map(protocol_worlds::proposal).collect())
}

fn exhaustive_from<P: Process<Value = u8>>(start: World<P>, attempts: u64) -> Exhaustive<P> {
    Exhaustive::agreement(start, attempts, PROPOSALS.into())
}

fn seeded<P: Process<Value = u8>>(seed: u64, world: World<P>) -> RunReport {
    let valid: Vec<u8> = (0..world.decisions().len() as u8).map(protocol_worlds::proposal).collect();
    run_agreement(seed, world, CHAOS, &valid)
}
