//! Devices whose addresses change. Programs continue to use the GIDs that they know.

use super::*;

/// The address that an end has on a rail after `change` changes.
fn changed(end: usize, rail: usize, change: u8) -> Gid {
    IpAddr::from([10, rail as u8, change, end as u8]).into()
}

impl World {
    /// Changes the addresses of an end on these rails.
    fn change(&mut self, end: usize, rails: &[usize], change: u8) {
        let mut gids = self.ends[end].own.gids.clone();
        rails.iter().for_each(|rail| gids[*rail] = changed(end, *rail, change));
        self.ends[end].set_gids(self.now, &gids);
    }

    /// Sends datagrams from both ends for a long time. If an end no longer answers at its known
    /// addresses, the other end searches for it in this time. The datagrams may be lost.
    fn send_until_silent(&mut self) {
        let until = self.now + 3 * ADDRESS_LIFETIME;
        while self.now < until {
            self.run(10 * MS);
            (0..2).for_each(|end| _ = self.ends[end].route(self.now, QPN, gid(1 - end, 0), QPN));
        }
    }

    fn talking() -> World {
        let mut world = World::new(2);
        world.ends[0].route(world.now, QPN, gid(1, 0), QPN);
        world.run(2 * MS);
        world.talk(100);
        world
    }
}

#[test]
fn address_of_any_rail_is_followed_whichever_rail_is_used() {
    for down in [None, Some(0), Some(1)] {
        for (end, rail) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let mut world = World::talking();
            if let Some(down) = down {
                world.set_up(0, 0b11 & !(1 << down));
                world.run(5 * MS);
            }
            for change in 1..10 {
                world.change(end, &[rail], change);
                match down == Some(1 - rail) {
                    false => world.run(2 * MS),
                    true => world.send_until_silent(), // no other rail can report the change
                }
                world.talk(30);
                assert_eq!(world.rail(0), usize::from(down == Some(0)));
            }
        }
    }
}

#[test]
fn device_whose_addresses_all_change_at_once_is_found_when_it_is_silent() {
    for end in 0..2 {
        let mut world = World::talking();
        world.change(end, &[0, 1], 1);
        world.send_until_silent();
        world.talk(30);
        // The address changes again. The peer knows the end only by the former GID.
        world.change(end, &[0], 2);
        world.run(2 * MS);
        world.talk(30);
    }
}

#[test]
fn device_is_found_by_a_gid_that_it_had_before_the_first_contact() {
    let mut world = World::new(2);
    world.change(1, &[0], 1);
    world.change(1, &[0], 2);
    assert_eq!(world.route(0), Route::Wait);
    world.run(ANSWER_WAIT - 2 * MS);
    assert_eq!((world.rail(0), world.ends[0].peers.len()), (0, 1));
    world.ends[0].route(world.now, QPN, changed(1, 0, 2), QPN);
    world.run(2 * MS);
    let present = world.ends[0].route(world.now, QPN, changed(1, 0, 2), QPN);
    assert_eq!(present, world.route(0), "both GIDs are those of one device");
}

#[test]
fn own_former_gid_is_the_device_itself() {
    let mut world = World::new(2);
    world.change(0, &[0], 1);
    let own = Route::To { rail: 0, gid: changed(0, 0, 1), qpn: QPN };
    for known in [gid(0, 0), changed(0, 0, 1)] {
        assert_eq!(world.ends[0].route(world.now, QPN, known, QPN), own);
    }
}

#[test]
fn gid_of_a_device_that_is_alive_cannot_be_claimed_as_a_former_one() {
    let mut world = World::talking();
    let before = world.route(0);
    let (liar, now) = (gid(7, 1), world.now);
    let mut device = DeviceAddress::new(vec![gid(1, 0), liar], 0b11);
    device.set_gids(vec![gid(7, 0), liar]);
    let claim = Reach { kind: ReachKind::Tell, device, qp: None };
    world.ends[0].handle(now, 1, liar, claim.clone());
    assert_eq!(world.route(0), before);
    // The claim is also refused after the device has another GID.
    world.change(1, &[0], 1);
    world.run(2 * MS);
    let followed = world.route(0);
    world.ends[0].handle(world.now, 1, liar, claim.clone());
    assert_eq!(world.route(0), followed);
    // Once the device is silent, the claim may be true.
    world.ends[0].handle(now + 3 * ADDRESS_LIFETIME, 1, liar, claim);
    assert_eq!(world.ends[0].present(gid(1, 0)), gid(7, 0));
}

#[test]
fn device_that_gets_the_former_gid_of_another_is_reached_by_it() {
    let mut world = World::talking();
    world.change(1, &[0], 1);
    world.run(2 * MS);
    assert_eq!(world.ends[0].present(gid(1, 0)), changed(1, 0, 1));
    let device = DeviceAddress::new(vec![gid(1, 0), gid(8, 1)], 0b11);
    let qp = Some(QpNumbers { qpn: QPN, on_rails: vec![QPN, QPN] });
    let kind = ReachKind::Ask { device: gid(0, 0), qpn: QPN };
    world.ends[0].handle(world.now, 0, gid(1, 0), Reach { kind, device, qp });
    let to = world.ends[0].route(world.now, QPN, gid(1, 0), QPN);
    assert_eq!(to, Route::To { rail: 0, gid: gid(1, 0), qpn: QPN });
}

#[test]
fn first_gid_is_followed_through_any_number_of_changes() {
    let mut world = World::talking();
    for change in 1..200 {
        world.change(1, &[0], change);
        world.talk(5);
    }
    assert_eq!(world.ends[0].renamed.len(), 1, "the program knows one GID");
    assert_eq!((world.ends[0].peers.len(), world.ends[0].by_address.len()), (1, 2));
}

#[test]
fn own_former_gid_that_another_device_has_got_is_that_device() {
    let mut end = device(0, 2);
    end.set_gids(MS, &[gid(7, 0), gid(0, 1)]);
    let device = DeviceAddress::new(vec![gid(0, 0), gid(9, 1)], 0b11);
    let tell = Reach { kind: ReachKind::Tell, device, qp: None };
    end.handle(MS, 0, gid(0, 0), tell);
    assert_eq!(end.route(MS, QPN, gid(0, 0), QPN), Route::Wait);
    assert!(matches!(end.route(MS, QPN, gid(7, 0), QPN), Route::To { rail: 0, .. }), "it is this device");
}
