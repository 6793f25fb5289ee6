//! Several clients use one word of a server by atomics, each over a vQP of its own. The NICs'
//! atomics are atomic per NIC only, so all vQPs must be on one rail at a time
//! ([`Domain::share_atomics`]).
//!
//! [`Domain::share_atomics`]: mitra_failover::Domain::share_atomics

use core::time::Duration;
use std::sync::Arc;

use mitra_failover::{Failback, Policy};
use mitra_sim::{DurationRange, Failure, Prng, fault_times, reproduce_command, seeds};
use mitra_verbs::{Access, AtomicScope, Buffer, Data, Error, SendOp, SendWr};

use crate::shared_word::{Setup, Shape};
use mitra_sim::workload::shared_word::{PEER_TIMEOUT, Pace, domain, time_below, vqp};

const CLIENTS: usize = 3;
/// The number of successful increments that each client makes.
const INCREMENTS: u64 = 100;
/// How long both ends must have been able to use a preferred rail.
const FAILBACK_DELAY: Duration = Duration::from_millis(2);

fn world_of(seed: u64) -> mitra_sim::Config {
    let mut config = mitra_sim::Config::swarm(seed);
    config.link.switched = true; // the rails of the clients fail one by one
    config.memory.atomic_delay = DurationRange::nanos(100, 3_000);
    assert_eq!(config.capabilities.atomic_scope, AtomicScope::Nic);
    config
}

/// Draws failures of single links, each healed later, and naps of clients.
fn add_faults(setup: &mut Setup, rng: &mut Prng, rails: usize) {
    let mut at = Duration::ZERO;
    for _ in 0..rng.between(1, 5) {
        at += time_below(rng, 15, 22);
        let (host, rail) = (rng.index(CLIENTS + 1), rng.index(rails));
        let nic = setup.nics[host][rail].id();
        let up = at + time_below(rng, 15, 25);
        setup.world.after(at, move |w| w.set_link(nic, false));
        setup.world.after(up, move |w| w.set_link(nic, true));
        if rng.below(4) == 0 {
            let (host, begin) = (setup.hosts[1 + rng.index(CLIENTS)], at);
            let nap = time_below(rng, 18, 27);
            setup.world.after(begin, move |w| {
                let until = w.now() + nap;
                w.pause(host, Some(until));
            });
        }
    }
}

/// Runs the clients through random failures of links. Returns the setup at the end, and whether the
/// counts are right.
fn run_random(seed: u64, shares: bool, preferred: Option<u8>) -> (Setup, Result<(), String>) {
    run_random_in(seed, world_of(seed), shares, preferred)
}

fn run_random_in(
    seed: u64,
    world: mitra_sim::Config,
    shares: bool,
    preferred: Option<u8>,
) -> (Setup, Result<(), String>) {
    let rng = &mut Prng::stream(seed, "setup");
    let rails = rng.between(2, 3) as u8;
    let mut setup = Setup::new(seed, rails, world, shares);
    setup.config.failback = preferred.map(|rail| Failback { rail, delay: FAILBACK_DELAY });
    for n in 0..CLIENTS as u64 {
        setup.add_client((seed + n).is_multiple_of(3), INCREMENTS);
    }
    add_faults(&mut setup, rng, rails.into());
    if !setup.run(Duration::from_millis(200)) {
        setup.world.heal();
        let done = setup.run(Duration::from_secs(30));
        assert!(
            done,
            "seed {seed}: work is not done, rails {:?}\n{}",
            setup.rails(),
            reproduce_command(seed)
        );
    }
    let checked = setup.check();
    (setup, checked)
}

#[test]
fn clients_lose_no_update_through_link_failures() {
    let mut moved = 0;
    for seed in seeds(1_000) {
        let (mut setup, checked) = run_random(seed, true, None);
        checked.unwrap_or_else(|error| panic!("seed {seed}: {error}\n{}", reproduce_command(seed)));
        assert_eq!(setup.close_reasons(), [None; CLIENTS], "seed {seed}\n{}", reproduce_command(seed));
        let found: usize = setup.clients.iter().map(|client| client.borrow().found.len()).sum();
        assert_eq!(found as u64, CLIENTS as u64 * INCREMENTS, "seed {seed}: all atomics were decided");
        setup.world.heal();
        let together = setup.run_until_together();
        assert!(together, "seed {seed}: rails {:?}\n{}", setup.rails(), reproduce_command(seed));
        moved += u32::from(setup.rails()[0][0] != 0);
    }
    println!("the home moved in the end: {moved}");
    assert!(moved > 0);
}

/// With a preferred rail, the home also moves while its rail works.
#[test]
fn clients_that_prefer_a_rail_lose_no_update() {
    let mut returned = 0;
    for seed in seeds(200) {
        let (mut setup, checked) = run_random(seed, true, Some(seed as u8 % 2));
        checked.unwrap_or_else(|error| panic!("seed {seed}: {error}\n{}", reproduce_command(seed)));
        assert_eq!(setup.close_reasons(), [None; CLIENTS], "seed {seed}\n{}", reproduce_command(seed));
        let found: usize = setup.clients.iter().map(|client| client.borrow().found.len()).sum();
        assert_eq!(found as u64, CLIENTS as u64 * INCREMENTS, "seed {seed}: all atomics were decided");
        setup.world.heal();
        setup.world.run_for(PEER_TIMEOUT);
        let together = setup.run_until_together();
        assert!(together, "seed {seed}: rails {:?}\n{}", setup.rails(), reproduce_command(seed));
        returned += u32::from(setup.rails()[0][0] == seed as usize % 2);
    }
    println!("the home is the preferred rail in the end: {returned}");
    assert!(returned > 0);
}

/// A NIC may execute an atomic after the change to ERR has returned, while its NIC's successor as
/// the home executes others.
#[test]
fn clients_lose_no_update_to_a_nic_that_executes_after_err() {
    let mut moved = 0;
    for seed in seeds(300) {
        let mut world = world_of(seed);
        world.nic.error_flush_delay = DurationRange::nanos(0, 200_000);
        let (setup, checked) = run_random_in(seed, world, true, None);
        checked.unwrap_or_else(|error| panic!("seed {seed}: {error}\n{}", reproduce_command(seed)));
        assert_eq!(setup.close_reasons(), [None; CLIENTS], "seed {seed}\n{}", reproduce_command(seed));
        moved += u32::from(setup.highest_epoch() > 0);
    }
    println!("{moved} runs moved the home");
    assert!(moved > 0);
}

/// The workload of the other tests, without the rule that all vQPs are on one rail.
#[test]
fn without_sharing_clients_lose_updates() {
    let losing: Vec<String> = seeds(400).filter_map(|seed| run_random(seed, false, None).1.err()).collect();
    println!("{} seeds lose updates: {losing:?}", losing.len());
    assert!(!losing.is_empty() || seeds(400).count() < 400, "no run lost an update");
}

fn quiet_world() -> mitra_sim::Config {
    mitra_sim::Config::fault_free()
}

/// A quiet world in which atomics of two NICs often overlap.
fn atomic_world() -> mitra_sim::Config {
    let mut world = quiet_world();
    world.memory.atomic_delay = DurationRange::nanos(100, 3_000);
    world
}

impl Setup {
    fn set_link(&mut self, host: usize, rail: usize, up: bool) {
        let nic = self.nics[host][rail].id();
        self.world.set_link(nic, up);
    }

    /// Gives a client more increments to make.
    fn add_work(&mut self, client: usize, increments: u64) {
        self.clients[client].borrow_mut().target += increments;
    }

    fn assert_all_done_on(&mut self, rail: usize) {
        assert!(self.run(Duration::from_secs(5)), "work is not done, rails {:?}", self.rails());
        assert_eq!(self.check(), Ok(()));
        self.world.run_for(PEER_TIMEOUT);
        let all = vec![rail; self.clients.len()];
        assert_eq!(self.rails(), [all.clone(), all]);
    }
}

/// One client loses its link to rail 0. The other clients, of which one naps at that time, could
/// stay on rail 0.
#[test]
fn all_clients_follow_the_first_that_leaves_the_home() {
    let mut setup = Setup::new(1, 2, quiet_world(), true);
    (0..3).for_each(|n| setup.add_client(n == 1, 50));
    setup.assert_all_done_on(0);
    let (napping, until) = (setup.hosts[3], setup.world.now() + PEER_TIMEOUT / 2);
    setup.world.pause(napping, Some(until));
    setup.set_link(1, 0, false);
    (0..3).for_each(|n| setup.add_work(n, 50));
    setup.assert_all_done_on(1);
}

/// The queue pair of a vQP that nobody drives is not fenced, so it is destroyed. Its vQP follows
/// when it is driven again.
#[test]
fn home_does_not_wait_for_a_vqp_that_nobody_drives() {
    for seed in [1, 2] {
        let mut setup = Setup::new(seed, 2, quiet_world(), true);
        (0..3).for_each(|n| setup.add_client(n == 1, 50));
        setup.assert_all_done_on(0);
        let undriven = setup.server.borrow_mut().pop().expect("the server has three vQPs");
        setup.set_link(1, 0, false);
        (0..2).for_each(|n| setup.add_work(n, 50));
        assert!(setup.run(PEER_TIMEOUT / 2), "seed {seed}: work is not done, rails {:?}", setup.rails());
        assert_eq!(setup.rails()[0], [1, 1]);
        setup.server.borrow_mut().push(undriven);
        (0..3).for_each(|n| setup.add_work(n, 50));
        setup.assert_all_done_on(1);
        assert_eq!(setup.close_reasons(), [None; 3]);
    }
}

/// The first client loses rail 0 for a while.
#[test]
fn home_moves_back_to_the_preferred_rail() {
    let mut setup = Setup::new(1, 2, quiet_world(), true);
    setup.config.failback = Some(Failback { rail: 0, delay: FAILBACK_DELAY });
    (0..3).for_each(|n| setup.add_client(n == 1, 50));
    setup.assert_all_done_on(0);
    setup.set_link(1, 0, false);
    setup.world.run_for(FAILBACK_DELAY / 2);
    setup.set_link(1, 0, true);
    (0..3).for_each(|n| setup.add_work(n, 50));
    setup.assert_all_done_on(0);
    assert!(setup.highest_epoch() > 0, "the home has moved");
}

/// The first client cannot use rail 0. The other clients repeatedly move the home to rail 0, and
/// the first client moves the home away. Each move uses up an epoch of all vQPs, so the pauses
/// before the failbacks grow.
// Hazard: links flap
#[test]
fn home_rarely_returns_to_a_preferred_rail_that_a_client_cannot_use() {
    let mut setup = Setup::new(1, 2, quiet_world(), true);
    setup.config.failback = Some(Failback { rail: 0, delay: FAILBACK_DELAY });
    (0..3).for_each(|n| setup.add_client(n == 1, 50));
    setup.assert_all_done_on(0);
    setup.set_link(1, 0, false);
    let mut epochs = Vec::new();
    for _ in 0..8 {
        (0..3).for_each(|n| setup.add_work(n, 20));
        assert!(setup.run(Duration::from_secs(20)), "{:?}, {:?}", setup.rails(), setup.close_reasons());
        setup.world.run_for(PEER_TIMEOUT * 5);
        epochs.push(setup.highest_epoch());
    }
    assert_eq!((setup.check(), setup.close_reasons()), (Ok(()), vec![None; 3]));
    let (early, late) = (epochs[3], epochs[7] - epochs[3]);
    assert!(late * 2 <= early, "the home does not settle: {epochs:?}");
}

#[test]
fn late_client_begins_at_the_home() {
    let mut setup = Setup::new(1, 3, quiet_world(), true);
    setup.add_client(false, 50);
    setup.set_link(1, 0, false);
    setup.assert_all_done_on(1);
    setup.add_client(true, 50);
    // The server's queue pair on rail 0 executes nothing, so the first atomic is executed when the
    // client has moved.
    setup.clients[1].borrow_mut().expected = 50;
    let word = Arc::clone(&setup.word);
    setup.world.run_until(move |_| word.load(0) > 50, Duration::from_secs(1)).expect("the client moves");
    assert_eq!(setup.rails()[1], [1, 1]);
    setup.add_work(0, 500);
    setup.assert_all_done_on(1);
}

#[test]
fn home_leaves_a_nic_that_fails_at_the_server() {
    for seed in seeds(200) {
        let rng = &mut Prng::stream(seed, "setup");
        let mut setup = Setup::new(seed, 2, world_of(seed), true);
        (0..CLIENTS as u64).for_each(|n| setup.add_client((seed + n).is_multiple_of(2), INCREMENTS));
        let (nic, failure) = (setup.nics[0][0].id(), *rng.pick(&[Failure::NicDead, Failure::NicHung]));
        setup.world.after(Duration::from_micros(rng.below(500)), move |w| w.fail(nic, failure));
        if !setup.run(Duration::from_millis(200)) {
            setup.world.heal();
            assert!(setup.run(Duration::from_secs(30)), "seed {seed}, {failure:?}: {:?}", setup.rails());
        }
        setup
            .check()
            .unwrap_or_else(|e| panic!("seed {seed}, {failure:?}: {e}\n{}", reproduce_command(seed)));
        assert_eq!(setup.close_reasons(), [None; CLIENTS], "seed {seed}, {failure:?}");
    }
}

/// No rail reaches both clients, so the home alternates.
#[test]
fn clients_without_a_common_rail_take_turns() {
    let mut setup = Setup::new(1, 2, quiet_world(), true);
    (0..2).for_each(|n| setup.add_client(n == 1, 20));
    setup.assert_all_done_on(0);
    setup.set_link(1, 0, false);
    setup.set_link(2, 1, false);
    for _ in 0..5 {
        (0..2).for_each(|n| setup.add_work(n, 20));
        assert!(setup.run(Duration::from_secs(20)), "rails {:?}, {:?}", setup.rails(), setup.close_reasons());
    }
    assert_eq!((setup.check(), setup.close_reasons()), (Ok(()), vec![None; 2]));
    assert_eq!(setup.word.load(0), 2 * 6 * 20);
}

/// The clients are on different rails when the server begins to share atomics.
#[test]
fn sharing_brings_vqps_on_different_rails_together() {
    let mut setup = Setup::new(1, 2, quiet_world(), false);
    (0..2).for_each(|n| setup.add_client(n == 1, 20));
    setup.set_link(1, 0, false);
    assert!(setup.run(Duration::from_secs(5)));
    setup.world.run_for(PEER_TIMEOUT);
    assert_eq!(setup.rails(), [vec![1, 0], vec![1, 0]]);
    setup.domain.share_atomics().expect("all vQPs fence");
    (0..2).for_each(|n| setup.add_work(n, 200));
    setup.assert_all_done_on(1);
}

#[test]
fn closed_vqps_do_not_hold_the_home() {
    let mut setup = Setup::new(1, 2, quiet_world(), true);
    setup.add_client(false, 20);
    setup.set_link(1, 0, false);
    setup.assert_all_done_on(1);
    setup.server.borrow_mut()[0].close().expect("the NICs are alive");
    setup.add_client(true, 20);
    assert!(setup.run(Duration::from_secs(5)));
    assert_eq!(setup.server.borrow()[1].active_rail(), 0, "nobody else is there");
}

/// The peer of a refused vQP has connected. The refused vQP executes nothing.
#[test]
fn vqps_that_do_not_fence_share_no_atomics() {
    let mut setup = Setup::new(1, 2, quiet_world(), true);
    setup.config.policy = Policy::Blanket;
    let peer = domain(&setup.nics[1]);
    let [mut a, mut b] = [vqp(setup.config, &setup.domain, 1), vqp(setup.config, &peer, 2)];
    let (info_a, info_b) = (a.local_info(), b.local_info());
    assert!(matches!(a.connect(&info_b), Err(Error::Unsupported(_))));
    b.connect(&info_a).expect("this end shares nothing");
    b.import(&setup.mr.remote()).expect("is connected");
    let local = peer.register(&Arc::new(Buffer::new(8)), Access::LOCAL_WRITE).expect("the NICs have room");
    let add = SendOp::FetchAdd { remote: setup.mr.remote().at(0), add: 1 };
    b.post_send(SendWr::new(1, add, Data::sge(local.sge(0, 8)))).expect("the queue has room");
    setup.world.run_for(PEER_TIMEOUT);
    assert_eq!(setup.word.load(0), 0);
    assert!(matches!(peer.share_atomics(), Err(Error::Unsupported(_))));
    b.close().expect("the NICs are alive");
    peer.share_atomics().expect("no such vQP is left");
}

/// The vQP is on another rail than the home. Its NIC hangs and cannot be reset.
#[test]
fn sharing_is_refused_if_a_rail_cannot_be_fenced() {
    let mut world = quiet_world();
    world.capabilities.reset = false;
    let mut setup = Setup::new(1, 2, world, false);
    (0..2).for_each(|n| setup.add_client(n == 1, 20));
    setup.set_link(1, 0, false);
    assert!(setup.run(Duration::from_secs(5)));
    setup.world.run_for(PEER_TIMEOUT);
    assert_eq!(setup.rails()[0], [1, 0]);
    let nic = setup.nics[0][1].id();
    setup.world.fail(nic, Failure::NicHung);
    assert_eq!(setup.domain.share_atomics(), Err(Error::DeviceFatal));
}

/// The queue pairs of client 1 are replaced on rail 0, the only rail that client 1 can use. Client
/// 2 moves the home to rail 1 at a time after the return of client 1's link. Rail 0 must then
/// execute nothing more, also on a queue pair that is connected later.
#[test]
fn replaced_queue_pair_executes_nothing_after_the_home_has_moved() {
    for delay in fault_times(0..40).map(|n| Duration::from_micros(n * n)) {
        let mut setup = Setup::new(1, 2, atomic_world(), true);
        (0..2).for_each(|n| setup.add_client(n == 1, 20));
        setup.assert_all_done_on(0);
        setup.set_link(1, 1, false);
        setup.set_link(1, 0, false);
        setup.add_work(0, 2000);
        setup.world.run_for(PEER_TIMEOUT / 4);
        setup.set_link(1, 0, true);
        setup.world.run_for(delay);
        setup.set_link(2, 0, false);
        setup.add_work(1, 2000);
        assert!(setup.run(Duration::from_secs(20)), "{delay:?}: {:?}", setup.rails());
        assert_eq!((setup.check(), setup.close_reasons()), (Ok(()), vec![None; 2]), "{delay:?}");
    }
}

/// No rail reaches both clients, so the home alternates. Before the other rail becomes the home, a
/// NIC that hangs and still executes is reset. If the NIC cannot be reset, no client moves.
#[test]
fn home_that_hangs_is_reset_before_another_rail_is_the_home() {
    for (reset, delay) in [true, false].into_iter().flat_map(|reset| (0..16).map(move |n| (reset, n))) {
        let mut world = atomic_world();
        world.capabilities.reset = reset;
        let mut setup = Setup::new(1, 2, world, true);
        (0..2).for_each(|n| setup.add_client(n == 1, 20));
        setup.assert_all_done_on(0);
        setup.set_link(1, 1, false);
        setup.set_link(2, 0, false);
        (0..2).for_each(|n| setup.add_work(n, 100_000));
        setup.world.run_for(Duration::from_micros(500) * delay);
        let nic = setup.nics[0][1].id();
        setup.world.fail(nic, Failure::NicHung);
        setup.world.run_for(Duration::from_millis(5));
        for client in &setup.clients {
            let mut client = client.borrow_mut();
            client.target = client.found.len() as u64;
        }
        assert!(setup.run(Duration::from_secs(20)), "{:?}", setup.rails());
        assert_eq!(setup.check(), Ok(()), "reset: {reset}, delay: {delay}");
    }
}

/// The atomics of one rail are not atomic with the atomics of the other rails.
#[test]
fn one_rail_without_global_atomics_needs_a_home() {
    let world = quiet_world();
    let mut rails = vec![world.capabilities; 2];
    rails[1].atomic_scope = AtomicScope::Global;
    let shape = Shape { clients: 2, rails, shares: true, server_pace: Pace::default() };
    let mut setup = Setup::with_shape(1, world, shape);
    (0..2).for_each(|n| setup.add_client(n == 1, 50));
    setup.set_link(1, 0, false);
    setup.assert_all_done_on(1);
}

#[test]
fn global_atomics_need_no_home() {
    let mut config = quiet_world();
    config.capabilities.atomic_scope = AtomicScope::Global;
    let mut setup = Setup::new(1, 2, config, true);
    (0..2).for_each(|n| setup.add_client(n == 1, 50));
    setup.set_link(1, 0, false);
    assert!(setup.run(Duration::from_secs(5)));
    setup.world.run_for(PEER_TIMEOUT);
    assert_eq!((setup.rails(), setup.check()), ([vec![1, 0], vec![1, 0]], Ok(())));
}
