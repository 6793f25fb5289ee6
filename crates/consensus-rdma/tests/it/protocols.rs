//! The protocols over NICs: [`ProcessNode`](mitra_consensus_rdma::ProcessNode) drives the state
//! machines that the model checker explores.

use crate::common::{Cluster, keys};
use mitra_consensus::aligned_paxos::AlignedPaxos;
use mitra_consensus::cheap_quorum::CheapQuorum;
use mitra_consensus::disk_paxos::DiskPaxos;
use mitra_consensus::fast_and_robust::FastAndRobust;
use mitra_consensus::fast_paxos::{FastPaxos, Quorums};
use mitra_consensus::hbo::Hbo;
use mitra_consensus::memory_only_omega::MemoryOnlyOmega;
use mitra_consensus::omega::Omega;
use mitra_consensus::paxos::Paxos;
use mitra_consensus::protected_memory_paxos::ProtectedMemoryPaxos;
use mitra_consensus::robust_backup::RobustBackup;
use mitra_consensus::signature::Ed25519;
use mitra_consensus::{AllRules, Input, MemoryId, Process, ProcessId, ProcessSet};
use mitra_softnic::fault::Failure;

fn processes<P>(n: u8, each: impl Fn(ProcessId) -> P) -> Vec<P> {
    (0..n).map(ProcessId).map(each).collect()
}

fn value(p: ProcessId) -> u64 {
    10 + u64::from(p.0)
}

fn protected_memory_paxos(rails: usize) -> Cluster<ProtectedMemoryPaxos<u64>> {
    let processes = processes(3, |p| ProtectedMemoryPaxos::new(p, 3, 3, value(p)));
    Cluster::start(processes, &vec![ProtectedMemoryPaxos::<u64>::regions(3); 3], rails)
}

#[test]
fn paxos_decides() {
    let mut cluster = Cluster::start(processes(3, |p| Paxos::<u64>::new(p, 3, value(p))), &[], 1);
    cluster.announce_leader(1);
    assert_eq!(cluster.wait_for_decision(), 11);
}

#[test]
fn fast_paxos_decides() {
    let quorums = Quorums::new(4, 1, 1).expect("4 processes tolerate one crash with fast quorums");
    let processes = processes(4, |p| FastPaxos::<u64>::new(p, quorums, (p.0 == 2).then_some(7)));
    let mut cluster = Cluster::start(processes, &[], 1);
    assert_eq!(cluster.wait_for_decision(), 7);
}

#[test]
fn disk_paxos_decides() {
    let processes = processes(2, |p| DiskPaxos::<u64>::new(p, 2, 3, value(p)));
    let mut cluster = Cluster::start(processes, &vec![DiskPaxos::<u64>::regions(2); 3], 1);
    cluster.announce_leader(1);
    assert_eq!(cluster.wait_for_decision(), 11);
}

#[test]
fn aligned_paxos_decides_without_one_process_and_one_memory() {
    let processes = processes(3, |p| AlignedPaxos::<u64>::new(p, 3, 2, value(p)));
    let mut cluster = Cluster::start(processes, &vec![AlignedPaxos::<u64>::regions(3); 2], 1);
    cluster.nodes[2] = None;
    cluster.memories[1].crash();
    cluster.announce_leader(1);
    assert_eq!(cluster.wait_for_decision(), 11);
}

#[test]
fn hbo_decides() {
    let neighbours = ProcessSet::first(3);
    let regions: Vec<_> = (0..3).map(|p| Hbo::<AllRules>::regions(ProcessId(p), neighbours)).collect();
    let processes = processes(3, |p| Hbo::new(p, 3, neighbours.without(p), p.0 == 1));
    let mut cluster: Cluster<Hbo> = Cluster::start(processes, &regions, 1);
    cluster.wait_for_decision();
}

/// Processes write the registers of HBO by compare-and-swap, which is atomic per NIC. All processes
/// therefore leave a rail of the memory if one process leaves the rail.
#[test]
fn users_of_write_once_registers_change_rails_together() {
    let neighbours = ProcessSet::first(3);
    let regions: Vec<_> = (0..3).map(|p| Hbo::<AllRules>::regions(ProcessId(p), neighbours)).collect();
    let processes = processes(3, |p| Hbo::new(p, 3, neighbours.without(p), p.0 == 1));
    let mut cluster: Cluster<Hbo> = Cluster::start(processes, &regions, 2);
    cluster.nics[0][0].faults().fail(Failure::LinkDown);
    cluster.wait_for_decision();
    cluster.wait_until("all connections have moved", |c| {
        c.running().all(|node| (0..3).all(|m| node.last_failover(MemoryId(m)).is_some()))
    });
}

#[test]
fn omega_replaces_crashed_leader() {
    let processes = processes(3, |p| Omega::new(p, 3));
    let mut cluster: Cluster<Omega> = Cluster::start(processes, &[Omega::<AllRules>::regions(3)], 1);
    let agreed = |c: &Cluster<Omega>, p: u8| c.running().all(|node| node.process().leader() == ProcessId(p));
    cluster.wait_until("p0 leads", |c| agreed(c, 0));
    cluster.nodes[0] = None;
    cluster.wait_until("another leads", |c| agreed(c, 1) || agreed(c, 2));
}

#[test]
fn memory_only_omega_replaces_crashed_leader() {
    let processes = processes(3, |p| MemoryOnlyOmega::new(p, 3));
    let regions = MemoryOnlyOmega::<AllRules, AllRules>::regions(3);
    let mut cluster: Cluster<MemoryOnlyOmega> = Cluster::start(processes, &[regions], 1);
    let agreed =
        |c: &Cluster<MemoryOnlyOmega>, p: u8| c.running().all(|node| node.process().leader() == ProcessId(p));
    let leads = |c: &Cluster<MemoryOnlyOmega>| (0..3).find(|&p| agreed(c, p));
    // Before its first reads, every process outputs p0 as leader. The test therefore waits until
    // each process has woken more than 20 times.
    let all_have_read = |c: &Cluster<MemoryOnlyOmega>| c.running().all(|node| node.process().attempts() > 20);
    cluster.wait_until("one leads", |c| all_have_read(c) && leads(c).is_some());
    let first = leads(&cluster).expect("one leads");
    cluster.nodes[usize::from(first)] = None;
    cluster.wait_until("another leads", |c| leads(c).is_some_and(|p| p != first));
}

#[test]
fn protected_memory_paxos_leader_decides() {
    let mut cluster = protected_memory_paxos(1);
    cluster.announce_leader(0);
    assert_eq!(cluster.wait_for_decision(), 10);
}

#[test]
fn protected_memory_paxos_decides_with_one_process_and_majority_of_memories() {
    let mut cluster = protected_memory_paxos(1);
    cluster.memories[1].crash();
    (cluster.nodes[0], cluster.nodes[2]) = (None, None);
    cluster.announce_leader(1);
    assert_eq!(cluster.wait_for_decision(), 11);
}

/// The memories' NICs refuse the WRITEs of a deposed leader. The deposed leader then decides its
/// successor's value.
#[test]
fn deposed_leader_is_refused_by_nic() {
    let mut cluster = protected_memory_paxos(1);
    // p1 takes the write permissions while p0 is not polled.
    let p0 = cluster.nodes[0].take();
    cluster.announce_leader(1);
    cluster
        .wait_until("p1 decides", |c| c.nodes[1].as_ref().is_some_and(|n| n.process().decision().is_some()));
    cluster.nodes[0] = p0;
    let p0 = cluster.nodes[0].as_mut().expect("p0");
    assert_eq!(p0.connection_count(MemoryId(0)), 1);
    // p0 begins with the write of its value, by a revoked key.
    p0.handle_input(Input::Leader(ProcessId(0)));
    assert_eq!(cluster.wait_for_decision(), 11);
    let reconnected_count = |c: &Cluster<ProtectedMemoryPaxos<u64>>| {
        let p0 = c.nodes[0].as_ref().expect("p0");
        (0..3).filter(|&m| p0.connection_count(MemoryId(m)) == 2).count()
    };
    // p1 needs only two memories to decide, so one memory may execute p0's WRITE before p1's
    // takeover.
    cluster
        .wait_until("p0 was refused by a majority, and has connected again", |c| reconnected_count(c) >= 2);
}

/// The link of the leader's rail 0 is down when the leader starts to write. Failover moves the
/// connections to the other rail, and no process connects again.
#[test]
fn leader_decides_after_rail_failure() {
    let mut cluster = protected_memory_paxos(2);
    cluster.nics[0][0].faults().fail(Failure::LinkDown);
    cluster.announce_leader(0);
    assert_eq!(cluster.wait_for_decision(), 10);
    let leader = cluster.nodes[0].as_ref().expect("p0");
    let failover_count = (0..3).filter(|&m| leader.last_failover(MemoryId(m)).is_some()).count();
    assert!(
        failover_count >= 2,
        "the leader decided, but only {failover_count} connections moved to the other rail"
    );
    assert_eq!((0..3).map(|m| leader.connection_count(MemoryId(m))).collect::<Vec<_>>(), [1; 3]);
}

#[test]
fn leader_decides_after_memory_nic_failure() {
    let mut cluster = protected_memory_paxos(2);
    cluster.memories[1].crash();
    cluster.memories[0].nics[0].faults().fail(Failure::NicDead);
    cluster.announce_leader(0);
    assert_eq!(cluster.wait_for_decision(), 10);
}

/// The number of broadcasts per process for which the memories have registers.
const ROUNDS: u16 = 8;
/// The number of polls after which a process of Cheap Quorum panics.
const PANIC_POLLS: u8 = 100;

#[test]
fn cheap_quorum_decides() {
    type Quorum = CheapQuorum<u64, Ed25519>;
    let keys = keys();
    let processes =
        processes(3, |p| Quorum::new(p, (3, 3), PANIC_POLLS, keys[usize::from(p.0)].clone(), value(p)));
    let mut cluster = Cluster::start(processes, &vec![Quorum::regions(3); 3], 1);
    assert_eq!(cluster.wait_for_decision(), 10);
}

type Fast = FastAndRobust<u64, Ed25519>;

fn fast_and_robust() -> Cluster<Fast> {
    let keys = keys();
    let processes =
        processes(3, |p| Fast::new(p, (3, 3), PANIC_POLLS, ROUNDS, keys[usize::from(p.0)].clone(), value(p)));
    Cluster::start(processes, &vec![Fast::regions(3, ROUNDS); 3], 1)
}

#[test]
fn fast_and_robust_decides_without_faults() {
    let mut cluster = fast_and_robust();
    assert_eq!(cluster.wait_for_decision(), 10);
}

/// The leader of Cheap Quorum does not start. The other processes panic and decide by the backup.
#[test]
fn fast_and_robust_decides_without_leader_and_one_memory() {
    let mut cluster = fast_and_robust();
    cluster.nodes[0] = None;
    cluster.memories[2].crash();
    cluster.announce_leader(1);
    assert!([10, 11, 12].contains(&cluster.wait_for_decision()));
}

#[test]
fn robust_backup_decides_without_one_process() {
    type Backup = RobustBackup<Paxos<u64>, Ed25519>;
    let keys = keys();
    let processes =
        processes(3, |p| Backup::new(p, (3, 3), ROUNDS, keys[usize::from(p.0)].clone(), value(p)));
    let mut cluster = Cluster::start(processes, &vec![Backup::regions(3, ROUNDS); 3], 1);
    cluster.nodes[2] = None;
    cluster.announce_leader(1);
    assert_eq!(cluster.wait_for_decision(), 11);
}
