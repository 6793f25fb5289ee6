//! A rail that was left and has healed is moved to again, as often as it takes: plays driven by hand, and a storm of seeds in
//! which one rail always lives.

mod duo;

use core::time::Duration;

use mitra_failover::{CloseReason, Outcome, UnresolvedError};
use mitra_sim::Failure;
use mitra_verbs::{Data, SendOp};

use duo::{Duo, config};

impl Duo {
    /// A message each way, and a fetch-and-add of the first end, which must be executed once.
    fn exchange(&mut self, round: u64) {
        for (from, to) in [(0, 1), (1, 0)] {
            self.recv(to, round, 64);
            self.send(from, 1000 + round, SendOp::Send, Data::inline(&round.to_ne_bytes()));
        }
        let word = self.remote(1, 0x8000);
        let sge = self.mr[0].sge(0x9000, 8);
        self.send(0, 2000 + round, SendOp::FetchAdd { remote: word, add: 1 }, Data::sge(sge));
    }

    /// Everything of these rounds has succeeded.
    fn assert_done(&self, rounds: u64) {
        for round in 0..rounds {
            for h in 0..2 {
                assert_eq!(self.outcome(h, round, true), Some(Outcome::Success), "round {round}, end {h}");
                assert_eq!(self.outcome(h, 1000 + round, false), Some(Outcome::Success), "round {round}");
            }
            assert_eq!(self.outcome(0, 2000 + round, false), Some(Outcome::Success), "round {round}");
        }
        assert_eq!(self.memory[1].load(0x8000), rounds, "each is executed once");
    }
}

/// Long enough for a failover, or for a rail to be made ready.
const WHILE: usize = 1200;

#[test]
fn a_connection_lives_on_as_long_as_one_rail_lives() {
    for host in 0..2 {
        let mut d = Duo::new(2, config());
        d.turns(&[0, 1], 20);
        let (rounds, mut number) = (12, 0);
        for round in 0..rounds {
            let lost = round as usize % 2;
            d.exchange(round);
            d.turns(&[0, 1], round as usize % 5); // now and then something is in flight
            d.unplug(host, lost);
            d.turns(&[0, 1], WHILE);
            assert_eq!(
                [d.v[0].active_rail(), d.v[1].active_rail()],
                [1 - lost; 2],
                "round {round}: {:?}",
                d.v[0]
            );
            d.plug(host, lost);
            d.turns(&[0, 1], WHILE);
            number = d.v[0].last_failover().expect("it moved").epoch;
        }
        d.turns(&[0, 1], WHILE);
        assert_eq!(u64::from(number), rounds + 1, "one move for each loss");
        d.assert_done(rounds);
    }
}

#[test]
fn a_virtual_queue_pair_keeps_its_number_and_leaves_nothing_behind() {
    let mut d = Duo::new(2, config());
    let number = d.v[0].qpn();
    for lost in [0, 1, 0] {
        d.unplug(0, lost);
        d.turns(&[0, 1], WHILE);
        d.plug(0, lost);
        d.turns(&[0, 1], WHILE);
    }
    assert_eq!(d.v[0].qpn(), number);
    assert_eq!(d.v[0].last_failover().expect("it moved").epoch, 4);
    for h in 0..2 {
        d.v[h].close().expect("close");
        for nic in d.v[h].domain().clone().nics() {
            nic.provider.dealloc_pd(nic.pd).expect_err("the registered memory is in it");
        }
        let mr = d.mr[h].clone();
        d.v[h].domain().clone().deregister(&mr).expect("deregister");
        for nic in d.v[h].domain().clone().nics() {
            nic.provider.dealloc_pd(nic.pd).expect("nothing else is");
        }
    }
}

/// The next loss comes when the healed rail is not ready yet: the move waits until it is.
#[test]
fn a_move_waits_for_a_rail_that_is_just_coming_back() {
    for gap in [0, 1, 2, 5, 20, 100] {
        let mut d = Duo::new(2, config());
        d.turns(&[0, 1], 20);
        d.unplug(0, 0);
        d.turns(&[0, 1], WHILE);
        d.plug(0, 0);
        d.turns(&[0, 1], gap);
        d.exchange(0);
        d.unplug(0, 1);
        d.turns(&[0, 1], 2 * WHILE);
        assert_eq!(
            [d.v[0].active_rail(), d.v[1].active_rail()],
            [0; 2],
            "gap {gap}: {:?}",
            d.v[0].close_reason()
        );
        d.assert_done(1);
    }
}

/// The rail that is moved to fails too, before the move is over: the next begins when it is.
#[test]
fn a_rail_that_fails_while_it_is_moved_to_is_left_for_the_next() {
    for gap in 0..60 {
        let mut d = Duo::new(3, config());
        d.turns(&[0, 1], 20);
        d.exchange(0);
        d.unplug(gap % 2, 0);
        d.turns(&[0, 1], gap / 2);
        d.unplug(0, 1);
        d.turns(&[0, 1], 2 * WHILE);
        assert_eq!(
            [d.v[0].active_rail(), d.v[1].active_rail()],
            [2; 2],
            "gap {gap}: {:?}",
            d.v[0].close_reason()
        );
        d.assert_done(1);
    }
}

/// Every cable is out for a while: what comes back first is used.
#[test]
fn when_all_links_are_down_it_waits_for_one() {
    for (h, back) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        for broken in [false, true] {
            let mut d = Duo::new(2, config());
            d.turns(&[0, 1], 20);
            d.unplug(h, 0);
            d.turns(&[0, 1], WHILE);
            d.unplug(h, 1);
            if broken {
                d.exchange(0);
            }
            d.turns(&[0, 1], 2 * WHILE);
            d.plug(h, back);
            d.turns(&[0, 1], 2 * WHILE);
            if !broken {
                d.exchange(0);
                d.turns(&[0, 1], WHILE);
            }
            if broken && back == 1 {
                // Its own queue pair has not outlived it: only another rail can help.
                d.plug(h, 0);
                d.turns(&[0, 1], 2 * WHILE);
            }
            d.assert_done(1);
            let rail = if broken { 0 } else { back };
            assert_eq!([d.v[0].active_rail(), d.v[1].active_rail()], [rail; 2], "{h} {back} {broken}");
        }
    }
}

/// With no NIC that something could come by, the end comes at once and not only when all patience is over.
#[test]
fn without_a_nic_it_ends_at_once() {
    let mut d = Duo::new(2, config());
    d.turns(&[0, 1], 20);
    for rail in 0..2 {
        let nic = d.rig.nics[0][rail].id();
        d.rig.world.fail(nic, Failure::NicDead);
        d.turns(&[0, 1], 100);
    }
    assert!(d.v[0].close_reason().is_some());
}

/// The rail that is proposed is down at the peer; when it is up again the move goes on, by another ballot.
#[test]
fn a_peer_that_declines_is_asked_again() {
    let mut c = config();
    c.peer_timeout = Duration::from_secs(1);
    let mut d = Duo::new(2, c);
    d.turns(&[0, 1], 20);
    d.unplug(1, 1);
    d.turns(&[1], 20);
    d.exchange(0);
    d.unplug(0, 0);
    d.turns(&[0, 1], 20);
    d.plug(0, 0); // by which it is heard that it was declined
    d.turns(&[0, 1], 100);
    assert!(!d.v[0].is_active() && d.v[1].is_active());
    d.plug(1, 1);
    d.turns(&[0, 1], 2 * WHILE);
    d.assert_done(1);
    assert_eq!([d.v[0].active_rail(), d.v[1].active_rail()], [1; 2]);
}

/// A rail whose port is up at this end, and which leads nowhere: the wait for it ends.
#[test]
fn a_wait_for_a_rail_that_never_comes_back_ends() {
    let mut c = config();
    c.peer_timeout = Duration::from_millis(20);
    let mut d = Duo::new(2, c);
    d.turns(&[0, 1], 20);
    d.unplug(1, 0);
    d.turns(&[0, 1], WHILE);
    assert_eq!(d.v[0].active_rail(), 1);
    d.exchange(0);
    d.unplug(0, 1);
    d.turns(&[0, 1], 4 * WHILE);
    assert_eq!(d.v[0].close_reason(), Some(CloseReason::NoRail));
}

/// A NIC that died stays dead, whatever its cable does.
#[test]
fn a_dead_nic_does_not_come_back() {
    let mut d = Duo::new(2, config());
    d.turns(&[0, 1], 20);
    let nic = d.rig.nics[0][0].id();
    d.rig.world.fail(nic, Failure::NicDead);
    d.turns(&[0, 1], WHILE);
    assert_eq!([d.v[0].active_rail(), d.v[1].active_rail()], [1; 2]);
    d.plug(0, 0);
    d.turns(&[0, 1], WHILE);
    assert_eq!([d.v[0].active_rail(), d.v[1].active_rail()], [1; 2]);
    let nic = d.rig.nics[0][1].id();
    d.rig.world.fail(nic, Failure::NicDead);
    d.turns(&[0, 1], WHILE);
    assert!(d.v[0].close_reason().is_some());
}

/// A rail that flaps for days leaves nothing behind at either end, but what it counts.
#[test]
fn thousands_of_flaps_leave_nothing_behind() {
    let mut d = Duo::new(2, config());
    let flaps = 2000;
    let size = |d: &Duo| format!("{:?}{:?}", d.v[0], d.v[0].domain()).len();
    let mut before = 0;
    for round in 0..flaps {
        let (h, rail) = (round / 2 % 2, round % 2);
        d.unplug(h, rail);
        d.turns(&[0, 1], WHILE);
        d.plug(h, rail);
        d.turns(&[0, 1], WHILE);
        assert_eq!([d.v[0].active_rail(), d.v[1].active_rail()], [1 - rail; 2], "round {round}");
        if round == 100 {
            before = size(&d);
        }
    }
    assert_eq!(usize::from(d.v[0].last_failover().expect("it moved").epoch), flaps + 1);
    assert!(size(&d) < before + 100, "{before} bytes to print after 100 flaps, {} in the end", size(&d));
    for h in 0..2 {
        d.v[h].close().expect("close");
        let mr = d.mr[h].clone();
        d.v[h].domain().clone().deregister(&mr).expect("deregister");
        for nic in d.v[h].domain().clone().nics() {
            nic.provider.dealloc_pd(nic.pd).expect("nothing else is in it");
        }
    }
}

/// Both ends have moved, and all links go before either hears of it; when they are back, the move is confirmed, however late.
#[test]
fn a_move_that_was_not_confirmed_in_time_is_confirmed_later() {
    let mut unsettled = 0;
    for gap in 0..60 {
        let mut c = config();
        c.peer_timeout = Duration::from_millis(20);
        let mut d = Duo::new(2, c);
        d.turns(&[0, 1], 20);
        d.unplug(0, 0);
        d.turns(&[0, 1], gap);
        d.unplug(0, 1);
        d.turns(&[0, 1], 40);
        let moved = d.v.iter().all(|v| v.active_rail() == 1 && v.is_active());
        unsettled += u32::from(moved && d.v.iter().all(|v| !v.is_move_confirmed()));
        d.turns(&[0, 1], 1600); // more than both ask often
        d.plug(0, 0);
        d.plug(0, 1);
        d.turns(&[0, 1], WHILE);
        if moved {
            assert!(d.v.iter().all(|v| v.is_move_confirmed()), "gap {gap}: {:?}", d.v[0].close_reason());
            d.exchange(0);
            d.unplug(0, 1);
            d.turns(&[0, 1], WHILE);
            d.assert_done(1);
        }
    }
    assert!(unsettled > 0, "a gap in which neither has heard");
}

/// Control messages come through, and the data does not (an MTU that the path does not have): each rail is ready again whenever it
/// was left, and none helps. That has an end, and a name.
#[test]
fn rails_that_only_seem_to_be_well_are_not_tried_for_ever() {
    let mut c = config();
    c.peer_timeout = Duration::from_millis(200);
    let mut world = mitra_sim::Config::calm();
    world.wire.longest = 600;
    let mut d = Duo::over(2, c, world);
    d.turns(&[0, 1], 20);
    d.exchange(0);
    d.turns(&[0, 1], WHILE);
    d.assert_done(1);
    let to = d.remote(1, 0);
    let sge = d.mr[0].sge(0, 4096);
    d.send(0, 7, SendOp::Write(to), Data::sge(sge));
    d.turns(&[0, 1], 40 * WHILE);
    assert_eq!(
        [d.v[0].close_reason(), d.v[1].close_reason()],
        [Some(CloseReason::NoRail), Some(CloseReason::PeerClosed)],
        "{:?}",
        d.v[0].last_failover()
    );
    assert_eq!(
        d.outcome(0, 7, false),
        Some(Outcome::Unresolved(UnresolvedError::Undecided(CloseReason::NoRail)))
    );
}

/// Each rail's queue pair is lost while its cable is out, one after the other: that is no reason to end before the patience is over.
#[test]
fn queue_pairs_that_are_lost_with_their_cables_are_replaced_when_those_are_back() {
    for h in 0..2 {
        let mut d = Duo::new(2, config());
        d.turns(&[0, 1], 20);
        d.unplug(h, 0);
        d.turns(&[0, 1], WHILE);
        d.unplug(h, 1);
        d.exchange(0);
        d.turns(&[0, 1], 2 * WHILE); // retried in vain: rail 1's queue pair is lost
        d.plug(h, 0);
        d.turns(&[0, 1], WHILE);
        assert_eq!([d.v[0].active_rail(), d.v[1].active_rail()], [0; 2]);
        d.unplug(h, 0);
        d.exchange(1);
        d.turns(&[0, 1], 2 * WHILE); // and now rail 0's
        d.plug(h, 1);
        d.turns(&[0, 1], WHILE);
        assert_eq!([d.v[0].close_reason(), d.v[1].close_reason()], [None; 2], "end {h}");
        d.assert_done(2);
    }
}

/// A cable that is out may hide that its NIC has died.
#[test]
fn a_nic_that_dies_while_its_cable_is_out_is_not_waited_for() {
    for first in 0..2 {
        let mut d = Duo::new(2, config());
        d.turns(&[0, 1], 20);
        for rail in [first, 1 - first] {
            d.unplug(0, rail);
        }
        d.turns(&[0, 1], 100);
        for rail in [first, 1 - first] {
            let nic = d.rig.nics[0][rail].id();
            d.rig.world.fail(nic, Failure::NicDead);
            d.turns(&[0, 1], 100);
        }
        assert!(d.v[0].close_reason().is_some(), "rail {first} first: {:?}", d.v[0]);
    }
}
