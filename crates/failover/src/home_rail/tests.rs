use std::collections::HashSet;

use mitra_verbs::Qpn;

use super::{Home, HomeRail, VqpId};

const MEMBERS: u64 = 3;
const RAILS: u8 = 3;
const GENERATIONS: u64 = 2;

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct World {
    core: HomeRail<Qpn>,
    /// For each vQP, bit i: the NIC of rail i may execute its requests.
    executing: [u8; MEMBERS as usize],
}

/// What unbinds a stopped queue pair from the home rail.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FencedBy {
    /// The vQP has fenced the queue pair.
    Markers,
    /// The queue pair is in ERR.
    Err,
}

fn qpn(member: u64, rail: u8) -> Qpn {
    Qpn::new(100 + member as u32 * 10 + u32::from(rail))
}

impl World {
    fn stop_next(&self, rail: u8, by: FencedBy) -> Option<World> {
        let (member, on) = self.core.next_to_stop(rail)?;
        let mut next = self.clone();
        assert_eq!(next.core.qp_mut(member, on), Some(&mut qpn(member.0, on)));
        next.core.stop(member, on);
        assert!(!next.core.is_bound(member, on) && next.core.is_stopping(member, on));
        if by == FencedBy::Err {
            next.core.unbind(member, on);
        }
        Some(next)
    }

    /// The last packet of a stopped queue pair is executed, and its vQP finds the markers.
    fn finish(&self, member: u64, rail: u8) -> Option<World> {
        let is_executing = self.executing[member as usize] & (1 << rail) != 0;
        if !is_executing || self.core.is_bound(VqpId(member), rail) {
            return None;
        }
        let mut next = self.clone();
        next.executing[member as usize] &= !(1 << rail);
        next.core.unbind(VqpId(member), rail);
        Some(next)
    }

    /// Binds the vQP, or announces the home for which it waits. A vQP does neither if the home is
    /// newer.
    fn bind(&self, member: u64, to: Home) -> World {
        let mut next = self.clone();
        if self.core.is_newer_than(to) {
            return next;
        }
        if next.core.bind(VqpId(member), to, qpn(member, to.rail)) {
            next.executing[member as usize] |= 1 << to.rail;
            assert!(next.core.home() >= self.core.home() && next.core.home() >= to);
            return next;
        }
        assert_eq!(next, *self, "a refused bind changes nothing");
        if self.core.next_to_stop(to.rail).is_none() {
            next.core.announce(to);
        }
        next
    }

    fn successors(&self, by: FencedBy) -> Vec<World> {
        let mut next = Vec::new();
        for rail in 0..RAILS {
            // A move may end after any number of stops.
            next.extend(self.stop_next(rail, by));
            let mut reset = self.clone();
            reset.executing.iter_mut().for_each(|rails| *rails &= !(1 << rail));
            reset.core.unbind_all(rail);
            next.push(reset);
            for member in 0..MEMBERS {
                next.extend(self.finish(member, rail));
                next.extend((0..=GENERATIONS).map(|generation| self.bind(member, Home { generation, rail })));
            }
        }
        for member in 0..MEMBERS {
            let mut left = self.clone();
            while let Some(rail) = left.core.next_of(VqpId(member)) {
                left.core.unbind(VqpId(member), rail);
            }
            left.core.unbind_stopped(VqpId(member));
            left.executing[member as usize] = 0;
            assert!((0..RAILS).all(|rail| !left.knows(member, rail)));
            next.push(left);
        }
        next.retain(|world| world.core.home().generation <= GENERATIONS);
        next
    }

    fn knows(&self, member: u64, rail: u8) -> bool {
        self.core.is_bound(VqpId(member), rail) || self.core.is_stopping(VqpId(member), rail)
    }

    fn is_any_bound(&self) -> bool {
        (0..MEMBERS).any(|member| self.core.next_of(VqpId(member)).is_some())
    }

    /// Whether atomics of one word may be executed by two NICs, or by another one than the home's.
    fn is_torn(&self) -> bool {
        let outside = !(1 << self.core.home().rail);
        self.is_any_bound() && self.executing.iter().any(|rails| rails & outside != 0)
    }
}

fn explore(first: World, by: FencedBy) -> HashSet<World> {
    let mut seen = HashSet::from([first.clone()]);
    let mut open = vec![first];
    while let Some(world) = open.pop() {
        open.extend(world.successors(by).into_iter().filter(|next| seen.insert(next.clone())));
    }
    seen
}

fn shared() -> World {
    let mut first = World::default();
    first.core.share();
    first
}

/// Every order of binds, stops, fences, resets and ends of three vQPs on three rails.
#[test]
fn all_queue_pairs_that_execute_requests_are_on_the_home_rail() {
    let worlds = explore(shared(), FencedBy::Markers);
    for world in &worlds {
        assert!(!world.is_torn(), "{world:?}");
        for (member, rails) in world.executing.into_iter().enumerate() {
            let is_known = |rail| world.knows(member as u64, rail);
            assert!((0..RAILS).all(|rail| is_known(rail) == (rails & (1 << rail) != 0)), "{world:?}");
        }
    }
    // Each set of bound vQPs occurs on each home.
    let settled = worlds.iter().filter(|world| !world.core.is_moving());
    let homes: HashSet<(Home, [u8; MEMBERS as usize])> =
        settled.map(|world| (world.core.home(), world.executing)).collect();
    assert_eq!(homes.len(), 8 * usize::from(RAILS) * (GENERATIONS as usize + 1));
}

/// A queue pair in ERR may still execute a packet that it has begun.
#[test]
fn change_to_err_is_no_fence() {
    assert!(explore(shared(), FencedBy::Err).iter().any(World::is_torn));
}

/// The vQPs of a home that is being left follow at once, and are bound when the last is fenced.
#[test]
fn home_is_announced_while_queue_pairs_stop() {
    let mut core = HomeRail::<Qpn>::default();
    core.share();
    let (first, second) = (VqpId(0), VqpId(1));
    assert!(core.bind(first, at(0), qpn(0, 0)) && core.bind(second, at(0), qpn(1, 0)));
    core.unbind(first, 0);
    core.stop(second, 0);
    let to = at(0).moved_to(1);
    assert!(core.is_moving() && !core.bind(first, to, qpn(0, 1)));
    core.announce(to);
    assert_eq!((core.home(), core.stopping_outside(1).collect::<Vec<_>>()), (to, vec![(second, 0)]));
    core.unbind(second, 0);
    assert!(!core.is_moving() && core.bind(first, to, qpn(0, 1)) && core.home() == to);
}

fn at(rail: u8) -> Home {
    Home { generation: 0, rail }
}

/// Of two homes of one generation, the one with the higher rail counts as newer, so two ends that
/// choose at the same time agree.
#[test]
fn older_home_replaces_a_newer_one_only_if_nobody_is_there() {
    let (older, newer) = (Home { generation: 1, rail: 1 }, Home { generation: 1, rail: 2 });
    let mut core = HomeRail::<Qpn>::default();
    core.share();
    assert!(core.bind(VqpId(0), older, qpn(0, 1)) && !core.is_newer_than(newer));
    core.unbind(VqpId(0), 1);
    assert!(core.bind(VqpId(0), newer, qpn(0, 2)) && core.is_newer_than(older));
    core.unbind(VqpId(0), 2);
    assert!(!core.is_newer_than(older) && core.bind(VqpId(1), older, qpn(1, 1)));
    assert_eq!(core.home(), Home { generation: 2, rail: 1 });
}

#[test]
fn without_sharing_each_vqp_has_its_own_rail() {
    let mut core = HomeRail::<Qpn>::default();
    assert!(core.bind(VqpId(0), at(0), qpn(0, 0)) && core.bind(VqpId(1), at(1), qpn(1, 1)));
    assert_eq!(core.next_to_stop(0), None);
    core.share();
    let split = Home { generation: 1, rail: 0 };
    assert_eq!((core.home(), core.next_to_stop(0)), (split, Some((VqpId(1), 1))));
    assert_eq!(core.next_to_stop(1), Some((VqpId(0), 0)), "the home may move at once");
    assert!(!core.bind(VqpId(0), at(0), qpn(0, 0)), "a queue pair is bound to rail 1");
    core.unbind(VqpId(1), 1);
    assert!(core.bind(VqpId(0), at(0), qpn(0, 0)));
}

/// The vQP has followed the home of its peer. Its process then shares atomics too, with a first
/// home that is not older than the peer's.
#[test]
fn first_home_is_as_new_as_those_that_the_vqps_have_followed() {
    let mut core = HomeRail::<Qpn>::default();
    let followed = Home { generation: 7, rail: 1 };
    assert!(core.bind(VqpId(0), followed, qpn(0, 1)));
    core.share();
    assert_eq!(core.home(), followed);
}

#[test]
fn only_a_bound_queue_pair_is_replaced() {
    let mut core = HomeRail::<Qpn>::default();
    core.share();
    assert!(!core.replace(VqpId(0), 0, qpn(0, 0)));
    assert!(core.bind(VqpId(0), at(0), qpn(0, 0)) && core.replace(VqpId(0), 0, qpn(1, 1)));
    assert_eq!(core.qp_mut(VqpId(0), 0), Some(&mut qpn(1, 1)));
}

/// A queue pair that the vQP has left may give its number to another queue pair later. The other
/// queue pair must not be fenced.
#[test]
fn vqp_that_does_not_share_atomics_is_bound_to_one_rail() {
    let mut core = HomeRail::<Qpn>::default();
    let (first, second) = (VqpId(0), VqpId(1));
    assert!(core.bind(first, at(0), qpn(0, 0)) && core.bind(second, at(0), qpn(1, 0)));
    assert!(core.bind(first, at(1), qpn(0, 1)));
    assert_eq!((core.next_of(first), core.qp_mut(first, 1)), (Some(1), Some(&mut qpn(0, 1))));
    assert!(!core.is_bound(first, 0) && core.is_bound(second, 0));
}
