//! NICs whose addresses change under a shared backup: later queue pairs are connected to the new
//! addresses.

use core::time::Duration;

use mitra_failover::Outcome;
use mitra_sim::{fault_times, seeds};

use super::pair::BackedPair;
use super::run::run;
use super::{random_time, setup};

const MEMBERS: usize = 3;

fn change(pair: &mut BackedPair, end: usize, rail: usize) {
    let nic = pair.testbed.nics[end][rail].id();
    pair.testbed.world.change_address(nic);
}

fn set_link(pair: &mut BackedPair, end: usize, rail: usize, is_up: bool) {
    let nic = pair.testbed.nics[end][rail].id();
    pair.testbed.world.set_link(nic, is_up);
}

fn pair() -> BackedPair {
    let mut pair = BackedPair::new(2, MEMBERS);
    assert_eq!(use_members(&mut pair, 1), 0);
    pair
}

/// Each member executes a WRITE and a SEND, and has its own queue pair afterwards. Returns the rail
/// of the backup.
fn use_members(pair: &mut BackedPair, value: u64) -> usize {
    for member in 0..MEMBERS {
        pair.recv(member, 8 + member);
        pair.write(member, member, value);
        pair.send(member, value);
    }
    pair.poll(&[0, 1], 4000);
    for member in 0..MEMBERS {
        let done = pair.outcomes(0, member).into_iter().filter(|done| *done == (value, Outcome::Success));
        let words = (pair.word(member), pair.word(8 + member));
        assert_eq!((done.count(), words), (2, (value, value)), "member {member}");
        assert!(pair.qps.iter().all(|end| end[member].has_rail()), "member {member}");
    }
    pair.backups[0].active_rail()
}

#[test]
fn standby_rail_with_another_address_is_used() {
    for end in 0..2 {
        let mut pair = pair();
        change(&mut pair, end, 1);
        pair.poll(&[0, 1], 400);
        assert_eq!(use_members(&mut pair, 2), 0, "the active rail is not concerned");
        set_link(&mut pair, 0, 0, false);
        assert_eq!(use_members(&mut pair, 3), 1);
        assert_eq!(pair.backups[0].last_failover().expect("it moved").epoch, 2, "it is the first move");
    }
}

#[test]
fn active_rail_with_another_address_is_left_and_used_again() {
    for end in 0..2 {
        let mut pair = pair();
        change(&mut pair, end, 0);
        assert_eq!(use_members(&mut pair, 2), 1);
        change(&mut pair, end, 1);
        assert_eq!(use_members(&mut pair, 3), 0);
        change(&mut pair, 1 - end, 0);
        assert_eq!(use_members(&mut pair, 4), 1);
    }
}

#[test]
fn both_addresses_of_a_rail_change_at_once() {
    for rail in 0..2 {
        let mut pair = pair();
        (0..2).for_each(|end| change(&mut pair, end, rail));
        assert_eq!(use_members(&mut pair, 2), usize::from(rail == 0));
        set_link(&mut pair, 0, 1 - rail, false);
        assert_eq!(use_members(&mut pair, 3), rail);
    }
}

#[test]
fn address_of_the_only_rail_changes() {
    for end in 0..2 {
        let mut pair = pair();
        set_link(&mut pair, 0, 1, false);
        pair.poll(&[0, 1], 100);
        change(&mut pair, end, 0);
        assert_eq!(use_members(&mut pair, 2), 0);
    }
}

/// The address changes at any time of a move, while members leave their queue pairs and make new
/// ones.
#[test]
fn address_changes_during_a_move() {
    for polls in fault_times(0..80).map(|n| 2 * n) {
        for (end, rail) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let mut pair = pair();
            set_link(&mut pair, 0, 0, false);
            (0..MEMBERS).for_each(|member| pair.write(member, member, 2));
            pair.poll(&[0, 1], polls);
            change(&mut pair, end, rail);
            set_link(&mut pair, 0, 0, true);
            use_members(&mut pair, 3);
        }
    }
}

/// Links fail and recover at random, and some get another address.
#[test]
fn addresses_change_while_links_flap() {
    let mut epochs = 0;
    for seed in seeds(200) {
        let (out, _) = run(
            seed,
            setup(seed, 2 + (seed % 2) as u8, 1 + seed % 3),
            |p| p,
            |testbed, rng| {
                let mut at = Duration::ZERO;
                for _ in 0..rng.between(1, 6) {
                    let nic = testbed.rail(rng.index(testbed.nics[0].len()))[rng.index(2)];
                    at += random_time(rng, 300_000, 8);
                    testbed.world.after(at, move |w| w.set_link(nic, false));
                    let up = at + random_time(rng, 100_000, 8);
                    let changes = rng.below(2) == 0;
                    testbed.world.after(up, move |w| {
                        if changes {
                            w.change_address(nic);
                        }
                        w.set_link(nic, true);
                    });
                }
            },
        );
        out.assert_exact(seed, "flapping links with changes of addresses");
        epochs += u32::from(out.epoch);
    }
    assert!(epochs > 0);
}
