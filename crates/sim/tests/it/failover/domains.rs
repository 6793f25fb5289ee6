//! Domains that share NICs, and domains and vQPs that are made when a NIC is dead.

use std::sync::Arc;

use crate::vqp_pair::{FULL_ACCESS, VqpPair, config};
use mitra_failover::{Domain, Outcome, Secret, VirtualQp};
use mitra_sim::Testbed;
use mitra_transport::fault::Failure;
use mitra_verbs::{Access, Buffer, Data, Error, Key, Provider, SendOp, SendWr, Sge, WcStatus};

/// The number of rounds of polling in which a failover ends.
const FAILOVER: usize = 4000;

fn domain(testbed: &Testbed, host: usize) -> Arc<Domain> {
    let nics = testbed.nics[host].iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
    Domain::new(nics).expect("the NICs have room")
}

fn vqp(domain: &Arc<Domain>, n: u64) -> VirtualQp {
    let secret = Secret::fixed([n, n]);
    VirtualQp::builder(domain).config(config()).secret(secret).build().expect("the NICs have room")
}

fn kill(testbed: &mut Testbed, host: usize, rail: usize) {
    let nic = testbed.nics[host][rail].id();
    testbed.world.fail(nic, Failure::NicDead);
}

/// One domain consumes the event of a link, and the vQPs of the other domain move too.
#[test]
fn link_event_reaches_all_domains_of_nics() {
    let mut testbed = Testbed::with_config(1, mitra_sim::Config::fault_free(), 2);
    let first = [0, 1].map(|host| domain(&testbed, host));
    let second = first.each_ref().map(|domain| domain.with_own_pds().expect("the NICs have room"));
    let mut vqps: Vec<_> = first.iter().chain(&second).zip(1..).map(|(domain, n)| vqp(domain, n)).collect();
    let infos: Vec<_> = vqps.iter().map(|vqp| vqp.local_info()).collect();
    for (i, peer) in [1, 0, 3, 2].into_iter().enumerate() {
        vqps[i].connect(&infos[peer]).expect("the ends match");
    }
    let run = |testbed: &mut Testbed, vqps: &mut [VirtualQp], rounds| {
        for _ in 0..rounds {
            for vqp in vqps.iter_mut() {
                vqp.poll(&mut Vec::new());
            }
            testbed.world.run_for(core::time::Duration::from_micros(25));
        }
    };
    run(&mut testbed, &mut vqps, 10);
    let link = testbed.nics[0][0].id();
    testbed.world.set_link(link, false);
    run(&mut testbed, &mut vqps, FAILOVER);
    assert_eq!(vqps.iter().map(VirtualQp::active_rail).collect::<Vec<_>>(), [1; 4]);
}

#[test]
fn domain_of_its_own_is_made_while_a_nic_is_dead() {
    let mut testbed = Testbed::with_config(1, mitra_sim::Config::fault_free(), 2);
    let domain = domain(&testbed, 0);
    kill(&mut testbed, 0, 0);
    let own = domain.with_own_pds().expect("one NIC is alive");
    let memory = Arc::new(Buffer::new(64));
    assert_eq!(own.register(&memory, FULL_ACCESS).expect("one NIC is alive").len(), 64);
    kill(&mut testbed, 0, 1);
    assert_eq!(domain.with_own_pds().err(), Some(Error::DeviceFatal));
}

#[test]
fn vqp_is_connected_over_nics_that_are_alive() {
    let mut testbed = Testbed::with_config(1, mitra_sim::Config::fault_free(), 2);
    let mut ends = [0, 1].map(|host| vqp(&domain(&testbed, host), host as u64 + 1));
    let infos = ends.each_ref().map(|end| end.local_info());
    kill(&mut testbed, 0, 0);
    ends[0].connect(&infos[1]).expect("rail 1 is alive");
    kill(&mut testbed, 1, 0);
    kill(&mut testbed, 1, 1);
    assert_eq!(ends[1].connect(&infos[0]), Err(Error::DeviceFatal));
}

/// The key that a region has on rail 1 is not a key of the application, so the key names no memory
/// on rail 1 either.
#[test]
fn key_of_another_rail_names_no_memory() {
    let mut pair = VqpPair::new(2, config());
    pair.poll_times(&[0, 1], 5);
    pair.link_down(0, 0);
    pair.poll_times(&[0, 1], FAILOVER);
    assert_eq!(pair.vqps[0].active_rail(), 1);
    // The encoding of a region ends with the key on the last rail. Local and remote keys are the
    // same on these NICs.
    let encoded = pair.mr[0].remote().encode();
    let key = Key(u32::from_le_bytes(*encoded.last_chunk().expect("the encoding has a key")));
    assert_ne!(key, pair.mr[0].primary().lkey);
    pair.send(0, 1, SendOp::Write(pair.remote(1, 0)), Data::sge(Sge { key, ..pair.mr[0].sge(0, 8) }));
    pair.poll_times(&[0, 1], 400);
    assert_eq!(pair.outcome(0, 1, false), Some(Outcome::Failed(WcStatus::LocalProtection)));
}

/// A hung NIC still executes the peer's requests.
#[test]
fn hung_nic_does_not_access_memory_before_reregistration() {
    let mut pair = VqpPair::new(2, config());
    pair.poll_times(&[0, 1], 5);
    let nic = pair.testbed.nics[1][0].id();
    pair.testbed.world.fail(nic, Failure::NicHung);
    let (domain, memory) =
        (Arc::clone(pair.vqps[1].domain()), Arc::new(Buffer::new(crate::vqp_pair::MEMORY_BYTES)));
    let changed = domain.reregister(&pair.mr[1], &domain, &memory, FULL_ACCESS).expect("rail 1 is alive");
    assert_eq!(changed.primary().rkey, pair.mr[1].primary().rkey);
    pair.vqps[0].import(&changed.remote()).expect("the vQP is connected");
    let write = SendWr::new(1, SendOp::Write(changed.remote().at(0)), Data::inline(&[7; 8]));
    pair.vqps[0].post_send(write).expect("the queue has room");
    pair.poll_times(&[0], 400);
    assert_eq!(pair.memory[1].load(0), 0);
    // The reset has destroyed the evidence, so the first WRITE is not repeated.
    pair.poll_times(&[0, 1], FAILOVER);
    pair.vqps[0].resume();
    let write = SendWr::new(2, SendOp::Write(changed.remote().at(8)), Data::inline(&[7; 8]));
    pair.vqps[0].post_send(write).expect("the queue has room");
    pair.poll_times(&[0, 1], 400);
    assert_eq!(pair.outcome(0, 2, false), Some(Outcome::Success));
    assert_eq!((pair.memory[1].load(8), memory.load(8)), (0, u64::from_ne_bytes([7; 8])));
}

#[test]
fn moved_region_belongs_to_the_other_domain() {
    let mut pair = VqpPair::new(2, config());
    let other = pair.vqps[0].domain().with_own_pds().expect("the NICs have room");
    let first = Arc::clone(pair.vqps[0].domain());
    let memory = Arc::clone(&pair.memory[0]);
    let moved =
        first.reregister(&pair.mr[0], &other, &memory, Access::LOCAL_WRITE).expect("the NICs are alive");
    assert_eq!(moved.primary().lkey, pair.mr[0].primary().lkey);
    assert!(!first.scatter(&[moved.sge(0, 8)], &[1; 8]) && other.scatter(&[moved.sge(0, 8)], &[2; 8]));
    assert!(matches!(
        first.reregister(&moved, &first, &memory, FULL_ACCESS),
        Err(Error::NoSuchObject { .. })
    ));
    pair.send(0, 1, SendOp::Write(pair.remote(1, 0)), Data::sge(pair.mr[0].sge(0, 8)));
    pair.poll_times(&[0, 1], 400);
    assert_eq!(pair.outcome(0, 1, false), Some(Outcome::Failed(WcStatus::LocalProtection)));
}

/// The NIC refuses the second of two reregistrations, and the first is undone.
#[test]
fn refused_reregistration_changes_no_nic() {
    for failovers in 0..2 {
        let mut pair = VqpPair::new(2, config());
        pair.poll_times(&[0, 1], 5);
        let domain = Arc::clone(pair.vqps[1].domain());
        let to = domain.with_own_pds().expect("the NICs have room");
        to.nics()[1].provider.dealloc_pd(to.nics()[1].pd).expect("the protection domain is empty");
        let memory = Arc::new(Buffer::new(crate::vqp_pair::MEMORY_BYTES));
        let refused = domain.reregister(&pair.mr[1], &to, &memory, Access::LOCAL_WRITE);
        assert!(matches!(refused, Err(Error::NoSuchObject { .. })), "{refused:?}");
        for rail in 0..failovers {
            pair.link_down(0, rail);
            pair.poll_times(&[0, 1], FAILOVER);
        }
        pair.send_write(1, 0, 9);
        pair.poll_times(&[0, 1], 400);
        assert_eq!((pair.outcome(0, 1, false), pair.memory[1].load(0)), (Some(Outcome::Success), 9));
        assert!(domain.scatter(&[pair.mr[1].sge(0, 8)], &[1; 8]));
    }
}

#[test]
fn reregistered_region_has_address_of_new_memory() {
    let mut pair = VqpPair::new(2, config());
    pair.poll_times(&[0, 1], 5);
    let (domain, memory) = (Arc::clone(pair.vqps[0].domain()), Arc::new(Buffer::new(64)));
    memory.store(0, 5);
    let changed = domain.reregister(&pair.mr[0], &domain, &memory, FULL_ACCESS).expect("the NICs are alive");
    assert_eq!((changed.len(), changed.primary().lkey), (64, pair.mr[0].primary().lkey));
    pair.send(0, 1, SendOp::Write(pair.remote(1, 0)), Data::sge(changed.sge(0, 8)));
    pair.poll_times(&[0, 1], 400);
    assert_eq!((pair.outcome(0, 1, false), pair.memory[1].load(0)), (Some(Outcome::Success), 5));
}
