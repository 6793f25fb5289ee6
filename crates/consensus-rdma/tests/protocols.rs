//! The protocols over NICs: the state machines that the models check, driven by what users run.

mod common;

use common::{Cluster, keys};
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

fn of<P>(n: u8, each: impl Fn(ProcessId) -> P) -> Vec<P> {
    (0..n).map(ProcessId).map(each).collect()
}

fn value(p: ProcessId) -> u64 {
    10 + u64::from(p.0)
}

fn protected_memory_paxos(rails: usize) -> Cluster<ProtectedMemoryPaxos<u64>> {
    let processes = of(3, |p| ProtectedMemoryPaxos::new(p, 3, 3, value(p)));
    Cluster::start(processes, &vec![ProtectedMemoryPaxos::<u64>::regions(3); 3], rails)
}

#[test]
fn paxos() {
    let mut cluster = Cluster::start(of(3, |p| Paxos::<u64>::new(p, 3, value(p))), &[], 1);
    cluster.lead(1);
    assert_eq!(cluster.decided(), 11);
}

#[test]
fn fast_paxos() {
    let quorums = Quorums::new(4, 1, 1).expect("quorums");
    let processes = of(4, |p| FastPaxos::<u64>::new(p, quorums, (p.0 == 2).then_some(7)));
    let mut cluster = Cluster::start(processes, &[], 1);
    assert_eq!(cluster.decided(), 7);
}

#[test]
fn disk_paxos() {
    let processes = of(2, |p| DiskPaxos::<u64>::new(p, 2, 3, value(p)));
    let mut cluster = Cluster::start(processes, &vec![DiskPaxos::<u64>::regions(2); 3], 1);
    cluster.lead(1);
    assert_eq!(cluster.decided(), 11);
}

#[test]
fn aligned_paxos_without_one_process_and_one_memory() {
    let processes = of(3, |p| AlignedPaxos::<u64>::new(p, 3, 2, value(p)));
    let mut cluster = Cluster::start(processes, &vec![AlignedPaxos::<u64>::regions(3); 2], 1);
    cluster.nodes[2] = None;
    cluster.memories[1].crash();
    cluster.lead(1);
    assert_eq!(cluster.decided(), 11);
}

#[test]
fn hbo() {
    let neighbours = ProcessSet::first(3);
    let regions: Vec<_> = (0..3).map(|p| Hbo::<AllRules>::regions(ProcessId(p), neighbours)).collect();
    let processes = of(3, |p| Hbo::new(p, 3, neighbours.without(p), p.0 == 1));
    let mut cluster: Cluster<Hbo> = Cluster::start(processes, &regions, 1);
    cluster.decided();
}

#[test]
fn omega() {
    let processes = of(3, |p| Omega::new(p, 3));
    let mut cluster: Cluster<Omega> = Cluster::start(processes, &[Omega::<AllRules>::regions(3)], 1);
    let agreed = |c: &Cluster<Omega>, p: u8| c.living().all(|node| node.process().leader() == ProcessId(p));
    cluster.until("p0 leads", |c| agreed(c, 0));
    cluster.nodes[0] = None;
    cluster.until("another leads", |c| agreed(c, 1) || agreed(c, 2));
}

#[test]
fn memory_only_omega() {
    let processes = of(3, |p| MemoryOnlyOmega::new(p, 3));
    let regions = MemoryOnlyOmega::<AllRules, AllRules>::regions(3);
    let mut cluster: Cluster<MemoryOnlyOmega> = Cluster::start(processes, &[regions], 1);
    let agreed =
        |c: &Cluster<MemoryOnlyOmega>, p: u8| c.living().all(|node| node.process().leader() == ProcessId(p));
    let leads = |c: &Cluster<MemoryOnlyOmega>| (0..3).find(|&p| agreed(c, p));
    // At first all name p0, and have read nothing yet.
    let awake = |c: &Cluster<MemoryOnlyOmega>| c.living().all(|node| node.process().attempts() > 20);
    cluster.until("one leads", |c| awake(c) && leads(c).is_some());
    let first = leads(&cluster).expect("one leads");
    cluster.nodes[usize::from(first)] = None;
    cluster.until("another leads", |c| leads(c).is_some_and(|p| p != first));
}

#[test]
fn the_first_leader_decides_and_a_later_one_finds_it() {
    let mut cluster = protected_memory_paxos(1);
    cluster.lead(0);
    assert_eq!(cluster.decided(), 10);
}

#[test]
fn all_but_one_process_and_a_minority_of_memories_crash() {
    let mut cluster = protected_memory_paxos(1);
    cluster.memories[1].crash();
    (cluster.nodes[0], cluster.nodes[2]) = (None, None);
    cluster.lead(1);
    assert_eq!(cluster.decided(), 11);
}

/// What was taken from a leader its NIC is refused by the memory's, and it decides what the next one did.
#[test]
fn a_leader_that_was_deposed_is_refused_by_the_nic() {
    let mut cluster = protected_memory_paxos(1);
    // p1 takes everything while p0 is not heard.
    let p0 = cluster.nodes[0].take();
    cluster.lead(1);
    cluster.until("p1 decides", |c| c.nodes[1].as_ref().is_some_and(|n| n.process().decision().is_some()));
    cluster.nodes[0] = p0;
    let p0 = cluster.nodes[0].as_mut().expect("p0");
    assert_eq!(p0.connection_count(MemoryId(0)), 1);
    // It goes without phase 1, and with a key that is gone.
    p0.handle_input(Input::Leader(ProcessId(0)));
    assert_eq!(cluster.decided(), 11);
    let refused = |c: &Cluster<ProtectedMemoryPaxos<u64>>| {
        let p0 = c.nodes[0].as_ref().expect("p0");
        (0..3).filter(|&m| p0.connection_count(MemoryId(m)) == 2).count()
    };
    // The third memory may have taken p0's write before p1 came to it.
    cluster.until("p0 was refused by a majority, and has connected again", |c| refused(c) >= 2);
}

/// A rail is unplugged under the leader while it writes: the protocol does not notice.
#[test]
fn a_rail_dies_under_the_leader() {
    let mut cluster = protected_memory_paxos(2);
    cluster.nics[0][0].faults().fail(Failure::LinkDown);
    cluster.lead(0);
    assert_eq!(cluster.decided(), 10);
    let leader = cluster.nodes[0].as_ref().expect("p0");
    let moved = (0..3).filter(|&m| leader.last_failover(MemoryId(m)).is_some()).count();
    assert!(moved >= 2, "it wrote to a majority over the other rail, but moved on {moved} only");
    assert_eq!((0..3).map(|m| leader.connection_count(MemoryId(m))).collect::<Vec<_>>(), [1; 3]);
}

/// The same under a memory whose NIC dies.
#[test]
fn a_nic_dies_under_a_memory() {
    let mut cluster = protected_memory_paxos(2);
    cluster.memories[1].crash();
    cluster.memories[0].nics[0].faults().fail(Failure::NicDead);
    cluster.lead(0);
    assert_eq!(cluster.decided(), 10);
}

/// Turns for which the memories have room.
const TURNS: u16 = 8;
/// Polls before a process panics.
const PATIENCE: u8 = 100;

#[test]
fn cheap_quorum() {
    type Quorum = CheapQuorum<u64, Ed25519>;
    let keys = keys();
    let processes = of(3, |p| Quorum::new(p, (3, 3), PATIENCE, keys[usize::from(p.0)].clone(), value(p)));
    let mut cluster = Cluster::start(processes, &vec![Quorum::regions(3); 3], 1);
    assert_eq!(cluster.decided(), 10);
}

type Fast = FastAndRobust<u64, Ed25519>;

fn fast_and_robust() -> Cluster<Fast> {
    let keys = keys();
    let processes =
        of(3, |p| Fast::new(p, (3, 3), PATIENCE, TURNS, keys[usize::from(p.0)].clone(), value(p)));
    Cluster::start(processes, &vec![Fast::regions(3, TURNS); 3], 1)
}

#[test]
fn fast_and_robust_where_all_is_well() {
    let mut cluster = fast_and_robust();
    assert_eq!(cluster.decided(), 10);
}

/// The leader of Cheap Quorum says nothing: the others panic, and decide by the backup.
#[test]
fn fast_and_robust_without_its_leader_and_a_memory() {
    let mut cluster = fast_and_robust();
    cluster.nodes[0] = None;
    cluster.memories[2].crash();
    cluster.lead(1);
    assert!([10, 11, 12].contains(&cluster.decided()));
}

#[test]
fn robust_backup() {
    type Backup = RobustBackup<Paxos<u64>, Ed25519>;
    let keys = keys();
    let processes = of(3, |p| Backup::new(p, (3, 3), TURNS, keys[usize::from(p.0)].clone(), value(p)));
    let mut cluster = Cluster::start(processes, &vec![Backup::regions(3, TURNS); 3], 1);
    cluster.nodes[2] = None;
    cluster.lead(1);
    assert_eq!(cluster.decided(), 11);
}
