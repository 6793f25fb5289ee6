//! The protocols by name, with the worlds in which `mitra check` and `mitra sim` check them.

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
use crate::cell_scenario::CellKind;
use crate::cell_worlds;
use crate::{
    Exhaustive, ExhaustiveWorld, Explorable, Exploration, FaultLimits, LogWorld, QuestionLimits,
    RailFaultLimits, RunLimits, SeedResult, Step, World, counter_scenario, exhaustive_bit_filter,
    exhaustive_filter, exhaustive_log, exhaustive_questions, exhaustive_rails, filter_worlds, latch_scenario,
    mailbox_scenario, mutex_scenario, protocol_worlds, question_world, rail_model, run_adversary,
    run_agreement, run_agreement_with, run_election, run_filter, theorems, totality_violation,
};

/// Fault limits of a run from a seed: all processes but one and a minority of the memories may
/// crash.
const ALL_BUT_ONE: FaultLimits = FaultLimits {
    leader_changes: 16,
    process_crashes: 2,
    memory_crashes: 1,
    disconnects: 4,
    restarts: 0,
    message_losses: 0,
};
/// Fault limits of protocols that need a majority of live processes.
const MINORITY: FaultLimits = FaultLimits { process_crashes: 1, memory_crashes: 0, ..ALL_BUT_ONE };
/// Run limits of most protocols.
const RUN_LIMITS: RunLimits = RunLimits { adversary_steps: 300, stable_steps: 3000 };
/// Run limits of the log. The runs are long enough that registers are recycled.
const LOG_RUN_LIMITS: RunLimits = RunLimits { adversary_steps: 800, stable_steps: 20_000 };
/// Fault limits of protocols with a Byzantine process: one memory may crash, and no correct
/// process. Ω names no leader.
const BYZANTINE_FAULTS: FaultLimits =
    FaultLimits { leader_changes: 0, process_crashes: 0, disconnects: 3, ..ALL_BUT_ONE };
/// Fault limits of protocols with a Byzantine process, where Ω names leaders.
const BYZANTINE_FAULTS_WITH_OMEGA: FaultLimits = FaultLimits { leader_changes: 12, ..BYZANTINE_FAULTS };
/// Run limits of protocols that poll.
const POLLING_RUN_LIMITS: RunLimits = RunLimits { adversary_steps: 600, stable_steps: 20_000 };
/// Run limits of protocols that broadcast each event of a process.
const LONG_RUN_LIMITS: RunLimits = RunLimits { adversary_steps: 3_000, stable_steps: 60_000 };
/// The proposals of three processes, and of the second instances of Byzantine processes.
const PROPOSALS: &[u8] = &[10, 11, 12, 20, 21, 22];

/// The properties of a protocol that decides.
const AGREEMENT_PROPERTIES: &[&str] = &["agreement", "validity"];
const ELECTION_PROPERTIES: &[&str] = &["election"];

const CELL_PROPERTIES: &[&str] = &["exactly once, with its result", "every operation ends"];
const EXPLORED_CELLS: &str = "2 owners with 2 changes each, both fail over; 3 clients, 2 of them fail over; 2 words, 2 owners fail over";
const SIMULATED_CELLS: &str = "3 clients with 6 operations each on 2 cells; the path of each fails up to 4 times, with or without evidence";

/// A protocol that can be checked.
pub struct CatalogueEntry {
    /// The name on the command line.
    pub name: &'static str,
    /// The names of the checked properties.
    pub properties: &'static [&'static str],
    /// A description of the world that is explored exhaustively.
    pub explored_world: &'static str,
    /// A description of the world that is run from seeds.
    pub simulated_world: &'static str,
    pub(crate) explore: fn() -> Exploration,
    pub(crate) serve: fn(SocketAddr),
    pub(crate) run_seed: fn(u64) -> SeedResult,
}

impl CatalogueEntry {
    /// Explores the small world of the protocol exhaustively.
    pub fn explore(&self) -> Exploration {
        (self.explore)()
    }

    /// Serves the small world of the protocol to a web browser at an address, until the program
    /// ends. If the protocol has several small worlds, serves the first.
    pub fn serve(&self, address: SocketAddr) {
        (self.serve)(address);
    }

    /// Runs the large world of the protocol from a seed.
    pub fn run(&self, seed: u64) -> SeedResult {
        (self.run_seed)(seed)
    }
}

/// All protocols.
///
/// The catalogue is a `static`. If it were a `const`, each crate that names it would compile its
/// functions and the model checker again.
pub static CATALOGUE: &[CatalogueEntry] = &[
    CatalogueEntry {
        name: "paxos",
        properties: AGREEMENT_PROPERTIES,
        explored_world: "3 processes, 1 of them may crash; Ω names a leader twice; 1 attempt per process",
        simulated_world: "3 processes, 1 of them may crash; Ω names a leader 16 times",
        explore: || small_paxos().explore(),
        serve: |address| small_paxos().serve(address),
        run_seed: |seed| run_from_seed(seed, protocol_worlds::paxos::<AllRules>(3, MINORITY)),
    },
    CatalogueEntry {
        name: "disk-paxos",
        properties: AGREEMENT_PROPERTIES,
        explored_world: "2 processes, 3 memories; Ω names a leader twice; 1 attempt per process",
        simulated_world: "3 processes, 2 of them may crash; 3 memories, 1 of them may crash; Ω names a leader 16 times; 4 disconnections from memories",
        explore: || small_disk_paxos().explore(),
        serve: |address| small_disk_paxos().serve(address),
        run_seed: |seed| run_from_seed(seed, protocol_worlds::disk_paxos::<AllRules>(3, 3, ALL_BUT_ONE)),
    },
    CatalogueEntry {
        name: "protected-memory-paxos",
        properties: AGREEMENT_PROPERTIES,
        explored_world: "2 processes; 3 memories, 1 of them may crash; Ω names a leader twice; 1 attempt per process",
        simulated_world: "3 processes, 2 of them may crash; 3 memories, 1 of them may crash; Ω names a leader 16 times; 4 disconnections from memories",
        explore: || small_protected_memory_paxos().explore(),
        serve: |address| small_protected_memory_paxos().serve(address),
        run_seed: |seed| {
            run_from_seed(seed, protocol_worlds::protected_memory_paxos::<AllRules>(3, 3, ALL_BUT_ONE))
        },
    },
    CatalogueEntry {
        name: "aligned-paxos",
        properties: AGREEMENT_PROPERTIES,
        explored_world: "2 processes, 2 memories; Ω names a leader twice; 1 attempt per process",
        simulated_world: "3 processes, 1 of them may crash; 2 memories, 1 of them may crash; Ω names a leader 16 times; 4 disconnections from memories",
        explore: || small_aligned_paxos().explore(),
        serve: |address| small_aligned_paxos().serve(address),
        run_seed: |seed| {
            let limits = FaultLimits { memory_crashes: 1, ..MINORITY };
            run_from_seed(seed, protocol_worlds::aligned_paxos::<AllRules, AllRules>(3, 2, limits))
        },
    },
    CatalogueEntry {
        name: "fast-paxos",
        properties: AGREEMENT_PROPERTIES,
        explored_world: "4 processes, 2 of them propose; only the fast ballot",
        simulated_world: "4 processes, 2 of them propose, 1 of them may crash; Ω names a leader 16 times",
        explore: || small_fast_paxos().explore(),
        serve: |address| small_fast_paxos().serve(address),
        run_seed: |seed| {
            run_from_seed(seed, protocol_worlds::fast_paxos::<AllRules>((4, 1, 1), &[0, 1], MINORITY))
        },
    },
    CatalogueEntry {
        name: "replicated-log",
        properties: AGREEMENT_PROPERTIES,
        explored_world: "2 processes, 1 memory, a ring of 2 entries; Ω names a leader twice; each process leads 1 term and submits 2 commands",
        simulated_world: "3 processes, 2 of them may crash; 3 memories, 1 of them may crash; Ω names a leader 16 times; 3 restarts; 6 commands per process; in every third world the set of processes that may lead changes",
        explore: || small_log().explore(),
        serve: |address| small_log().serve(address),
        run_seed: |seed| {
            let limits = FaultLimits { restarts: 3, ..ALL_BUT_ONE };
            let config = protocol_worlds::log_config(3, 3, 2);
            let world = match seed % 3 {
                0 => protocol_worlds::log_with_leader_changes::<AllRules>(config, 6, limits),
                _ => protocol_worlds::log(config, 6, limits),
            };
            run_adversary(seed, world, LOG_RUN_LIMITS).into()
        },
    },
    CatalogueEntry {
        name: "non-equivocating-broadcast",
        properties: AGREEMENT_PROPERTIES,
        explored_world: "3 processes, 1 memory; the sender is Byzantine and writes 3 times",
        simulated_world: "3 processes, the sender is Byzantine; 3 memories, 1 of them may crash; all correct processes deliver or none",
        explore: || small_broadcast().explore(),
        serve: |address| small_broadcast().serve(address),
        run_seed: |seed| {
            let sender = ByzantineSet { processes: ProcessSet::first(1), adversary_seed: Some(seed) };
            let world = byzantine_worlds::broadcast::<AllRules>((3, 3), sender, BYZANTINE_FAULTS);
            run_agreement_with(
                seed,
                world,
                POLLING_RUN_LIMITS,
                &[protocol_worlds::proposal(0), byzantine_worlds::second_proposal(0)],
                totality_violation,
            )
            .into()
        },
    },
    CatalogueEntry {
        name: "robust-backup",
        properties: AGREEMENT_PROPERTIES,
        explored_world: "3 processes, 1 of them is Byzantine and sends nothing; 1 memory; Ω names a leader once; 2 broadcasts per process",
        simulated_world: "3 processes, 1 of them is Byzantine; 3 memories, 1 of them may crash; Ω names a leader 12 times",
        explore: || small_robust_backup().explore(),
        serve: |address| small_robust_backup().serve(address),
        run_seed: |seed| {
            let byzantine = one_of_three(seed);
            match seed / 3 % 2 {
                0 => {
                    let world = byzantine_worlds::robust_backup::<AllRules, AllRules>(
                        (3, 3),
                        byzantine,
                        BYZANTINE_FAULTS_WITH_OMEGA,
                    );
                    run_agreement(seed, world, LONG_RUN_LIMITS, PROPOSALS).into()
                }
                _ => {
                    let world = byzantine_worlds::robust_backup_with_forged_histories::<AllRules>(
                        (3, 3),
                        byzantine,
                        BYZANTINE_FAULTS_WITH_OMEGA,
                    );
                    run_agreement(seed, world, LONG_RUN_LIMITS, PROPOSALS).into()
                }
            }
        },
    },
    CatalogueEntry {
        name: "cheap-quorum",
        properties: &["agreement", "validity", "abort agreement"],
        explored_world: "2 processes, 3 memories; the leader proposes, the follower panics immediately; no polls",
        simulated_world: "3 processes, 1 of them is Byzantine; 3 memories, 1 of them may crash; all correct processes decide or abort",
        explore: || small_cheap_quorum().explore(),
        serve: |address| small_cheap_quorum().serve(address),
        run_seed: |seed| {
            let world = byzantine_worlds::cheap_quorum::<AllRules>(
                (3, 3),
                max_polls(seed),
                one_of_three(seed),
                BYZANTINE_FAULTS,
            );
            run_agreement_with(seed, world, POLLING_RUN_LIMITS, PROPOSALS, byzantine_worlds::abort_violation)
                .into()
        },
    },
    CatalogueEntry {
        name: "fast-and-robust",
        properties: AGREEMENT_PROPERTIES,
        explored_world: "2 processes that panic immediately, 1 memory; Ω names a leader once; 2 broadcasts per process",
        simulated_world: "3 processes, 1 of them is Byzantine; 3 memories, 1 of them may crash; Ω names a leader 12 times",
        explore: || small_fast_and_robust().explore(),
        serve: |address| small_fast_and_robust().serve(address),
        run_seed: |seed| {
            let (byzantine, max_polls) = (one_of_three(seed), max_polls(seed));
            match seed / 9 % 2 {
                0 => {
                    let polls_and_room = (max_polls, byzantine_worlds::BROADCAST_ROOM);
                    let world = byzantine_worlds::fast_and_robust::<AllRules, AllRules>(
                        (3, 3),
                        polls_and_room,
                        byzantine,
                        BYZANTINE_FAULTS_WITH_OMEGA,
                    );
                    run_agreement(seed, world, LONG_RUN_LIMITS, PROPOSALS).into()
                }
                _ => {
                    let world = byzantine_worlds::fast_and_robust_with_forged_proofs::<AllRules, AllRules>(
                        (3, 3),
                        max_polls,
                        byzantine,
                        BYZANTINE_FAULTS_WITH_OMEGA,
                    );
                    run_agreement(seed, world, LONG_RUN_LIMITS, PROPOSALS).into()
                }
            }
        },
    },
    CatalogueEntry {
        name: "omega",
        properties: ELECTION_PROPERTIES,
        explored_world: "2 processes, 1 of them may crash; 2 wake-ups per process, then a stable period; and without messages: 1 wake-up per process",
        simulated_world: "4 processes, 3 of them may crash, then a stable period; odd seeds: without messages",
        explore: || small_omega().explore().and_then(|| small_silent_omega().explore()),
        serve: |address| small_omega().serve(address),
        run_seed: |seed| {
            let limits = FaultLimits { process_crashes: 3, ..FaultLimits::default() };
            let run_limits = RunLimits { adversary_steps: 400, stable_steps: 10_000 };
            match seed % 2 {
                0 => run_election(
                    seed,
                    protocol_worlds::omega::<AllRules>(4, limits),
                    run_limits,
                    Omega::leader,
                )
                .into(),
                _ => {
                    let world = protocol_worlds::memory_only_omega::<AllRules, AllRules>(4, limits);
                    run_election(seed, world, run_limits, MemoryOnlyOmega::leader).into()
                }
            }
        },
    },
    CatalogueEntry {
        name: "hbo",
        properties: AGREEMENT_PROPERTIES,
        explored_world: "2 neighbours, 1 of them may crash; 1 round",
        simulated_world: "a ring of 6 processes, 4 of them may crash",
        explore: || small_hbo().explore(),
        serve: |address| small_hbo().serve(address),
        run_seed: |seed| {
            let limits = FaultLimits { process_crashes: 4, ..FaultLimits::default() };
            let run_limits = RunLimits { stable_steps: 20_000, ..RUN_LIMITS };
            run_agreement(
                seed,
                protocol_worlds::hbo::<AllRules>(&ring(6), limits),
                run_limits,
                &[false, true],
            )
            .into()
        },
    },
    CatalogueEntry {
        name: "recoverable-cell",
        properties: CELL_PROPERTIES,
        explored_world: EXPLORED_CELLS,
        simulated_world: SIMULATED_CELLS,
        explore: || cell_worlds::explore(CellKind::Recoverable),
        serve: |address| cell_worlds::two_owners(CellKind::Recoverable).world().serve(address),
        run_seed: |seed| cell_worlds::run(CellKind::Recoverable, seed),
    },
    CatalogueEntry {
        name: "indirect-cell",
        properties: CELL_PROPERTIES,
        explored_world: EXPLORED_CELLS,
        simulated_world: SIMULATED_CELLS,
        explore: || cell_worlds::explore(CellKind::Indirect),
        serve: |address| cell_worlds::two_owners(CellKind::Indirect).world().serve(address),
        run_seed: |seed| cell_worlds::run(CellKind::Indirect, seed),
    },
    CatalogueEntry {
        name: "rail-negotiation",
        properties: rail_model::PROPERTIES,
        explored_world: "2 ends of a virtual queue pair with 2 rails; 1 failure of any kind, 3 timers of which 1 is late, 1 crash; then 2 links that go down; then 1 failed queue pair and 1 close; then one usable rail, which fails twice; then faults stop",
        simulated_world: "2 ends of a virtual queue pair with 2 rails; up to 24 failures; 1 nap, crash or close in some runs; then faults stop",
        explore: rail_model::explore_small_worlds,
        serve: |address| exhaustive_rails(RailFaultLimits::ONE_FAILURE, 4, None).serve(address),
        run_seed: |seed| rail_model::run_rails_from_seed(seed, None),
    },
    CatalogueEntry {
        name: "rail-questions",
        properties: question_world::PROPERTIES,
        explored_world: "an end that waits, its peer and 2 rails; 3 losses; then 1 direction of a rail that fails, and a peer that closes; then a peer that is suspended; then an end that is suspended",
        simulated_world: "an end that waits, its peer and 2 rails; up to 3 losses, 2 directions of rails that fail, 8 suspensions; the peer closes in some runs",
        explore: question_world::explore,
        serve: |address| exhaustive_questions(QuestionLimits::ONE_BREAK, 15).serve(address),
        run_seed: question_world::run_from_seed,
    },
    CatalogueEntry {
        name: "fence-evidence-replay",
        properties: theorems::REPLAY_PROPERTIES,
        explored_world: "3 FETCH_ADDs, then 3 CMP_SWAPs; their rail fails twice, and another client sets the word to 0 twice",
        simulated_world: "4 FETCH_ADDs or CMP_SWAPs; their rail fails up to twice, and another client sets the word to 0 up to 4 times",
        explore: theorems::explore_replay,
        serve: theorems::serve_replay,
        run_seed: theorems::run_replay_from_seed,
    },
    crate::shared_backup_model::ENTRY,
    CatalogueEntry {
        name: "endpoint-filter",
        properties: crate::call_log::PROPERTIES,
        explored_world: "2 senders, a table of one row; a window of 2; a restart of each end, an eviction; one bit per node; losses, copies, any order",
        simulated_world: "3 senders, a table of 2 rows, 8 calls each; 3 restarts, 2 evictions; losses, copies, any order",
        explore: || {
            let table = |limits| exhaustive_filter::<mitra_filter::AllRules>(limits).explore();
            let bits = |limits| exhaustive_bit_filter::<mitra_filter::AllRules>(limits).explore();
            let none = Exploration { states: 0, counterexample: None };
            let tables = filter_worlds::TABLES.into_iter();
            tables
                .fold(none, |found, limits| found.and_then(|| table(limits)))
                .and_then(|| bits(filter_worlds::ONE_BIT))
                .and_then(|| bits(filter_worlds::TWO_BITS))
        },
        serve: |address| {
            exhaustive_filter::<mitra_filter::AllRules>(filter_worlds::ONE_ROW).serve(address);
        },
        run_seed: |seed| run_filter::<mitra_filter::AllRules>(seed, filter_worlds::LARGE, 400),
    },
    CatalogueEntry {
        name: "recoverable-counter",
        properties: &["every add counts exactly once", "every operation ends"],
        explored_world: "3 requesters with fields of 1 bit and 2 adds each, whose paths fail 2, 2 and 1 times; 2 requesters with fields of 2 bits and 2 batches of up to 3 adds each, whose paths fail 2 and 1 times",
        simulated_world: "4 requesters with fields of 1 to 3 bits and 6 batches of adds each; the path of each fails up to 4 times",
        explore: counter_scenario::explore,
        serve: |address| counter_scenario::two_bit_fields().world().serve(address),
        run_seed: counter_scenario::run,
    },
    CatalogueEntry {
        name: "latch",
        properties: &["every arrival counts once, at its own identity", "every operation ends"],
        explored_world: "3 participants, 2 rounds, the path of each fails once; without a fence, and with fence and evidence",
        simulated_world: "2 to 5 participants, 6 rounds; the path of each fails up to 4 times, without a fence in odd seeds",
        explore: latch_scenario::explore,
        serve: |address| latch_scenario::unfenced(2, 2).world().serve(address),
        run_seed: latch_scenario::run,
    },
    CatalogueEntry {
        name: "mutex",
        properties: &[
            "at most one client holds the mutex, and its word names no client that does not know",
            "every operation ends",
        ],
        explored_world: "the path of each client fails once: 2 clients that lock twice, without a fence; 3 that lock once and 2 that lock 3 times, with fence and evidence",
        simulated_world: "2 to 5 clients that lock 5 times; the path of each fails up to 4 times, without a fence in odd seeds",
        explore: mutex_scenario::explore,
        serve: |address| mutex_scenario::unfenced(2, 2).world().serve(address),
        run_seed: mutex_scenario::run,
    },
    CatalogueEntry {
        name: "mailbox",
        properties: &["every message is received once, whole and in order", "every operation ends"],
        explored_world: "4 messages of 1 and 2 words; the writer's path fails 3 times",
        simulated_world: "20 messages of 1 and 2 words; the writer's path fails up to 12 times",
        explore: mailbox_scenario::explore,
        serve: |address| mailbox_scenario::world_of(2, 1).world().serve(address),
        run_seed: mailbox_scenario::run,
    },
    crate::transaction_worlds::ENTRY,
];

fn ring(n: u8) -> Vec<ProcessSet> {
    protocol_worlds::graph(n, &(0..n).map(|p| (p, (p + 1) % n)).collect::<Vec<_>>())
}

fn small_aligned_paxos() -> ExhaustiveWorld<AlignedPaxos<u8>> {
    agreement_among(
        protocol_worlds::aligned_paxos(2, 2, FaultLimits { leader_changes: 2, ..FaultLimits::default() }),
        2,
    )
}

fn small_fast_paxos() -> ExhaustiveWorld<FastPaxos<u8>> {
    agreement_among(protocol_worlds::fast_paxos((4, 1, 1), &[0, 1], FaultLimits::default()), 2)
}

fn small_log() -> Exhaustive<LogWorld<AllRules>, Step> {
    let limits = FaultLimits { leader_changes: 2, ..FaultLimits::default() };
    exhaustive_log(protocol_worlds::log(protocol_worlds::log_config(2, 1, 1), 2, limits), 1)
}

fn small_broadcast() -> ExhaustiveWorld<SmallBroadcastActor> {
    let messages =
        [protocol_worlds::proposal, byzantine_worlds::second_proposal].map(|proposal_of| proposal_of(0));
    Exhaustive::agreement(byzantine_worlds::small_broadcast::<AllRules>(), 0, messages.into())
}

/// Returns the set of one Byzantine process of three, which depends on the seed.
fn one_of_three(seed: u64) -> ByzantineSet {
    ByzantineSet { processes: ProcessSet::only(ProcessId((seed % 3) as u8)), adversary_seed: Some(seed) }
}

/// Returns the number of polls after which a process panics: 0, few, or enough for most runs.
fn max_polls(seed: u64) -> u8 {
    [0, 2, 20][(seed / 3 % 3) as usize]
}

fn small_cheap_quorum() -> ExhaustiveWorld<CheapQuorumActor> {
    agreement_on_proposals(byzantine_worlds::small_cheap_quorum::<AllRules>(), 0)
        .always("abort agreement", byzantine_worlds::aborts_agree)
}

fn small_fast_and_robust() -> ExhaustiveWorld<FastAndRobustActor> {
    agreement_on_proposals(byzantine_worlds::small_fast_and_robust(), 1)
}

fn small_robust_backup() -> ExhaustiveWorld<SmallRobustPaxosActor> {
    let limits = FaultLimits { leader_changes: 1, ..FaultLimits::default() };
    agreement_on_proposals(byzantine_worlds::small_robust_backup(2, limits), 1)
}

fn small_omega() -> ExhaustiveWorld<Omega> {
    let limits = FaultLimits { process_crashes: 1, ..FaultLimits::default() };
    Exhaustive::election(protocol_worlds::omega(2, limits), 2, Omega::leader)
}

fn small_silent_omega() -> ExhaustiveWorld<MemoryOnlyOmega> {
    let limits = FaultLimits { process_crashes: 1, disconnects: 1, ..FaultLimits::default() };
    Exhaustive::election(protocol_worlds::memory_only_omega(2, limits), 1, MemoryOnlyOmega::leader)
}

fn small_hbo() -> ExhaustiveWorld<hbo::Hbo> {
    let limits = FaultLimits { process_crashes: 1, ..FaultLimits::default() };
    let start = protocol_worlds::hbo(&protocol_worlds::graph(2, &[(0, 1)]), limits);
    Exhaustive::agreement(start, 1, vec![false, true])
}

fn small_paxos() -> ExhaustiveWorld<paxos::Paxos<u8>> {
    let limits = FaultLimits { leader_changes: 2, process_crashes: 1, ..FaultLimits::default() };
    agreement_among(protocol_worlds::paxos(3, limits), 3)
}

fn small_disk_paxos() -> ExhaustiveWorld<disk_paxos::DiskPaxos<u8>> {
    agreement_among(
        protocol_worlds::disk_paxos(2, 3, FaultLimits { leader_changes: 2, ..FaultLimits::default() }),
        2,
    )
}

fn small_protected_memory_paxos() -> ExhaustiveWorld<protected_memory_paxos::ProtectedMemoryPaxos<u8>> {
    let limits = FaultLimits { leader_changes: 2, memory_crashes: 1, ..FaultLimits::default() };
    agreement_among(protocol_worlds::protected_memory_paxos(2, 3, limits), 2)
}

/// Returns the exploration of a world in which processes 0 to `processes` − 1 propose, with one
/// attempt each.
fn agreement_among<P: Explorable + Process<Value = u8>>(
    start: World<P>,
    processes: u8,
) -> ExhaustiveWorld<P> {
    Exhaustive::agreement(start, 1, (0..processes).map(protocol_worlds::proposal).collect())
}

/// Returns the exploration of a world in which processes decide on one of [`PROPOSALS`].
fn agreement_on_proposals<P: Explorable + Process<Value = u8>>(
    start: World<P>,
    max_attempts: u64,
) -> ExhaustiveWorld<P> {
    Exhaustive::agreement(start, max_attempts, PROPOSALS.into())
}

/// Runs a world from a seed, in which every process proposes its own value.
fn run_from_seed<P: Process<Value = u8>>(seed: u64, world: World<P>) -> SeedResult {
    let valid: Vec<u8> = (0..world.decisions().len() as u8).map(protocol_worlds::proposal).collect();
    run_agreement(seed, world, RUN_LIMITS, &valid).into()
}
