//! The regions, queue pairs and protection domains that the NICs of a domain hold when a NIC has
//! failed, or when a vQP cannot be created.

use std::sync::Arc;

use mitra_failover::{BuildError, CompletionLogConfig, Config, Domain, LocalNic, Outcome, VirtualQp};
use mitra_sim::{Failure, Testbed};
use mitra_verbs::{Buffer, Data, Error, Provider, QpCap, QpInitAttr, QpType, RecvWr, SendOp, WcStatus};

use crate::vqp_pair::{FULL_ACCESS, MEMORY_BYTES, VqpPair, config};

/// Returns a testbed, and a domain with the NICs of its first host. `reset_capable` says whether
/// the NICs can be reset.
fn one_host(reset_capable: bool) -> (Testbed, Arc<Domain>) {
    let mut world = mitra_sim::Config::fault_free();
    world.capabilities.reset = reset_capable;
    let testbed = Testbed::with_config(1, world, 2);
    let nics = testbed.nics[0].iter().map(|n| Arc::clone(n) as Arc<dyn Provider>).collect();
    (testbed, Domain::new(nics).expect("the NICs have the resources of a domain"))
}

/// Deallocates the protection domain of a rail's NIC. Returns whether the NIC did so, which shows
/// that the protection domain was empty.
fn dealloc_pd(domain: &Domain, rail: usize) -> bool {
    let nic = &domain.nics()[rail];
    nic.provider.dealloc_pd(nic.pd).is_ok()
}

#[test]
fn dead_nic_does_not_block_deregistration_on_others() {
    let (mut testbed, domain) = one_host(false);
    let mr = domain
        .register(&Arc::new(Buffer::new(MEMORY_BYTES)), FULL_ACCESS)
        .expect("the NICs have a free region");
    let dead = testbed.nics[0][0].id();
    testbed.world.fail(dead, Failure::NicDead);
    assert!(matches!(domain.deregister(&mr), Err(Error::Unsupported(_))));
    assert!(dealloc_pd(&domain, 1), "the memory is still registered with the living NIC");
}

/// A vQP over the living NIC can use the memory. The new region has its own key.
#[test]
fn memory_is_registered_on_living_rails() {
    for dead in 0..2 {
        let mut pair = VqpPair::new(2, config());
        pair.poll_times(&[0, 1], 20);
        for h in 0..2 {
            let nic = pair.testbed.nics[h][dead].id();
            pair.testbed.world.fail(nic, Failure::NicDead);
        }
        pair.poll_times(&[0, 1], 1200);
        assert_eq!([pair.vqps[0].active_rail(), pair.vqps[1].active_rail()], [1 - dead; 2]);
        let memory = [0, 1].map(|_| Arc::new(Buffer::new(4096)));
        let domains = [0, 1].map(|h: usize| Arc::clone(pair.vqps[h].domain()));
        let mr =
            [0, 1].map(|h: usize| domains[h].register(&memory[h], FULL_ACCESS).expect("one NIC is alive"));
        assert_ne!(mr[0].primary().lkey, pair.mr[0].primary().lkey);
        pair.vqps[0].import(&mr[1].remote()).expect("the vQP is connected");
        memory[0].store(8, 4711);
        pair.send(0, 1, SendOp::Write(mr[1].remote().at(16)), Data::sge(mr[0].sge(8, 8)));
        pair.vqps[1].post_recv(RecvWr::new(7, mr[1].sge(64, 8))).expect("the receive queue has room");
        pair.send(0, 2, SendOp::Send, Data::inline(&4712u64.to_ne_bytes()));
        pair.poll_times(&[0, 1], 100);
        assert_eq!(pair.outcome(0, 1, false), Some(Outcome::Success));
        assert_eq!((memory[1].load(16), memory[1].load(64)), (4711, 4712));
        domains[1].deregister(&mr[1]).expect("the NICs confirm");
        pair.send(0, 3, SendOp::Write(mr[1].remote().at(16)), Data::sge(mr[0].sge(8, 8)));
        pair.poll_times(&[0, 1], 100);
        assert_eq!(pair.outcome(0, 3, false), Some(Outcome::Failed(WcStatus::RemoteAccess)));
        let last = pair.testbed.nics[0][1 - dead].id();
        pair.testbed.world.fail(last, Failure::NicDead);
        assert_eq!(domains[0].register(&memory[0], FULL_ACCESS).err(), Some(Error::DeviceFatal));
    }
}

/// The NIC that lives may assign a key that the dead NIC had assigned before.
#[test]
fn region_keys_are_unique_after_nic_failure() {
    let (mut testbed, domain) = one_host(true);
    let memory = Arc::new(Buffer::new(64));
    let dead = testbed.nics[0][0].id();
    let before: Vec<_> = (0..64)
        .map(|_| domain.register(&memory, FULL_ACCESS).expect("the NICs have a free region"))
        .collect();
    testbed.world.fail(dead, Failure::NicDead);
    let after: Vec<_> = (0..64)
        .map(|_| domain.register(&memory, FULL_ACCESS).expect("the NICs have a free region"))
        .collect();
    let mut keys: Vec<_> = before.iter().chain(&after).map(|mr| mr.primary().lkey).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 128);
}

#[test]
fn vqp_is_made_on_live_nics_and_leaves_no_queue_pairs() {
    let (mut testbed, domain) = one_host(true);
    let [first, second] = [0, 1].map(|rail| testbed.nics[0][rail].id());
    testbed.world.fail(second, Failure::NicDead);
    let mut vqp = VirtualQp::builder(&domain).config(config()).build().expect("a rail is left");
    vqp.close().expect("the error of a dead NIC does not count");
    assert!(dealloc_pd(&domain, 0), "queue pairs remain on the first rail");
    testbed.world.fail(first, Failure::NicDead);
    assert_eq!(
        VirtualQp::builder(&domain).config(config()).build().err(),
        Some(BuildError::Nic(Error::DeviceFatal))
    );
}

/// A NIC that was dead when the vQP was made has executed nothing. This fact is enough evidence: an
/// operation that was posted before the first move is executed once on another rail.
#[test]
fn operations_posted_before_the_move_from_a_dead_nic_are_executed_once() {
    for log in [false, true] {
        for failed in [&[(1, 0)][..], &[(0, 0)], &[(0, 0), (1, 0)], &[(1, 0), (0, 1)]] {
            let testbed = Testbed::with_config(1, mitra_sim::Config::fault_free(), 3);
            let config = Config { completion_log: log.then(CompletionLogConfig::default), ..config() };
            let mut pair = VqpPair::after_failures(testbed, config, failed);
            let (remote, value) = (pair.remote(1, 8), pair.mr[0].sge(16, 8));
            pair.send_write(1, 0, 7);
            pair.send(0, 2, SendOp::FetchAdd { remote, add: 1 }, Data::sge(value));
            pair.poll_times(&[0, 1], 2000);
            let outcomes = [1, 2].map(|id| pair.outcome(0, id, false));
            assert_eq!(outcomes, [Some(Outcome::Success); 2], "log {log}, failed {failed:?}");
            assert_eq!((pair.memory[1].load(0), pair.memory[1].load(8)), (7, 1));
        }
    }
}

/// The ends may have send queues of different depth. `connect` fails if a completion log has less
/// room than the peer's send queue needs.
#[test]
fn completion_log_must_fit_peer_send_queue() {
    let (_testbed, domain) = one_host(true);
    let end = |send_wrs, entries| {
        let log = CompletionLogConfig { entries, ..CompletionLogConfig::default() };
        let config = Config { completion_log: Some(log), send_wrs, ..config() };
        VirtualQp::builder(&domain).config(config).build().expect("the NICs have the resources of a vQP")
    };
    let info = |vqp: &VirtualQp| vqp.local_info();
    let (mut deep, shallow, other) = (end(64, None), end(8, None), end(8, Some(64)));
    assert!(
        matches!(deep.connect(&info(&shallow)), Err(Error::Invalid(why)) if why.contains("completion_log.entries"))
    );
    deep.connect(&info(&other)).expect("the log fits the peer's send queue");
}

/// The NIC has one free queue pair. It suffices for the data of a rail, but not also for its
/// control messages.
#[test]
fn partially_created_rail_is_removed() {
    let (_testbed, domain) = one_host(true);
    let LocalNic { provider, pd, .. } = &domain.nics()[0];
    let cq = provider.create_cq(1, None).expect("a free completion queue");
    let cap = QpCap { send_wrs: 1, recv_wrs: 1, ..QpCap::default() };
    let (qp_type, pd) = (QpType::Rc, *pd);
    let init = QpInitAttr { qp_type, pd, send_cq: cq, recv_cq: cq, srq: None, cap, sq_sig_all: false };
    let mut all: Vec<_> = core::iter::from_fn(|| provider.create_qp(&init).ok()).collect();
    provider.destroy_qp(all.pop().expect("the NIC has free queue pairs")).expect("the queue pair exists");
    assert!(VirtualQp::builder(&domain).config(config()).build().is_err());
    provider.create_qp(&init).expect("the rail's data queue pair was not destroyed");
}
