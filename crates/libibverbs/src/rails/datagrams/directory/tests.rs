use super::due_messages::{ASK_INTERVAL, PROBE_INTERVAL};
use super::*;

mod changed_addresses;
mod due_messages;

const QPN: Qpn = Qpn::new(0x11);

/// Two or more directories, and the messages between them. A message arrives if its rail is up at
/// both ends and not cut.
struct World {
    now: Duration,
    ends: Vec<Directory>,
    cut: RailMask,
}

fn gid(end: usize, rail: usize) -> Gid {
    IpAddr::from([10, rail as u8, 0, end as u8]).into()
}

/// The number of a queue pair on a rail. Queue pairs of different ends may have equal numbers.
fn number(qpn: Qpn, rail: usize) -> Qpn {
    Qpn::new(qpn.value() + 0x100 * rail as u32)
}

fn device(end: usize, rails: usize) -> Directory {
    let mut directory = Directory::new((0..rails).map(|rail| gid(end, rail)).collect());
    directory.add_qp(QpNumbers { qpn: QPN, on_rails: (0..rails).map(|rail| number(QPN, rail)).collect() });
    directory.set_up(Duration::ZERO, (1 << rails) - 1);
    directory
}

impl World {
    fn new(rails: usize) -> World {
        World { now: Duration::from_secs(1), ends: vec![device(0, rails), device(1, rails)], cut: 0 }
    }

    fn deliver(&mut self, from: usize, out: Outgoing) {
        let Outgoing { rail, to, message } = out;
        let source = self.ends[from].own.gids[rail];
        if !contains(self.ends[from].own.up & !self.cut, rail) {
            return;
        }
        for end in (0..self.ends.len()).filter(|end| *end != from) {
            let is_addressed = to.is_none() || to == Some(self.ends[end].own.gids[rail]);
            if !is_addressed || !contains(self.ends[end].own.up, rail) {
                continue;
            }
            if let Some(answer) = self.ends[end].handle(self.now, rail, source, message.clone()) {
                self.deliver(end, answer);
            }
        }
    }

    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now += Duration::from_millis(1);
            for end in 0..self.ends.len() {
                for message in self.ends[end].poll_transmit(self.now) {
                    self.deliver(end, message);
                }
            }
        }
    }

    /// Returns the messages that an end sends by itself within `time`, and does not deliver them.
    fn sent_by(&mut self, end: usize, time: Duration) -> Vec<(Duration, Outgoing)> {
        let (began, until) = (self.now, self.now + time);
        let mut sent = Vec::new();
        while self.now < until {
            self.now += MS;
            let due = self.ends[end].poll_transmit(self.now);
            sent.extend(due.into_iter().map(|message| (self.now - began, message)));
        }
        sent
    }

    fn set_up(&mut self, end: usize, up: RailMask) {
        self.ends[end].set_up(self.now, up);
    }

    /// Returns the way of a datagram from an end to the other, and checks that the other end knows
    /// who sent it.
    fn route(&mut self, from: usize) -> Route {
        let (to, now) = (1 - from, self.now);
        let route = self.ends[from].route(now, QPN, gid(to, 0), QPN);
        if let Route::To { rail, gid: address, qpn } = route {
            assert_eq!((address, qpn), (self.ends[to].own.gids[rail], number(QPN, rail)));
            let [source, device] = [rail, 0].map(|rail| self.ends[from].own.gids[rail]);
            let sender = self.ends[to].identify(now, rail, source, number(QPN, rail));
            assert_eq!(sender, Some((device, QPN)), "the receiver knows the sender on rail {rail}");
        }
        route
    }

    /// Returns the rail of the next datagram from an end to the other.
    fn rail(&mut self, from: usize) -> usize {
        match self.route(from) {
            Route::To { rail, .. } => rail,
            Route::Wait => panic!("the way is known"),
        }
    }

    /// Sends datagrams from both ends for a time, so that the ends observe each other.
    fn talk(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds {
            self.run(Duration::from_millis(1));
            (0..2).for_each(|end| _ = self.rail(end));
        }
    }
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn first_datagram_waits_for_answer_on_rail_0() {
    let mut world = World::new(2);
    assert_eq!(world.route(0), Route::Wait);
    world.run(2 * MS);
    assert_eq!((world.rail(0), world.rail(1)), (0, 0), "the one who was asked answers");
}

#[test]
fn device_without_rail_0_is_found_through_the_group() {
    for (at_0, at_1) in [(2, 3), (3, 2), (2, 2)] {
        let mut world = World::new(2);
        world.set_up(0, at_0);
        world.set_up(1, at_1);
        assert_eq!(world.route(0), Route::Wait);
        world.run(ANSWER_WAIT - 2 * MS);
        assert_eq!((world.rail(0), world.rail(1)), (1, 1));
    }
}

#[test]
fn port_that_goes_down_at_either_end_moves_datagrams_of_both() {
    for down_at in 0..2 {
        let mut world = World::new(3);
        world.ends[0].route(world.now, QPN, gid(1, 0), QPN);
        world.run(2 * MS);
        world.talk(100);
        world.set_up(down_at, 0b110);
        assert_eq!(world.rail(down_at), 1, "an end knows its own ports at once");
        world.run(2 * MS);
        assert_eq!((world.rail(0), world.rail(1)), (1, 1), "the peer was told");
        assert_eq!(world.ends[0].take_moves(), [Move { device: gid(1, 0), from: 0, to: 1 }]);
    }
}

#[test]
fn rails_that_fail_in_turn_and_heal_are_used_again() {
    let mut world = World::new(2);
    world.ends[0].route(world.now, QPN, gid(1, 0), QPN);
    world.run(2 * MS);
    for round in 0..10 {
        let (end, lost) = (round / 2 % 2, round % 2);
        world.set_up(end, 0b11 & !(1 << lost));
        world.talk(100);
        assert_eq!((world.rail(0), world.rail(1)), (1 - lost, 1 - lost), "round {round}");
        world.set_up(end, 0b11);
        world.talk(10);
        assert_eq!(world.rail(0), 1 - lost, "a rail that is up is kept");
    }
}

#[test]
fn silent_path_is_left_and_silent_device_is_not() {
    let mut world = World::new(2);
    world.ends[0].route(world.now, QPN, gid(1, 0), QPN);
    world.run(2 * MS);
    world.talk(100);
    world.cut = 0b01;
    world.talk(u64::from(MAX_MISSES + 2) * PROBE_INTERVAL.as_millis() as u64);
    assert_eq!((world.rail(0), world.rail(1)), (1, 1));
    world.cut = 0b11;
    world.talk(2000);
    assert_eq!(world.rail(0), 1, "no rail is better");
    world.set_up(0, 0b01);
    assert_eq!(world.rail(0), 0, "the only rail that is up is silent, too");
}

#[test]
fn foreign_device_is_addressed_on_rail_0_after_the_wait() {
    let mut world = World::new(2);
    let (now, foreign) = (world.now, gid(9, 0));
    assert_eq!(world.ends[0].route(now, QPN, foreign, QPN), Route::Wait);
    world.run(ANSWER_WAIT);
    let as_addressed = Route::To { rail: 0, gid: foreign, qpn: QPN };
    assert_eq!(world.ends[0].route(world.now, QPN, foreign, QPN), as_addressed);
    assert_eq!(world.ends[0].identify(world.now, 0, foreign, QPN), Some((foreign, QPN)), "it may answer");
    assert_eq!(world.ends[0].identify(world.now, 1, foreign, QPN), None, "it has no address on rail 1");
}

#[test]
fn second_queue_pair_of_a_foreign_device_is_not_awaited() {
    let mut world = World::new(2);
    let (foreign, other) = (gid(9, 0), Qpn::new(0x22));
    assert_eq!(world.ends[0].route(world.now, QPN, foreign, QPN), Route::Wait);
    assert_eq!(world.ends[0].route(world.now, QPN, foreign, other), Route::Wait, "it may answer");
    world.run(ANSWER_WAIT);
    let as_addressed = |qpn| Route::To { rail: 0, gid: foreign, qpn };
    assert_eq!(world.ends[0].route(world.now, QPN, foreign, QPN), as_addressed(QPN));
    let third = Qpn::new(0x33);
    assert_eq!(world.ends[0].route(world.now, QPN, foreign, third), as_addressed(third));
    assert_eq!(world.ends[0].route(world.now, QPN, gid(8, 0), QPN), Route::Wait, "another device");
    // A device that answers for one queue pair is not silent, so a datagram to another queue pair
    // waits for an answer.
    world.ends[0].route(world.now, QPN, gid(1, 0), third);
    world.run(2 * MS);
    assert_eq!(world.ends[0].route(world.now, QPN, gid(1, 0), QPN), Route::Wait);
}

#[test]
fn answer_to_a_foreign_device_leaves_at_once_on_rail_0() {
    let mut world = World::new(2);
    let (foreign, silent) = (gid(9, 0), gid(8, 0));
    assert_eq!(world.ends[0].identify(world.now, 0, foreign, QPN), Some((foreign, QPN)));
    let as_addressed = Route::To { rail: 0, gid: foreign, qpn: QPN };
    assert_eq!(world.ends[0].route(world.now, QPN, foreign, QPN), as_addressed);
    assert_eq!(world.ends[0].route(world.now, QPN, silent, QPN), Route::Wait, "rail 0 may be down there");
    world.run(MS);
    assert_eq!(world.ends[0].route(world.now, QPN, foreign, QPN), as_addressed, "the question is out");
    world.set_up(0, 0b10);
    assert_eq!(world.ends[0].route(world.now, QPN, foreign, QPN), Route::Wait, "rail 0 may come back");
    world.set_up(0, 0b11);
    let last = world.now + IN_USE;
    world.ends[0].identify(last, 0, foreign, QPN);
    let mut route = |own, now| world.ends[0].route(now, Qpn::new(own), foreign, QPN);
    assert_eq!(route(0x22, last + IN_USE), as_addressed);
    assert_eq!(route(0x33, last + IN_USE + MS), Route::Wait, "its rail 0 may have failed since");
}

#[test]
fn device_of_one_rail_is_reached_there() {
    let mut world = World::new(2);
    world.ends[1] = device(1, 1);
    assert_eq!(world.ends[0].route(world.now, QPN, gid(1, 0), QPN), Route::Wait);
    world.run(2 * MS);
    assert_eq!(world.rail(0), 0);
    world.set_up(0, 0b10);
    assert_eq!(world.rail(0), 0, "it has no other rail");
}

#[test]
fn queue_pair_that_does_not_exist_is_addressed_on_rail_0() {
    let mut world = World::new(2);
    let unknown = Qpn::new(0x77);
    assert_eq!(world.ends[0].route(world.now, QPN, gid(1, 0), unknown), Route::Wait);
    world.run(2 * MS);
    let as_addressed = Route::To { rail: 0, gid: gid(1, 0), qpn: unknown };
    assert_eq!(world.ends[0].route(world.now, QPN, gid(1, 0), unknown), as_addressed);
}

#[test]
fn own_queue_pair_is_reached_on_a_rail_that_is_up() {
    let mut world = World::new(2);
    for (up, rail) in [(0b11, 0), (0b10, 1), (0b01, 0)] {
        world.set_up(0, up);
        let own = Route::To { rail, gid: gid(0, rail), qpn: number(QPN, rail) };
        assert_eq!(world.ends[0].route(world.now, QPN, gid(0, 0), QPN), own);
        let sender = world.ends[0].identify(world.now, rail, gid(0, rail), number(QPN, rail));
        assert_eq!(sender, Some((gid(0, 0), QPN)));
    }
}

#[test]
fn copies_of_multicast_datagrams_on_other_rails_have_no_sender() {
    let mut world = World::new(2);
    world.ends[0].route(world.now, QPN, gid(1, 0), QPN);
    world.run(2 * MS);
    assert_eq!(
        world.ends[0].identify(world.now, 1, gid(1, 0), QPN),
        None,
        "sent on rail 0, arrived on rail 1"
    );
    assert_eq!(
        world.ends[0].identify(world.now, 0, gid(1, 1), number(QPN, 1)),
        None,
        "sent on rail 1, arrived on rail 0"
    );
    assert_eq!(world.ends[0].identify(world.now, 0, gid(0, 1), number(QPN, 1)), None, "its own copy");
}

#[test]
fn false_addresses_do_not_displace_a_device_that_is_alive() {
    let mut world = World::new(2);
    world.ends[0].route(world.now, QPN, gid(1, 0), QPN);
    world.run(2 * MS);
    let before = world.ends[0].clone();
    let claim =
        |gids: Vec<Gid>| Reach { kind: ReachKind::Tell, device: DeviceAddress::new(gids, 0b11), qp: None };
    let (now, liar) = (world.now, gid(7, 1));
    let end = &mut world.ends[0];
    assert_eq!(end.handle(now, 1, liar, claim(vec![gid(1, 0), gid(1, 1)])), None, "not where it comes from");
    end.handle(now, 1, liar, claim(vec![gid(1, 0), liar]));
    end.handle(now, 1, liar, claim(vec![gid(0, 0), liar]));
    end.handle(now, 1, liar, claim(vec![liar]));
    assert_eq!(*end, before, "the claims are ignored");
    // A message from the device's own address on rail 0 may change its other addresses.
    end.handle(now, 0, gid(1, 0), claim(vec![gid(1, 0), gid(8, 1)]));
    assert_eq!(end.peers[&gid(1, 0)].address.gids[1], gid(8, 1));
    // Once the device is silent at its old addresses, a message from a new address on rail 1 may
    // change them too.
    end.handle(now + ADDRESS_LIFETIME, 1, gid(9, 1), claim(vec![gid(1, 0), gid(9, 1)]));
    assert_eq!(end.peers[&gid(1, 0)].address.gids[1], gid(9, 1));
}

#[test]
fn tables_are_bounded() {
    let mut directory = device(0, 2);
    for i in 0..2 * MAX_PEERS as u32 {
        let from = Gid::from(IpAddr::from(0x0b00_0000_u32.wrapping_add(i).to_be_bytes()));
        let address = DeviceAddress::new(vec![from], 1);
        let qp = Some(QpNumbers { qpn: QPN, on_rails: vec![QPN] });
        directory.handle(MS * i, 0, from, Reach { kind: ReachKind::Tell, device: address, qp });
    }
    assert_eq!(directory.peers.len(), MAX_PEERS);
    assert_eq!(directory.by_address.len(), MAX_PEERS);
    for i in 0..MAX_DESTINATIONS as u32 + 10 {
        directory.route(MS, QPN, gid(1, 0), Qpn::new(i + 1));
    }
    assert_eq!(directory.destinations.len(), MAX_DESTINATIONS);
    for i in 0..2 * MAX_PEERS as u32 {
        let from = Gid::from(IpAddr::from(0x0c00_0000_u32.wrapping_add(i).to_be_bytes()));
        directory.identify(MS * i, 0, from, QPN);
    }
    assert_eq!(directory.heard.len(), MAX_PEERS);
    let mut table = QpTable::default();
    for i in 0..MAX_QPS as u32 + 10 {
        table.insert(QpNumbers { qpn: Qpn::new(i + 1), on_rails: vec![Qpn::new(i + 1), Qpn::new(i + 7)] });
    }
    assert_eq!((table.qps.len(), table.by_number.len()), (MAX_QPS, 2 * MAX_QPS));
    directory.remove_qp(QPN);
    assert!(directory.destinations.is_empty() && directory.own_qps.by_number.is_empty());
}

#[test]
fn queue_pairs_that_a_device_has_asked_for_are_bounded() {
    let mut world = World::new(2);
    let device = DeviceAddress::new(vec![gid(1, 0), gid(1, 1)], 0b11);
    for i in 0..2 * MAX_QPS as u32 {
        let qpn = Qpn::new(0x1000 + i);
        world.ends[0].add_qp(QpNumbers { qpn, on_rails: vec![qpn; 2] });
        let kind = ReachKind::Ask { device: gid(0, 0), qpn };
        let question = Reach { kind, device: device.clone(), qp: None };
        assert!(world.ends[0].handle(world.now, 0, gid(1, 0), question).is_some());
    }
    assert_eq!(world.ends[0].peers[&gid(1, 0)].told.len(), MAX_QPS);
}

/// If this device accepted a device that states the same GID, the impostor would get the datagrams
/// that this device sends to itself.
#[test]
fn device_with_the_gid_of_this_one_is_ignored() {
    let mut end = device(0, 2);
    let device = DeviceAddress::new(vec![gid(0, 0), gid(9, 1)], 0b11);
    for kind in [ReachKind::Tell, ReachKind::Ask { device: gid(0, 0), qpn: QPN }] {
        let message = Reach { kind, device: device.clone(), qp: None };
        assert_eq!(end.handle(MS, 1, gid(9, 1), message), None);
    }
    let way = Route::To { rail: 0, gid: gid(0, 0), qpn: QPN };
    assert_eq!(end.route(MS, QPN, gid(0, 0), QPN), way);
    assert!(end.peers.is_empty());
}

#[test]
fn destination_in_use_stays_when_idle_ones_make_room() {
    let mut directory = device(0, 2);
    for i in 0..MAX_DESTINATIONS as u32 {
        directory.route(MS, QPN, gid(1, 0), Qpn::new(i + 1));
    }
    let later = MS + 2 * IN_USE;
    let first = directory.destinations.keys().next().copied().expect("there are destinations");
    directory.route(later, QPN, first.gid, first.qpn);
    directory.route(later, QPN, gid(2, 0), QPN);
    assert!(directory.destinations.contains_key(&first));
    assert_eq!(directory.destinations.len(), 2);
}

#[test]
fn number_that_another_queue_pair_has_got_stays_its_own() {
    let mut table = QpTable::default();
    let [first, second] = [0x21, 0x22].map(Qpn::new);
    for qpn in [first, second] {
        table.insert(QpNumbers { qpn, on_rails: vec![qpn, QPN] });
    }
    table.remove(first);
    assert_eq!(table.by_number.get(&(1, QPN)), Some(&second));
}

#[test]
fn address_that_another_device_has_got_stays_its_own() {
    let mut end = device(0, 2);
    let tell = |gids| Reach { kind: ReachKind::Tell, device: DeviceAddress::new(gids, 0b11), qp: None };
    let shared = gid(9, 1);
    end.handle(MS, 0, gid(1, 0), tell(vec![gid(1, 0), shared]));
    end.handle(MS, 0, gid(2, 0), tell(vec![gid(2, 0), shared]));
    end.handle(2 * MS, 0, gid(1, 0), tell(vec![gid(1, 0), gid(1, 1)]));
    assert_eq!(end.by_address.get(&(1, shared)), Some(&gid(2, 0)));
}

#[test]
fn question_for_another_device_is_not_answered() {
    let mut world = World::new(2);
    let kind = ReachKind::Ask { device: gid(5, 0), qpn: QPN };
    let device = DeviceAddress::new(vec![gid(1, 0), gid(1, 1)], 0b11);
    let question = Reach { kind, device, qp: None };
    assert_eq!(world.ends[0].handle(world.now, 1, gid(1, 1), question), None);
}

#[test]
fn queue_pair_that_the_peer_does_not_know_asks_first() {
    let mut world = World::new(2);
    world.ends[0].route(world.now, QPN, gid(1, 0), QPN);
    world.run(2 * MS);
    let other = Qpn::new(0x22);
    world.ends[1].add_qp(QpNumbers { qpn: other, on_rails: vec![number(other, 0), number(other, 1)] });
    assert_eq!(world.ends[1].route(world.now, other, gid(0, 0), QPN), Route::Wait);
    assert_eq!(world.rail(1), 0, "the queue pair that was asked for is known");
}

#[test]
fn queue_pair_of_a_peer_that_was_never_named_is_asked_for() {
    let mut world = World::new(2);
    world.ends[0].route(world.now, QPN, gid(1, 0), QPN);
    world.run(2 * MS);
    let other = Qpn::new(0x22);
    assert_eq!(world.ends[1].route(world.now, QPN, gid(0, 0), other), Route::Wait);
    assert_eq!(world.rail(1), 0, "the queue pair that has asked is known");
}

#[test]
fn number_that_is_used_again_is_told_again() {
    let mut world = World::new(2);
    world.ends[0].route(world.now, QPN, gid(1, 0), QPN);
    world.run(2 * MS);
    world.ends[1].remove_qp(QPN);
    world.ends[1].add_qp(QpNumbers { qpn: QPN, on_rails: vec![QPN, Qpn::new(0x99)] });
    assert_eq!(world.ends[1].route(world.now, QPN, gid(0, 0), QPN), Route::Wait);
    world.run(2 * MS);
    assert_eq!(world.ends[0].identify(world.now, 1, gid(1, 1), Qpn::new(0x99)), Some((gid(1, 0), QPN)));
}

#[test]
fn queue_pair_that_is_gone_is_addressed_on_rail_0() {
    let mut world = World::new(2);
    world.ends[0].route(world.now, QPN, gid(1, 0), QPN);
    world.run(2 * MS);
    world.set_up(1, 0b10);
    world.talk(100);
    assert_eq!(world.rail(0), 1);
    world.ends[1].remove_qp(QPN);
    for _ in 0..20 {
        world.run(100 * MS);
        world.ends[0].route(world.now, QPN, gid(1, 0), QPN);
    }
    let as_addressed = Route::To { rail: 0, gid: gid(1, 0), qpn: QPN };
    assert_eq!(world.ends[0].route(world.now, QPN, gid(1, 0), QPN), as_addressed);
}

#[test]
fn rail_that_was_silent_while_nobody_sent_is_kept() {
    let mut world = World::new(2);
    world.ends[0].route(world.now, QPN, gid(1, 0), QPN);
    world.run(2 * MS);
    world.talk(100);
    world.cut = 0b01;
    world.run(2 * IN_USE);
    world.cut = 0;
    assert_eq!(world.rail(0), 0);
}

#[test]
fn false_address_on_another_rail_does_not_hide_a_device() {
    let mut world = World::new(2);
    world.ends[0].route(world.now, QPN, gid(1, 0), QPN);
    world.run(2 * MS);
    for (liar, hidden) in [(gid(7, 0), gid(1, 0)), (gid(8, 0), gid(0, 0))] {
        let device = DeviceAddress::new(vec![liar, hidden], 0b11);
        let claim = Reach { kind: ReachKind::Tell, device, qp: None };
        world.ends[0].handle(world.now, 0, liar, claim);
        assert_eq!(world.ends[0].identify(world.now, 0, hidden, QPN), Some((hidden, QPN)));
    }
}
