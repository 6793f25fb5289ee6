//! Failback: a rail that failed and has recovered is used again. The tests poll both ends, so that
//! each run has one fixed schedule.

use core::time::Duration;

use std::sync::Arc;

use mitra_failover::{
    BuildError, Cause, CloseReason, Config, Domain, Failback, Outcome, Policy, UnresolvedError, VirtualQp,
};
use mitra_sim::{Failure, Noise};
use mitra_verbs::{Data, Provider, SendOp};

use crate::vqp_pair::{VqpPair, config};

impl VqpPair {
    fn exchange(&mut self, round: u64) {
        for (from, to) in [(0, 1), (1, 0)] {
            self.recv(to, round, 64);
            self.send(from, 1000 + round, SendOp::Send, Data::inline(&round.to_ne_bytes()));
        }
        let word = self.remote(1, 0x8000);
        let sge = self.mr[0].sge(0x9000, 8);
        self.send(0, 2000 + round, SendOp::FetchAdd { remote: word, add: 1 }, Data::sge(sge));
    }

    /// Checks that all operations of the first `rounds` rounds succeeded, and that each
    /// fetch-and-add was executed once.
    fn assert_done(&self, rounds: u64) {
        for round in 0..rounds {
            for host in 0..2 {
                assert_eq!(
                    self.outcome(host, round, true),
                    Some(Outcome::Success),
                    "round {round}, end {host}"
                );
                assert_eq!(self.outcome(host, 1000 + round, false), Some(Outcome::Success), "round {round}");
            }
            assert_eq!(self.outcome(0, 2000 + round, false), Some(Outcome::Success), "round {round}");
        }
        assert_eq!(self.memory[1].load(0x8000), rounds, "each fetch-and-add is executed once");
    }
}

/// A number of polls during which a failover completes, or a recovered rail becomes ready.
const SETTLE_POLLS: usize = 1200;

// Hazard: the link returns, its throughput does not
#[test]
fn connection_survives_while_one_rail_lives() {
    for host in 0..2 {
        let mut pair = VqpPair::new(2, config());
        pair.poll_times(&[0, 1], 20);
        let (rounds, mut epoch) = (12, 0);
        for round in 0..rounds {
            let failed_rail = round as usize % 2;
            pair.exchange(round);
            pair.poll_times(&[0, 1], round as usize % 5); // operations are in flight in some rounds
            pair.link_down(host, failed_rail);
            pair.poll_times(&[0, 1], SETTLE_POLLS);
            assert_eq!(
                [pair.vqps[0].active_rail(), pair.vqps[1].active_rail()],
                [1 - failed_rail; 2],
                "round {round}: {:?}",
                pair.vqps[0]
            );
            pair.link_up(host, failed_rail);
            pair.poll_times(&[0, 1], SETTLE_POLLS);
            epoch = pair.vqps[0].last_failover().expect("a failover took place").epoch;
        }
        pair.poll_times(&[0, 1], SETTLE_POLLS);
        assert_eq!(u64::from(epoch), rounds + 1, "one failover for each link failure");
        pair.assert_done(rounds);
    }
}

#[test]
fn vqp_keeps_its_number_and_frees_all_resources() {
    let mut pair = VqpPair::new(2, config());
    let qpn = pair.vqps[0].qpn();
    for failed_rail in [0, 1, 0] {
        pair.link_down(0, failed_rail);
        pair.poll_times(&[0, 1], SETTLE_POLLS);
        pair.link_up(0, failed_rail);
        pair.poll_times(&[0, 1], SETTLE_POLLS);
    }
    assert_eq!(pair.vqps[0].qpn(), qpn);
    assert_eq!(pair.vqps[0].last_failover().expect("a failover took place").epoch, 4);
    for host in 0..2 {
        pair.vqps[host].close().expect("the NICs confirm");
        for nic in pair.vqps[host].domain().clone().nics() {
            nic.provider
                .dealloc_pd(nic.pd)
                .expect_err("the protection domain still holds the registered memory");
        }
        let mr = pair.mr[host].clone();
        pair.vqps[host].domain().clone().deregister(&mr).expect("the NICs confirm");
        for nic in pair.vqps[host].domain().clone().nics() {
            nic.provider.dealloc_pd(nic.pd).expect("the protection domain holds nothing else");
        }
    }
}

/// The active rail fails before the recovered rail is ready.
#[test]
fn failover_waits_for_recovering_rail() {
    for gap in [0, 1, 2, 5, 20, 100] {
        let mut pair = VqpPair::new(2, config());
        pair.poll_times(&[0, 1], 20);
        pair.link_down(0, 0);
        pair.poll_times(&[0, 1], SETTLE_POLLS);
        pair.link_up(0, 0);
        pair.poll_times(&[0, 1], gap);
        pair.exchange(0);
        pair.link_down(0, 1);
        pair.poll_times(&[0, 1], 2 * SETTLE_POLLS);
        assert_eq!(
            [pair.vqps[0].active_rail(), pair.vqps[1].active_rail()],
            [0; 2],
            "gap {gap}: {:?}",
            pair.vqps[0].close_reason()
        );
        pair.assert_done(1);
    }
}

/// The rail to which a failover moves also fails, before or after the failover completes.
#[test]
fn failure_of_target_rail_leads_to_next_rail() {
    for gap in 0..60 {
        let mut pair = VqpPair::new(3, config());
        pair.poll_times(&[0, 1], 20);
        pair.exchange(0);
        pair.link_down(gap % 2, 0);
        pair.poll_times(&[0, 1], gap / 2);
        pair.link_down(0, 1);
        pair.poll_times(&[0, 1], 2 * SETTLE_POLLS);
        assert_eq!(
            [pair.vqps[0].active_rail(), pair.vqps[1].active_rail()],
            [2; 2],
            "gap {gap}: {:?}",
            pair.vqps[0].close_reason()
        );
        pair.assert_done(1);
    }
}

/// All links are down for a while.
#[test]
fn vqp_waits_for_first_link_to_recover() {
    for (host, healed_rail) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        for with_traffic in [false, true] {
            let mut pair = VqpPair::new(2, config());
            pair.poll_times(&[0, 1], 20);
            pair.link_down(host, 0);
            pair.poll_times(&[0, 1], SETTLE_POLLS);
            pair.link_down(host, 1);
            if with_traffic {
                pair.exchange(0);
            }
            pair.poll_times(&[0, 1], 2 * SETTLE_POLLS);
            pair.link_up(host, healed_rail);
            pair.poll_times(&[0, 1], 2 * SETTLE_POLLS);
            if !with_traffic {
                pair.exchange(0);
                pair.poll_times(&[0, 1], SETTLE_POLLS);
            }
            pair.assert_done(1);
            // If the queue pair of the active rail has failed, it is replaced.
            assert_eq!(
                [pair.vqps[0].active_rail(), pair.vqps[1].active_rail()],
                [healed_rail; 2],
                "{host} {healed_rail} {with_traffic}"
            );
        }
    }
}

/// The vQP does not wait for `peer_timeout`.
#[test]
fn vqp_closes_at_once_without_living_nic() {
    let mut pair = VqpPair::new(2, config());
    pair.poll_times(&[0, 1], 20);
    for rail in 0..2 {
        let nic = pair.testbed.nics[0][rail].id();
        pair.testbed.world.fail(nic, Failure::NicDead);
        pair.poll_times(&[0, 1], 100);
    }
    assert!(pair.vqps[0].close_reason().is_some());
}

/// The proposed rail is down at the peer, which declines the ballot. The first end asks before it
/// fences, so it continues on its old rail, whose link was down for a short time. When the old rail
/// fails for good, the first end waits for the proposed rail.
#[test]
fn declined_proposal_leaves_the_vqp_on_its_rail() {
    let mut config = config();
    config.peer_timeout = Duration::from_secs(1);
    let mut pair = VqpPair::new(2, config);
    pair.poll_times(&[0, 1], 20);
    pair.link_down(1, 1);
    pair.poll_times(&[1], 20);
    pair.exchange(0);
    pair.link_down(0, 0);
    pair.poll_times(&[0, 1], 20);
    pair.link_up(0, 0); // the refusal arrives over this rail
    pair.poll_times(&[0, 1], SETTLE_POLLS);
    pair.assert_done(1);
    assert_eq!([pair.vqps[0].active_rail(), pair.vqps[1].active_rail()], [0; 2]);
    pair.exchange(1);
    pair.link_down(0, 0);
    pair.poll_times(&[0, 1], 2 * SETTLE_POLLS);
    pair.link_up(1, 1);
    pair.poll_times(&[0, 1], 2 * SETTLE_POLLS);
    pair.assert_done(2);
    assert_eq!([pair.vqps[0].active_rail(), pair.vqps[1].active_rail()], [1; 2]);
}

/// The port of a rail is up at the first end, but the path is broken. The first end waits for the
/// rail until `peer_timeout`, and closes.
#[test]
fn wait_for_rail_ends_after_peer_timeout() {
    let mut config = config();
    config.peer_timeout = Duration::from_millis(20);
    let mut pair = VqpPair::new(2, config);
    pair.poll_times(&[0, 1], 20);
    pair.link_down(1, 0);
    pair.poll_times(&[0, 1], SETTLE_POLLS);
    assert_eq!(pair.vqps[0].active_rail(), 1);
    pair.exchange(0);
    pair.link_down(0, 1);
    pair.poll_times(&[0, 1], 4 * SETTLE_POLLS);
    assert_eq!(pair.vqps[0].close_reason(), Some(CloseReason::NoRail));
}

#[test]
fn dead_nic_is_not_used_again() {
    let mut pair = VqpPair::new(2, config());
    pair.poll_times(&[0, 1], 20);
    let nic = pair.testbed.nics[0][0].id();
    pair.testbed.world.fail(nic, Failure::NicDead);
    pair.poll_times(&[0, 1], SETTLE_POLLS);
    assert_eq!([pair.vqps[0].active_rail(), pair.vqps[1].active_rail()], [1; 2]);
    pair.link_up(0, 0);
    pair.poll_times(&[0, 1], SETTLE_POLLS);
    assert_eq!([pair.vqps[0].active_rail(), pair.vqps[1].active_rail()], [1; 2]);
    let nic = pair.testbed.nics[0][1].id();
    pair.testbed.world.fail(nic, Failure::NicDead);
    pair.poll_times(&[0, 1], SETTLE_POLLS);
    assert!(pair.vqps[0].close_reason().is_some());
}

/// The NICs keep no objects of earlier moves, and the state of the vQP does not grow.
#[test]
fn thousands_of_flaps_leak_nothing() {
    // The pauses between moves stay short.
    let mut pair = VqpPair::new(2, Config { peer_timeout: Duration::from_millis(20), ..config() });
    let flaps = 2000;
    let size = |pair: &VqpPair| format!("{:?}{:?}", pair.vqps[0], pair.vqps[0].domain()).len();
    let mut before = 0;
    for round in 0..flaps {
        let (host, rail) = (round / 2 % 2, round % 2);
        pair.link_down(host, rail);
        pair.poll_times(&[0, 1], SETTLE_POLLS);
        pair.link_up(host, rail);
        pair.poll_times(&[0, 1], SETTLE_POLLS);
        assert_eq!([pair.vqps[0].active_rail(), pair.vqps[1].active_rail()], [1 - rail; 2], "round {round}");
        if round == 100 {
            before = size(&pair);
        }
    }
    assert_eq!(usize::from(pair.vqps[0].last_failover().expect("a failover took place").epoch), flaps + 1);
    assert!(
        size(&pair) < before + 100,
        "{before} bytes to print after 100 flaps, {} in the end",
        size(&pair)
    );
    for host in 0..2 {
        pair.vqps[host].close().expect("the NICs confirm");
        let mr = pair.mr[host].clone();
        pair.vqps[host].domain().clone().deregister(&mr).expect("the NICs confirm");
        for nic in pair.vqps[host].domain().clone().nics() {
            nic.provider.dealloc_pd(nic.pd).expect("the protection domain holds nothing else");
        }
    }
}

/// All links fail after both ends have moved, and before an end has received a confirmation. When
/// the links recover, the failover is confirmed, even after a long time.
#[test]
fn unconfirmed_failover_is_confirmed_after_links_recover() {
    let mut unconfirmed = 0;
    for gap in 0..60 {
        let mut config = config();
        config.peer_timeout = Duration::from_millis(20);
        let mut pair = VqpPair::new(2, config);
        pair.poll_times(&[0, 1], 20);
        pair.link_down(0, 0);
        pair.poll_times(&[0, 1], gap);
        pair.link_down(0, 1);
        pair.poll_times(&[0, 1], 40);
        let moved = pair.vqps.iter().all(|v| v.active_rail() == 1 && v.is_active());
        unconfirmed += u32::from(moved && pair.vqps.iter().all(|v| !v.is_move_confirmed()));
        pair.poll_times(&[0, 1], 1600); // longer than the period of frequent retries
        pair.link_up(0, 0);
        pair.link_up(0, 1);
        pair.poll_times(&[0, 1], SETTLE_POLLS);
        if moved {
            assert!(
                pair.vqps.iter().all(|v| v.is_move_confirmed()),
                "gap {gap}: {:?}",
                pair.vqps[0].close_reason()
            );
            pair.exchange(0);
            pair.link_down(0, 1);
            pair.poll_times(&[0, 1], SETTLE_POLLS);
            pair.assert_done(1);
        }
    }
    assert!(unconfirmed > 0, "no gap left the failover unconfirmed at both ends");
}

/// Control messages arrive, but large data packets are lost, because the path MTU is smaller than
/// the configured MTU. Each rail appears to recover after a failover, but fails again. The vQP
/// closes with `NoRail`.
#[test]
fn rails_that_drop_large_packets_are_given_up() {
    let mut config = config();
    config.peer_timeout = Duration::from_millis(200);
    let mut world = mitra_sim::Config::fault_free();
    world.link.max_packet_bytes = 600;
    let mut pair = VqpPair::with_world(2, config, world);
    pair.poll_times(&[0, 1], 20);
    pair.exchange(0);
    pair.poll_times(&[0, 1], SETTLE_POLLS);
    pair.assert_done(1);
    let to = pair.remote(1, 0);
    let sge = pair.mr[0].sge(0, 4096);
    pair.send(0, 7, SendOp::Write(to), Data::sge(sge));
    pair.poll_times(&[0, 1], 40 * SETTLE_POLLS);
    assert_eq!(
        [pair.vqps[0].close_reason(), pair.vqps[1].close_reason()],
        [Some(CloseReason::NoRail), Some(CloseReason::PeerClosed)],
        "{:?}",
        pair.vqps[0].last_failover()
    );
    assert_eq!(
        pair.outcome(0, 7, false),
        Some(Outcome::Unresolved(UnresolvedError::Undecided(CloseReason::NoRail)))
    );
}

/// The queue pairs of both rails fail one after the other, each while its link is down. The links
/// recover before `peer_timeout`.
#[test]
fn lost_queue_pairs_are_replaced_when_links_recover() {
    for host in 0..2 {
        let mut pair = VqpPair::new(2, config());
        pair.poll_times(&[0, 1], 20);
        pair.link_down(host, 0);
        pair.poll_times(&[0, 1], SETTLE_POLLS);
        pair.link_down(host, 1);
        pair.exchange(0);
        pair.poll_times(&[0, 1], 2 * SETTLE_POLLS); // rail 1's queue pair exhausts its retries and fails
        pair.link_up(host, 0);
        pair.poll_times(&[0, 1], SETTLE_POLLS);
        assert_eq!([pair.vqps[0].active_rail(), pair.vqps[1].active_rail()], [0; 2]);
        pair.link_down(host, 0);
        pair.exchange(1);
        pair.poll_times(&[0, 1], 2 * SETTLE_POLLS); // rail 0's queue pair fails, too
        pair.link_up(host, 1);
        pair.poll_times(&[0, 1], SETTLE_POLLS);
        assert_eq!([pair.vqps[0].close_reason(), pair.vqps[1].close_reason()], [None; 2], "end {host}");
        pair.assert_done(2);
    }
}

#[test]
fn nic_that_dies_behind_failed_link_is_not_waited_for() {
    for first in 0..2 {
        let mut pair = VqpPair::new(2, config());
        pair.poll_times(&[0, 1], 20);
        for rail in [first, 1 - first] {
            pair.link_down(0, rail);
        }
        pair.poll_times(&[0, 1], 100);
        for rail in [first, 1 - first] {
            let nic = pair.testbed.nics[0][rail].id();
            pair.testbed.world.fail(nic, Failure::NicDead);
            pair.poll_times(&[0, 1], 100);
        }
        assert!(pair.vqps[0].close_reason().is_some(), "rail {first} first: {:?}", pair.vqps[0]);
    }
}

fn preferring(rail: u8) -> Config {
    Config { failback: Some(Failback { rail, delay: Duration::from_millis(5) }), ..config() }
}

/// The rail that the vQP leaves works, and carries operations during the move. Each operation is
/// executed once.
// Hazard: the link returns, its throughput does not
#[test]
fn vqp_moves_back_to_the_preferred_rail() {
    for preferred in 0..3 {
        let mut pair = VqpPair::new(3, preferring(preferred));
        let preferred = usize::from(preferred);
        let mut rounds = 0;
        for failures in 0..3 {
            pair.poll_times(&[0, 1], SETTLE_POLLS);
            assert_eq!([pair.vqps[0].active_rail(), pair.vqps[1].active_rail()], [preferred; 2]);
            pair.link_down(failures % 2, preferred);
            pair.exchange(rounds);
            pair.poll_times(&[0, 1], SETTLE_POLLS);
            assert_ne!(pair.vqps[0].active_rail(), preferred);
            pair.link_up(failures % 2, preferred);
            rounds += 1;
            while pair.vqps[0].active_rail() != preferred || pair.vqps[1].active_rail() != preferred {
                pair.exchange(rounds);
                pair.poll_times(&[0, 1], 6 << failures); // the stays are short, so the delay doubles each time
                rounds += 1;
                assert!(rounds < 1000, "the vQP does not move back");
            }
            let causes = [0, 1].map(|host| pair.vqps[host].last_failover().map(|report| report.cause));
            assert_eq!(causes, [Some(Cause::Failback); 2], "no rail has failed");
        }
        pair.poll_times(&[0, 1], SETTLE_POLLS);
        pair.assert_done(rounds);
        assert_eq!([pair.vqps[0].close_reason(), pair.vqps[1].close_reason()], [None; 2]);
    }
}

/// The port of the preferred rail is up again, and its path loses all packets for a while.
#[test]
fn rail_whose_port_is_up_before_its_path_works_is_not_used() {
    let mut pair = VqpPair::new(2, preferring(0));
    pair.poll_times(&[0, 1], SETTLE_POLLS);
    pair.link_down(0, 0);
    pair.exchange(0);
    pair.poll_times(&[0, 1], SETTLE_POLLS);
    let set_lost = |pair: &mut VqpPair, drop_ppm| {
        for host in 0..2 {
            let nic = pair.testbed.nics[host][0].id();
            let noise = Noise { drop_ppm, ..Noise::default() };
            pair.testbed.world.faults(nic, |faults| faults.set_noise_tx(noise));
        }
    };
    let epochs =
        |pair: &VqpPair| pair.vqps.each_ref().map(|vqp| vqp.last_failover().map(|report| report.epoch));
    set_lost(&mut pair, 1_000_000);
    let before = epochs(&pair);
    pair.link_up(0, 0);
    pair.poll_times(&[0, 1], 4 * SETTLE_POLLS);
    pair.exchange(1);
    pair.poll_times(&[0, 1], SETTLE_POLLS);
    assert_eq!(pair.vqps.each_ref().map(|vqp| vqp.active_rail()), [1; 2]);
    assert_eq!(epochs(&pair), before, "nobody tries the rail");
    set_lost(&mut pair, 0);
    let mut rounds = 2;
    while pair.vqps.each_ref().map(|vqp| vqp.active_rail()) != [0; 2] {
        pair.exchange(rounds);
        pair.poll_times(&[0, 1], SETTLE_POLLS);
        rounds += 1;
        assert!(rounds < 100, "the vQP does not move back");
    }
    pair.poll_times(&[0, 1], SETTLE_POLLS);
    pair.assert_done(rounds);
}

/// The peer cannot use the preferred rail. The vQP never fences the active rail.
#[test]
fn refused_failback_leaves_the_vqp_on_its_rail() {
    let mut pair = VqpPair::new(2, preferring(1));
    pair.link_down(1, 1);
    pair.poll_times(&[0, 1], 4 * SETTLE_POLLS);
    pair.exchange(0);
    pair.poll_times(&[0, 1], SETTLE_POLLS);
    pair.assert_done(1);
    assert_eq!([pair.vqps[0].last_failover(), pair.vqps[1].last_failover()], [None, None]);
    pair.link_up(1, 1);
    pair.poll_times(&[0, 1], 4 * SETTLE_POLLS);
    assert_eq!([pair.vqps[0].active_rail(), pair.vqps[1].active_rail()], [1, 1]);
}

/// The preferred rail fails soon after each failback. The pauses between moves grow, so that the
/// vQP does not use up its epochs.
#[test]
fn flapping_preferred_rail_is_taken_ever_more_rarely() {
    let mut pair = VqpPair::new(2, preferring(0));
    pair.poll_times(&[0, 1], SETTLE_POLLS);
    for _ in 0..400 {
        if pair.vqps[0].active_rail() == 0 {
            pair.link_down(0, 0);
        }
        pair.poll_times(&[0, 1], 200);
        pair.link_up(0, 0);
        pair.poll_times(&[0, 1], 200);
    }
    let epoch = pair.vqps[0].last_failover().expect("the rail failed").epoch;
    assert!((10..40).contains(&epoch), "{epoch} moves in 4 s");
}

/// The other rail works, so nothing is gained by a wait, however often the preferred rail has
/// failed before.
#[test]
fn preferred_rail_that_has_flapped_is_left_at_once() {
    for host in 0..2 {
        let failback = Some(Failback { rail: 0, delay: Duration::from_micros(500) });
        let mut pair = VqpPair::new(2, Config { failback, ..config() });
        pair.poll_times(&[0, 1], SETTLE_POLLS);
        for flap in 0..9 {
            pair.link_down(host, 0);
            pair.poll_times(&[0, 1], 200);
            let rails = [0, 1].map(|end| pair.vqps[end].active_rail());
            assert_eq!(rails, [1; 2], "flap {flap} at end {host}");
            pair.link_up(host, 0);
            pair.poll_times(&[0, 1], SETTLE_POLLS + (100 << flap)); // the delay doubles each time
            let rails = [0, 1].map(|end| pair.vqps[end].active_rail());
            assert_eq!(rails, [0; 2], "after flap {flap} at end {host}");
        }
    }
}

#[test]
fn ends_that_prefer_different_rails_do_not_connect() {
    let testbed = mitra_sim::Testbed::with_config(1, mitra_sim::Config::fault_free(), 2);
    let end = |host: usize, config: Config| {
        let nics: Vec<_> = testbed.nics[host].iter().map(|n| Arc::clone(n) as Arc<dyn Provider>).collect();
        let domain = Domain::new(nics).expect("the NICs have the resources of a domain");
        VirtualQp::builder(&domain).config(config).build()
    };
    let mut a = end(0, preferring(0)).expect("rail 0 exists");
    let b = end(1, preferring(1)).expect("rail 1 exists");
    let error = a.connect(&b.local_info()).expect_err("the ends differ");
    assert!(error.to_string().contains("failback.rail"), "{error}");
    let error = end(0, preferring(2)).expect_err("there is no rail 2");
    assert_eq!(error, BuildError::PreferredRail { requested: 2, rails: 2 });
    let transparent = Config { policy: Policy::Transparent, ..preferring(0) };
    let error = end(0, transparent).expect_err("the policy does not fence");
    assert_eq!(error, BuildError::PreferredRail { requested: 0, rails: 2 });
}

/// The peer's process dies after both ends have moved to new queue pairs of the only rail, and
/// before these are connected. Heartbeats are off, and no queue pair is left whose retries could be
/// exhausted.
#[test]
fn end_whose_peer_dies_before_the_new_queue_pairs_are_connected_closes() {
    for polls in 0..40 {
        let peer_timeout = Duration::from_millis(50);
        let mut pair = VqpPair::new(1, Config { peer_timeout, ..config() });
        pair.poll_times(&[0, 1], 20);
        pair.link_down(0, 0);
        pair.exchange(0);
        pair.poll_times(&[0, 1], SETTLE_POLLS); // the queue pair exhausts its retries and fails
        pair.link_up(0, 0);
        pair.poll_times(&[0, 1], polls);
        pair.exchange(1);
        pair.poll_times(&[0], 10 * SETTLE_POLLS);
        assert!(pair.outcome(0, 1001, false).is_some(), "after {polls} polls: {:?}", pair.vqps[0]);
    }
}
