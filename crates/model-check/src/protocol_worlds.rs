//! Functions that create a world of each protocol, for any number of processes and memories.

use mitra_consensus::aligned_paxos::{self, AlignedPaxos};
use mitra_consensus::disk_paxos::{self, DiskPaxos};
use mitra_consensus::fast_paxos::{self, FastPaxos, Quorums};
use mitra_consensus::hbo::{self, Hbo};
use mitra_consensus::memory_only_omega::{self, MemoryOnlyOmega};
use mitra_consensus::omega::{self, Omega};
use mitra_consensus::paxos::{self, Paxos};
use mitra_consensus::protected_memory_paxos::{self, ProtectedMemoryPaxos};
use mitra_consensus::{ProcessId, ProcessSet};
use mitra_consensus::{kv_store, log};

use crate::seeded_run::StepRng;
use crate::store_nodes::{ClientOp, StoreNode};
use crate::{FaultLimits, LogWorld, Replica, StoreWorld, World};

/// Returns the value that process `p` proposes.
pub fn proposal(p: u8) -> u8 {
    10 + p
}

/// Creates a world of `n` processes of Paxos.
pub fn paxos<R: paxos::Rules>(n: u8, limits: FaultLimits) -> World<Paxos<u8, R>> {
    World::new((0..n).map(|p| Paxos::new(ProcessId(p), n, proposal(p))).collect(), 0, &[], limits)
}

/// Creates a world of `n` processes of Disk Paxos over `m` memories.
pub fn disk_paxos<R: disk_paxos::Rules>(n: u8, m: u8, limits: FaultLimits) -> World<DiskPaxos<u8, R>> {
    let processes = (0..n).map(|p| DiskPaxos::new(ProcessId(p), n, m, proposal(p))).collect();
    World::new(processes, m, &DiskPaxos::<u8, R>::regions(n), limits)
}

/// Creates a world of `n` processes of Protected Memory Paxos over `m` memories.
pub fn protected_memory_paxos<R: protected_memory_paxos::Rules>(
    n: u8,
    m: u8,
    limits: FaultLimits,
) -> World<ProtectedMemoryPaxos<u8, R>> {
    let processes = (0..n).map(|p| ProtectedMemoryPaxos::new(ProcessId(p), n, m, proposal(p))).collect();
    World::new(processes, m, &ProtectedMemoryPaxos::<u8, R>::regions(n), limits)
}

/// Creates a world of `n` processes of Aligned Paxos over `m` memories.
pub fn aligned_paxos<R: aligned_paxos::Rules, M: protected_memory_paxos::Rules>(
    n: u8,
    m: u8,
    limits: FaultLimits,
) -> World<AlignedPaxos<u8, R, M>> {
    let processes = (0..n).map(|p| AlignedPaxos::new(ProcessId(p), n, m, proposal(p))).collect();
    World::new(processes, m, &AlignedPaxos::<u8, R, M>::regions(n), limits)
}

/// Creates a world of `n` processes of Fast Paxos. The processes in `proposers` propose a value
/// each. The protocol tolerates `f` crashes, and decides in the fast ballot with up to `e` crashes.
///
/// # Panics
/// If the quorums do not exist: they require n > 2f, n > 2e + f and e ≤ f.
pub fn fast_paxos<R: fast_paxos::Rules>(
    (n, f, e): (u8, u8, u8),
    proposers: &[u8],
    limits: FaultLimits,
) -> World<FastPaxos<u8, R>> {
    let quorums = Quorums::new(n, f, e).expect("n > 2f, n > 2e + f and e <= f");
    let input = |p: u8| proposers.contains(&p).then_some(proposal(p));
    let processes = (0..n).map(|p| FastPaxos::new(ProcessId(p), quorums, input(p))).collect();
    World::new(processes, 0, &[], limits)
}

/// Returns the smallest configuration of a log over `m` memories: entries of two commands, and a
/// ring of two windows with `window` entries each.
pub fn log_config(n: u8, m: u8, window: u16) -> log::Config {
    log::Config {
        processes: n,
        memories: m,
        max_inflight: window,
        window,
        ring_windows: 2,
        register_bytes: 62,
        snapshot_registers: 16,
        queue_capacity: 4,
    }
}

/// Creates a world of a replicated log. Each process submits commands until `commands` of its own
/// are committed.
pub fn log<R: log::Rules>(config: log::Config, commands: u8, limits: FaultLimits) -> LogWorld<R> {
    log_of((0..config.processes).map(|p| Replica::new(ProcessId(p), config, commands)), config, limits)
}

/// Creates a world like [`log()`], in which the set of processes that may lead changes.
pub fn log_with_leader_changes<R: log::Rules>(
    config: log::Config,
    commands: u8,
    limits: FaultLimits,
) -> LogWorld<R> {
    let replica = |p| Replica::new(ProcessId(p), config, commands).with_leader_changes();
    log_of((0..config.processes).map(replica), config, limits)
}

fn log_of<R: log::Rules>(
    processes: impl Iterator<Item = Replica<R>>,
    config: log::Config,
    limits: FaultLimits,
) -> LogWorld<R> {
    LogWorld::new(World::new(processes.collect(), config.memories, &config.regions(), limits))
}

/// Creates a world of the key-value store with three servers and `clients` clients over `m`
/// memories. Each client performs `operations` operations on two keys. The seed selects the
/// operations.
pub fn store<R: kv_store::Rules, const LOCAL_READS: bool>(
    seed: u64,
    (m, clients, operations): (u8, u8, u8),
    limits: FaultLimits,
) -> StoreWorld<R, LOCAL_READS> {
    let mut rng = StepRng::new(!seed);
    let mut operation = || {
        let kind = [ClientOp::Get, ClientOp::Get, ClientOp::Put, ClientOp::Cas, ClientOp::Delete]
            [rng.below(5) as usize];
        (kind, rng.below(2) as u8)
    };
    let config = log::Config { register_bytes: 150, ..log_config(3 + clients, m, 2) };
    let servers = (0..3).map(|p| StoreNode::server(ProcessId(p), config));
    // If there are several clients, the first client has no session.
    let has_session = |p| p > 3 || clients == 1;
    let clients = (3..3 + clients)
        .map(|p| StoreNode::client(p, 3, (0..operations).map(|_| operation()).collect(), has_session(p)));
    let nodes = servers.chain(clients).collect();
    StoreWorld::new(World::new(nodes, m, &config.regions(), limits), 3, 2)
}

/// Creates a world of `n` processes over one memory that elect a leader with messages ([`Omega`]).
pub fn omega<R: omega::Rules>(n: u8, limits: FaultLimits) -> World<Omega<R>> {
    let processes = (0..n).map(|p| Omega::new(ProcessId(p), n)).collect();
    World::new(processes, 1, &Omega::<R>::regions(n), limits)
}

/// Creates a world of `n` processes over one memory that elect a leader without messages
/// ([`MemoryOnlyOmega`]).
pub fn memory_only_omega<R: memory_only_omega::Rules, E: omega::Rules>(
    n: u8,
    limits: FaultLimits,
) -> World<MemoryOnlyOmega<R, E>> {
    let processes = (0..n).map(|p| MemoryOnlyOmega::new(ProcessId(p), n)).collect();
    World::new(processes, 1, &MemoryOnlyOmega::<R, E>::regions(n), limits)
}

/// Creates a world of HBO. Each process shares a memory with its neighbours in the graph. Processes
/// with even numbers propose `false`, and processes with odd numbers propose `true`.
pub fn hbo<R: hbo::Rules>(neighbours: &[ProcessSet], limits: FaultLimits) -> World<Hbo<R>> {
    let processes_with_neighbours =
        || neighbours.iter().enumerate().map(|(p, &set)| (ProcessId(p as u8), set));
    let n = neighbours.len() as u8;
    let processes = processes_with_neighbours().map(|(p, set)| Hbo::new(p, n, set, p.0 % 2 == 1)).collect();
    let memories: Vec<_> = processes_with_neighbours().map(|(p, set)| Hbo::<R>::regions(p, set)).collect();
    World::with_regions(processes, &memories, limits)
}

/// Returns the neighbours of each of `n` processes in the graph with these edges.
pub fn graph(n: u8, edges: &[(u8, u8)]) -> Vec<ProcessSet> {
    let neighbours = |p: u8| {
        let ends = edges.iter().flat_map(|&(u, v)| [(u, v), (v, u)]);
        let others = ends.filter(|&(u, _)| u == p).map(|(_, v)| ProcessId(v));
        others.fold(ProcessSet::NONE, ProcessSet::with)
    };
    (0..n).map(neighbours).collect()
}
