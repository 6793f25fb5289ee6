//! The messages that a directory sends without having been asked.

use super::*;

#[test]
fn ports_that_changed_while_nobody_sent_are_asked_for_at_once() {
    let mut world = World::new(2);
    world.ends[0].route(world.now, QPN, gid(1, 0), QPN);
    world.run(2 * MS);
    world.talk(100);
    world.run(2 * IN_USE);
    world.set_up(1, 0b10);
    assert_eq!(world.rail(0), 0, "nobody was told");
    world.run(2 * MS);
    assert_eq!(world.rail(0), 1);
}

#[test]
fn receiver_is_told_of_the_ports_of_a_sender() {
    let mut world = World::new(2);
    world.ends[0].route(world.now, QPN, gid(1, 0), QPN);
    world.run(2 * MS);
    world.rail(0);
    world.run(2 * PROBE_INTERVAL);
    world.set_up(0, 0b10);
    world.run(2 * MS);
    assert_eq!(world.ends[1].peers[&gid(0, 0)].address.up, 0b10);
}

#[test]
fn group_is_asked_only_while_rail_0_is_silent() {
    let mut world = World::new(2);
    world.ends[0].route(world.now, QPN, gid(9, 0), QPN);
    let sent = world.sent_by(0, 200 * MS);
    let at = |rail: usize| -> Vec<_> {
        let on_rail = sent.iter().filter(|(_, message)| message.rail == rail);
        on_rail.map(|(time, _)| (time.as_millis() as u64).div_ceil(ASK_INTERVAL.as_millis() as u64)).collect()
    };
    assert_eq!(at(0), (1..=10).collect::<Vec<_>>(), "each interval");
    assert_eq!(at(1), [4, 8]);
    assert!(sent.iter().all(|(_, message)| message.to.is_none() == (message.rail == 1)));
}

#[test]
fn device_of_one_rail_is_not_searched_on_others() {
    let mut world = World::new(2);
    world.ends[1] = device(1, 1);
    world.ends[0].route(world.now, QPN, gid(1, 0), QPN);
    world.run(2 * MS);
    for _ in 0..20 {
        world.rail(0);
        let sent = world.sent_by(0, 250 * MS);
        assert!(sent.iter().all(|(_, message)| message.to == Some(gid(1, 0))), "{sent:?}");
    }
}

#[test]
fn nothing_is_sent_while_nobody_sends() {
    let mut world = World::new(2);
    world.ends[0].route(world.now, QPN, gid(1, 0), QPN);
    world.ends[0].route(world.now, QPN, gid(9, 0), QPN);
    world.run(2 * MS);
    world.talk(100);
    assert!(!world.sent_by(0, PROBE_INTERVAL).is_empty());
    world.run(IN_USE);
    for end in 0..2 {
        assert_eq!(world.sent_by(end, 5 * IN_USE), []);
    }
    world.set_up(0, 0b10);
    world.ends[0].multicast_rail(world.now, QPN);
    assert!(!world.sent_by(0, MS).is_empty());
    world.ends[0].remove_qp(QPN);
    assert_eq!(world.sent_by(0, IN_USE), [], "the queue pair is gone");
}

#[test]
fn sender_to_groups_is_announced_without_rail_0() {
    let mut world = World::new(2);
    assert_eq!(world.ends[0].multicast_rail(world.now, QPN), (0, false));
    world.set_up(0, 0b10);
    assert_eq!(world.ends[0].multicast_rail(world.now, QPN), (1, true), "it was unknown");
    world.run(2 * MS);
    assert_eq!(world.ends[1].identify(world.now, 1, gid(0, 1), number(QPN, 1)), Some((gid(0, 0), QPN)));
}

/// A receiver may have missed an announcement, or may attach itself to the group later.
#[test]
fn announcement_is_repeated_until_rail_0_is_up() {
    let mut world = World::new(2);
    world.set_up(0, 0b10);
    world.ends[0].multicast_rail(world.now, QPN);
    let to_group = |world: &mut World| {
        let sent = world.sent_by(0, Duration::from_secs(1));
        sent.into_iter()
            .filter(|(_, message)| message.to.is_none())
            .map(|(_, message)| message.rail)
            .collect::<Vec<_>>()
    };
    assert_eq!(to_group(&mut world), [1; 10]);
    world.set_up(0, 0b11);
    assert!(to_group(&mut world).is_empty());
}

#[test]
fn end_that_only_receives_tells_of_its_ports() {
    let mut world = World::new(2);
    world.ends[0].route(world.now, QPN, gid(1, 0), QPN);
    for _ in 0..80 {
        world.run(MS);
        world.rail(0);
    }
    world.set_up(1, 0b10);
    world.run(2 * MS);
    assert_eq!(world.rail(0), 1);
}

#[test]
fn changed_port_is_told_a_few_times_at_short_intervals() {
    let mut world = World::new(2);
    world.ends[0].route(world.now, QPN, gid(1, 0), QPN);
    world.run(2 * MS);
    world.set_up(1, 0b10);
    let told: Vec<_> = world.sent_by(1, IN_USE).into_iter().map(|(at, out)| (at, out.rail)).collect();
    assert_eq!(told, [MS, MS + ASK_INTERVAL, MS + 2 * ASK_INTERVAL].map(|at| (at, 1)));
}

#[test]
fn message_that_is_lost_is_told_again() {
    let mut world = World::new(2);
    world.ends[0].route(world.now, QPN, gid(1, 0), QPN);
    world.run(2 * MS);
    world.talk(100);
    world.cut = 0b11;
    world.set_up(1, 0b10);
    world.run(2 * MS);
    world.cut = 0;
    world.run(ASK_INTERVAL + 2 * MS);
    assert_eq!(world.rail(0), 1);
}
