//! The mode `durable`, between NICs that acknowledge data before they place it.

use mitra_failover::{BackedQp, CompletionLogConfig, Config, Outcome};
use mitra_sim::workload::FailureCase;
use mitra_sim::{Testbed, seeds_of_cases};
use mitra_verbs::{Data, SendOp, SendWr};

use super::pair::BackedPair;
use super::promises::run_case;
use super::run::{config, connect_backups};

fn logged(durable: bool) -> Config {
    let log = CompletionLogConfig { durable, ..CompletionLogConfig::default() };
    Config { completion_log: Some(log), ..config() }
}

fn durable() -> Config {
    logged(true)
}

fn pair(ack_after_placement: bool) -> BackedPair {
    let mut world = mitra_sim::Config::fault_free();
    world.capabilities.ack_after_placement = ack_after_placement;
    let testbed = Testbed::with_config(1, world, 2);
    BackedPair::with(testbed, durable(), 2, |backup, _| backup.queue_pair(durable()))
}

fn ready_pair(ack_after_placement: bool) -> BackedPair {
    let mut pair = pair(ack_after_placement);
    pair.poll(&[0, 1], 400);
    assert!(pair.qps.iter().flatten().all(BackedQp::has_rail));
    pair.memory[1].store(8 * 8, 3);
    pair
}

fn post_all(pair: &mut BackedPair) {
    pair.recv(0, 30);
    pair.write(0, 7, 7);
    let remote = pair.mr[1].remote();
    let [read, add] = [0, 8].map(|offset| Data::sge(pair.mr[0].sge(offset, 8)));
    let add = SendWr::new(9, SendOp::FetchAdd { remote: remote.at(56), add: 5 }, add);
    for wr in [SendWr::new(8, SendOp::Read(remote.at(64)), read), add] {
        pair.qps[0][0].post_send(wr).expect("room");
    }
    pair.send(0, 10);
}

const ALL: [(u64, Outcome); 4] =
    [(7, Outcome::Success), (8, Outcome::Success), (9, Outcome::Success), (10, Outcome::Success)];

/// Nothing completes before the peer's processor has run. If the NIC acknowledges only what is in
/// memory, the processor need not run.
#[test]
fn operations_complete_when_the_peer_has_seen_them() {
    for acks_after_placement in [false, true] {
        let mut pair = ready_pair(acks_after_placement);
        post_all(&mut pair);
        pair.poll(&[0], 100);
        let expected = if acks_after_placement { &ALL[..] } else { &[] };
        assert_eq!((&pair.outcomes(0, 0)[..], pair.word(7)), (expected, 12));
        pair.poll(&[0, 1], 100);
        assert_eq!(pair.outcomes(0, 0), ALL);
        assert_eq!((pair.memory[0].load(0), pair.memory[0].load(8)), (3, 7));
    }
}

/// Operations wait until the peer has seen them. If the rail fails meanwhile, the evidence decides
/// these operations, and they return the values that the old rail delivered. The next epoch begins
/// a new count.
#[test]
fn failover_decides_operations_that_wait() {
    let mut pair = ready_pair(false);
    post_all(&mut pair);
    pair.poll(&[0], 100);
    assert_eq!(pair.outcomes(0, 0), []);
    let nic = pair.testbed.nics[0][0].id();
    pair.testbed.world.set_link(nic, false);
    pair.poll(&[0, 1], 2000);
    assert_eq!(pair.outcomes(0, 0), ALL);
    assert_eq!((pair.memory[0].load(0), pair.memory[0].load(8), pair.word(7)), (3, 7, 12));
    assert!(pair.qps.iter().flatten().all(BackedQp::has_rail));
    pair.completions[0][0].clear();
    post_all(&mut pair);
    pair.poll(&[0], 100);
    assert_eq!(pair.outcomes(0, 0), []);
    pair.poll(&[0, 1], 100);
    assert_eq!(pair.outcomes(0, 0), ALL);
}

/// A NIC acknowledges data and dies before it has placed the data. Each completed operation is in
/// memory, so the evidence decides all operations, and the queue pairs and the backup survive.
#[test]
fn loss_of_acknowledged_data_is_survived() {
    let cases: Vec<_> = FailureCase::all().into_iter().filter(FailureCase::requires_early_ack).collect();
    let mut lost_without = 0;
    for seed in seeds_of_cases(cases.len(), 2) {
        let case = cases[(seed % cases.len() as u64) as usize];
        let mut world = mitra_sim::Config::swarm(seed);
        world.capabilities.ack_after_placement = false;
        let (plain, _) = run_case(seed, case, logged(false), world.clone());
        lost_without += u32::from(plain.close_reasons[0] != [None, None]);
        let (out, _) = run_case(seed, case, durable(), world);
        out.assert_exact(seed, &case.to_string());
        let ended = (out.close_reasons[0], out.contradictions[0]);
        assert_eq!(ended, ([None; 2], [None; 2]), "seed {seed}, {case}");
    }
    println!("ended without the mode: {lost_without}");
    assert!(lost_without > 0);
}

/// Behind a NIC that acknowledges early, a refused operation on the backup proves nothing about
/// memory.
#[test]
fn refused_operation_on_the_backup_costs_no_other() {
    let mut pair = pair(false);
    pair.write(0, 1, 1);
    pair.write(1, 2, 1);
    pair.poll(&[0], 200);
    assert_eq!(pair.outcomes(0, 1), [(1, Outcome::Success)]);
    pair.qps[1][0].shutdown();
    pair.write(1, 2, 2);
    pair.write(0, 1, 2);
    pair.write(1, 2, 3);
    pair.poll(&[0], 800);
    assert_eq!(pair.outcomes(0, 1), [1, 2, 3].map(|id| (id, Outcome::Success)));
    assert_eq!((pair.word(1), pair.word(2), pair.backups[0].close_reason()), (1, 3, None));
    assert_ne!(pair.outcomes(0, 0).get(1), Some(&(2, Outcome::Success)));
}

#[test]
fn durable_queue_pair_needs_a_durable_backup_and_peer() {
    let testbed = Testbed::with_config(1, mitra_sim::Config::fault_free(), 2);
    let backups = connect_backups(&testbed, logged(false), 1);
    let refused = backups[0].queue_pair(durable()).expect_err("the backup is not durable");
    assert!(refused.to_string().contains("durable shared backup"), "{refused}");
    let backups = connect_backups(&testbed, durable(), 2);
    let mut one = backups[0].queue_pair(durable()).expect("the backup is durable");
    let other = backups[1].queue_pair(logged(false)).expect("the backup has a log");
    let refused = one.connect(&other.local_info()).expect_err("the ends differ");
    assert!(refused.to_string().contains("is durable and the other is not"), "{refused}");
}
