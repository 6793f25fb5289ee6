//! The protocols by name, each at the sizes at which it is checked.

use std::net::SocketAddr;

use mitra_consensus::aligned_paxos::AlignedPaxos;
use mitra_consensus::fast_paxos::FastPaxos;
use mitra_consensus::memory_only_omega::MemoryOnlyOmega;
use mitra_consensus::omega::Omega;
use mitra_consensus::{
    AllRules, Process, ProcessId, ProcessSet, disk_paxos, hbo, paxos, protected_memory_paxos,
};

use crate::traitors::{self, FastActor, QuorumActor, SmallBroadcaster, SmallRobustPaxos, Traitors};
use crate::{
    Chaos, Exhaustive, ExhaustiveLog, Found, Limits, Report, World, all_or_none, elect, play, run,
    run_judged, worlds,
};

/// Faults and errors of Ω in a run from a seed: all processes but one and a minority of the memories may crash.
const ALL_BUT_ONE: Limits =
    Limits { namings: 16, process_crashes: 2, memory_crashes: 1, breaks: 4, restarts: 0, losses: 0 };
/// The same where processes must stay a majority.
const MINORITY: Limits = Limits { process_crashes: 1, memory_crashes: 0, ..ALL_BUT_ONE };
const CHAOS: Chaos = Chaos { steps: 300, calm: 3000 };
/// A log lasts longer: it has to come to be recycled.
const LOG_CHAOS: Chaos = Chaos { steps: 800, calm: 20_000 };
/// The same where processes are Byzantine instead.
const ONE_MEMORY: Limits = Limits { namings: 0, process_crashes: 0, breaks: 3, ..ALL_BUT_ONE };
const SOME_LEADERS: Limits = Limits { namings: 12, ..ONE_MEMORY };
/// For protocols that poll.
const PATIENT: Chaos = Chaos { steps: 600, calm: 20_000 };
const VERY_PATIENT: Chaos = Chaos { steps: 3_000, calm: 60_000 };
/// What three processes propose, with a face or two.
const PROPOSALS: &[u8] = &[10, 11, 12, 20, 21, 22];

/// What is checked of a protocol that decides, and of one that elects.
const DECIDES: &[&str] = &["agreement", "validity"];
const ELECTS: &[&str] = &["election"];

/// A protocol that can be checked.
pub struct Entry {
    /// Its name in commands.
    pub name: &'static str,
    /// What is meant to hold.
    pub holds: &'static [&'static str],
    /// The world that is explored exhaustively.
    pub explored: &'static str,
    /// The world that is run from seeds.
    pub run: &'static str,
    explore: fn() -> Found,
    serve: fn(SocketAddr),
    run_one: fn(u64) -> Report,
}

impl Entry {
    /// Explores its small world exhaustively.
    pub fn explore(&self) -> Found {
        (self.explore)()
    }

    /// Serves its small world, of several the first, to a browser, for as long as the program runs.
    pub fn serve(&self, at: SocketAddr) {
        (self.serve)(at);
    }

    /// Runs its larger world from a seed.
    pub fn run(&self, seed: u64) -> Report {
        (self.run_one)(seed)
    }
}

/// All of them.
pub const CATALOGUE: &[Entry] = &[
    Entry {
        name: "paxos",
        holds: DECIDES,
        explored: "3 processes, of which 1 may crash; Ω speaks twice, each attempts once",
        run: "3 processes, of which 1 may crash; Ω speaks 16 times",
        explore: || small_paxos().explore(),
        serve: |at| small_paxos().serve(at),
        run_one: |seed| seeded(seed, worlds::paxos::<AllRules>(3, MINORITY)),
    },
    Entry {
        name: "disk-paxos",
        holds: DECIDES,
        explored: "2 processes, 3 memories; Ω speaks twice, each attempts once",
        run: "3 processes, of which 2 may crash, 3 memories, of which 1; Ω speaks 16 times, 4 connections to memories break",
        explore: || small_disk_paxos().explore(),
        serve: |at| small_disk_paxos().serve(at),
        run_one: |seed| seeded(seed, worlds::disk_paxos::<AllRules>(3, 3, ALL_BUT_ONE)),
    },
    Entry {
        name: "protected-memory-paxos",
        holds: DECIDES,
        explored: "2 processes, 3 memories, of which 1 may crash; Ω speaks twice, each attempts once",
        run: "3 processes, of which 2 may crash, 3 memories, of which 1; Ω speaks 16 times, 4 connections to memories break",
        explore: || small_protected_memory_paxos().explore(),
        serve: |at| small_protected_memory_paxos().serve(at),
        run_one: |seed| seeded(seed, worlds::protected_memory_paxos::<AllRules>(3, 3, ALL_BUT_ONE)),
    },
    Entry {
        name: "aligned-paxos",
        holds: DECIDES,
        explored: "2 processes, 2 memories; Ω speaks twice, each attempts once",
        run: "3 processes, 2 memories, of which 1 each may crash; Ω speaks 16 times, 4 connections to memories break",
        explore: || small_aligned_paxos().explore(),
        serve: |at| small_aligned_paxos().serve(at),
        run_one: |seed| {
            let limits = Limits { memory_crashes: 1, ..MINORITY };
            seeded(seed, worlds::aligned_paxos::<AllRules, AllRules>(3, 2, limits))
        },
    },
    Entry {
        name: "fast-paxos",
        holds: DECIDES,
        explored: "4 processes, 2 of which propose; the fast ballot alone",
        run: "4 processes, 2 of which propose and 1 may crash; Ω speaks 16 times",
        explore: || small_fast_paxos().explore(),
        serve: |at| small_fast_paxos().serve(at),
        run_one: |seed| seeded(seed, worlds::fast_paxos::<AllRules>((4, 1, 1), &[0, 1], MINORITY)),
    },
    Entry {
        name: "replicated-log",
        holds: DECIDES,
        explored: "2 processes, 1 memory, a ring of 2; Ω speaks twice, each leads once and has 2 commands",
        run: "3 processes, of which 2 may crash, 3 memories, of which 1; Ω speaks 16 times, 3 restarts, each has 6 commands",
        explore: || small_log().explore(),
        serve: |at| small_log().serve(at),
        run_one: |seed| {
            let limits = Limits { restarts: 3, ..ALL_BUT_ONE };
            play(seed, worlds::log::<AllRules>(worlds::log_config(3, 3, 2), 6, limits), LOG_CHAOS)
        },
    },
    Entry {
        name: "non-equivocating-broadcast",
        holds: DECIDES,
        explored: "3 processes, 1 memory; the sender is Byzantine, and writes 3 times",
        run: "3 processes, of which the sender is Byzantine, 3 memories, of which 1 may crash; all deliver or none",
        explore: || small_broadcast().explore(),
        serve: |at| small_broadcast().serve(at),
        run_one: |seed| {
            let sender = Traitors { who: ProcessSet::first(1), whim: Some(seed) };
            let world = traitors::broadcast::<AllRules>((3, 3), sender, ONE_MEMORY);
            run_judged(
                seed,
                world,
                PATIENT,
                &[worlds::proposal(0), traitors::second_proposal(0)],
                all_or_none,
            )
        },
    },
    Entry {
        name: "robust-backup",
        holds: DECIDES,
        explored: "3 processes, of which 1 is silent, 1 memory; Ω speaks once, room for 2 turns of each",
        run: "3 processes, of which 1 is Byzantine, 3 memories, of which 1 may crash; Ω speaks 12 times",
        explore: || small_robust_backup().explore(),
        serve: |at| small_robust_backup().serve(at),
        run_one: |seed| {
            let one = one_of_three(seed);
            match seed / 3 % 2 {
                0 => {
                    let world = traitors::robust_backup::<AllRules, AllRules>((3, 3), one, SOME_LEADERS);
                    run(seed, world, VERY_PATIENT, PROPOSALS)
                }
                _ => {
                    let world = traitors::robust_backup_with_fables::<AllRules>((3, 3), one, SOME_LEADERS);
                    run(seed, world, VERY_PATIENT, PROPOSALS)
                }
            }
        },
    },
    Entry {
        name: "cheap-quorum",
        holds: &["agreement", "validity", "abort agreement"],
        explored: "2 processes, 3 memories; the leader proposes once, the follower panics at once; no further",
        run: "3 processes, of which 1 is Byzantine, 3 memories, of which 1 may crash; all decide or abort",
        explore: || small_cheap_quorum().explore(),
        serve: |at| small_cheap_quorum().serve(at),
        run_one: |seed| {
            let world =
                traitors::cheap_quorum::<AllRules>((3, 3), patience(seed), one_of_three(seed), ONE_MEMORY);
            run_judged(seed, world, PATIENT, PROPOSALS, traitors::gives_up_wrongly)
        },
    },
    Entry {
        name: "fast-and-robust",
        holds: DECIDES,
        explored: "2 processes, of which neither waits, 1 memory; Ω speaks once, room for 2 turns of each",
        run: "3 processes, of which 1 is Byzantine, 3 memories, of which 1 may crash; Ω speaks 12 times",
        explore: || small_fast_and_robust().explore(),
        serve: |at| small_fast_and_robust().serve(at),
        run_one: |seed| {
            let (one, patience) = (one_of_three(seed), patience(seed));
            match seed / 9 % 2 {
                0 => {
                    let patience = (patience, traitors::TURNS);
                    let world =
                        traitors::fast_and_robust::<AllRules, AllRules>((3, 3), patience, one, SOME_LEADERS);
                    run(seed, world, VERY_PATIENT, PROPOSALS)
                }
                _ => {
                    let world = traitors::fast_and_robust_with_claims::<AllRules, AllRules>(
                        (3, 3),
                        patience,
                        one,
                        SOME_LEADERS,
                    );
                    run(seed, world, VERY_PATIENT, PROPOSALS)
                }
            }
        },
    },
    Entry {
        name: "omega",
        holds: ELECTS,
        explored: "2 processes, of which 1 may crash; each wakes twice, then all is calm; and with no links at all, where each wakes once",
        run: "4 processes, of which 3 may crash; then all is calm; with odd seeds with no links at all",
        explore: || small_omega().explore().and_then(|| small_silent_omega().explore()),
        serve: |at| small_omega().serve(at),
        run_one: |seed| {
            let limits = Limits { process_crashes: 3, ..Limits::default() };
            let chaos = Chaos { steps: 400, calm: 10_000 };
            match seed % 2 {
                0 => elect(seed, worlds::omega::<AllRules>(4, limits), chaos, Omega::leader),
                _ => {
                    let world = worlds::memory_only_omega::<AllRules, AllRules>(4, limits);
                    elect(seed, world, chaos, MemoryOnlyOmega::leader)
                }
            }
        },
    },
    Entry {
        name: "hbo",
        holds: DECIDES,
        explored: "2 neighbours, of which 1 may crash; one round",
        run: "a ring of 6 processes, of which 4 may crash",
        explore: || small_hbo().explore(),
        serve: |at| small_hbo().serve(at),
        run_one: |seed| {
            let limits = Limits { process_crashes: 4, ..Limits::default() };
            let chaos = Chaos { calm: 20_000, ..CHAOS };
            run(seed, worlds::hbo::<AllRules>(&ring(6), limits), chaos, &[false, true])
        },
    },
];

fn ring(n: u8) -> Vec<ProcessSet> {
    worlds::graph(n, &(0..n).map(|p| (p, (p + 1) % n)).collect::<Vec<_>>())
}

fn small_aligned_paxos() -> Exhaustive<AlignedPaxos<u8>> {
    exhaustive(worlds::aligned_paxos(2, 2, Limits { namings: 2, ..Limits::default() }), 2)
}

fn small_fast_paxos() -> Exhaustive<FastPaxos<u8>> {
    exhaustive(worlds::fast_paxos((4, 1, 1), &[0, 1], Limits::default()), 2)
}

fn small_log() -> ExhaustiveLog<AllRules> {
    let limits = Limits { namings: 2, ..Limits::default() };
    ExhaustiveLog::new(worlds::log(worlds::log_config(2, 1, 1), 2, limits), 1)
}

fn small_broadcast() -> Exhaustive<SmallBroadcaster> {
    let messages = [worlds::proposal, traitors::second_proposal].map(|of| of(0));
    Exhaustive::agreement(traitors::small_broadcast::<AllRules>(), 0, messages.into())
}

/// Another is Byzantine with each seed.
fn one_of_three(seed: u64) -> Traitors {
    Traitors { who: ProcessSet::only(ProcessId((seed % 3) as u8)), whim: Some(seed) }
}

/// How often processes poll before they panic: they cannot wait, or can a little, or long enough for most.
fn patience(seed: u64) -> u8 {
    [0, 2, 20][(seed / 3 % 3) as usize]
}

fn small_cheap_quorum() -> Exhaustive<QuorumActor> {
    exhaustive_from(traitors::small_cheap_quorum::<AllRules>(), 0).with_aborts(traitors::aborts_well)
}

fn small_fast_and_robust() -> Exhaustive<FastActor> {
    exhaustive_from(traitors::small_fast_and_robust(), 1)
}

fn small_robust_backup() -> Exhaustive<SmallRobustPaxos> {
    let limits = Limits { namings: 1, ..Limits::default() };
    exhaustive_from(traitors::small_robust_backup(2, limits), 1)
}

fn small_omega() -> Exhaustive<Omega> {
    let limits = Limits { process_crashes: 1, ..Limits::default() };
    Exhaustive::election(worlds::omega(2, limits), 2, Omega::leader)
}

fn small_silent_omega() -> Exhaustive<MemoryOnlyOmega> {
    let limits = Limits { process_crashes: 1, breaks: 1, ..Limits::default() };
    Exhaustive::election(worlds::memory_only_omega(2, limits), 1, MemoryOnlyOmega::leader)
}

fn small_hbo() -> Exhaustive<hbo::Hbo> {
    let limits = Limits { process_crashes: 1, ..Limits::default() };
    let start = worlds::hbo(&worlds::graph(2, &[(0, 1)]), limits);
    Exhaustive::agreement(start, 1, vec![false, true])
}

fn small_paxos() -> Exhaustive<paxos::Paxos<u8>> {
    let limits = Limits { namings: 2, process_crashes: 1, ..Limits::default() };
    exhaustive(worlds::paxos(3, limits), 3)
}

fn small_disk_paxos() -> Exhaustive<disk_paxos::DiskPaxos<u8>> {
    exhaustive(worlds::disk_paxos(2, 3, Limits { namings: 2, ..Limits::default() }), 2)
}

fn small_protected_memory_paxos() -> Exhaustive<protected_memory_paxos::ProtectedMemoryPaxos<u8>> {
    let limits = Limits { namings: 2, memory_crashes: 1, ..Limits::default() };
    exhaustive(worlds::protected_memory_paxos(2, 3, limits), 2)
}

fn exhaustive<P: Process<Value = u8>>(start: World<P>, processes: u8) -> Exhaustive<P> {
    Exhaustive::agreement(start, 1, (0..processes).map(worlds::proposal).collect())
}

fn exhaustive_from<P: Process<Value = u8>>(start: World<P>, attempts: u64) -> Exhaustive<P> {
    Exhaustive::agreement(start, attempts, PROPOSALS.into())
}

fn seeded<P: Process<Value = u8>>(seed: u64, world: World<P>) -> Report {
    let valid: Vec<u8> = (0..world.decisions().len() as u8).map(worlds::proposal).collect();
    run(seed, world, CHAOS, &valid)
}
