use std::collections::HashSet;

use mitra_verbs::Qpn;

use super::{Home, HomeRail, VqpId};

const MEMBERS: u64 = 3;
const RAILS: u8 = 3;
const GENERATIONS: u64 = 2;

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct World {
    core: HomeRail,
    /// For each vQP, bit i: the NIC of rail i would execute its requests.
    executing: [u8; MEMBERS as usize],
}

fn qpn(member: u64, rail: u8) -> Qpn {
    Qpn::new(100 + member as u32 * 10 + u32::from(rail))
}

impl World {
    fn fence_next(&self, rail: u8) -> Option<World> {
        let (member, on, fenced) = self.core.next_to_fence(rail)?;
        assert_eq!(fenced, qpn(member.0, on));
        let mut next = self.clone();
        next.executing[member.0 as usize] &= !(1 << on);
        next.core.unbind(member, on);
        Some(next)
    }

    fn bind(&self, member: u64, to: Home) -> World {
        let (mut next, is_newer) = (self.clone(), self.core.is_newer_than(to));
        if next.core.bind(VqpId(member), to, qpn(member, to.rail)) {
            next.executing[member as usize] |= 1 << to.rail;
            assert!(!is_newer && next.core.home() >= self.core.home() && next.core.home() >= to);
        } else {
            assert_eq!(next, *self, "a refused bind changes nothing");
        }
        next
    }

    fn successors(&self) -> Vec<World> {
        let mut next = Vec::new();
        for rail in 0..RAILS {
            // A move may end after any number of fences.
            next.extend(self.fence_next(rail));
            let mut reset = self.clone();
            reset.executing.iter_mut().for_each(|rails| *rails &= !(1 << rail));
            reset.core.unbind_all(rail);
            next.push(reset);
            for member in 0..MEMBERS {
                next.extend((0..=GENERATIONS).map(|generation| self.bind(member, Home { generation, rail })));
            }
        }
        for member in 0..MEMBERS {
            let mut left = self.clone();
            while let Some((rail, _)) = left.core.next_of(VqpId(member)) {
                left.core.unbind(VqpId(member), rail);
            }
            left.executing[member as usize] = 0;
            assert!((0..RAILS).all(|rail| !left.core.is_bound(VqpId(member), rail)));
            next.push(left);
        }
        next.retain(|world| world.core.home().generation <= GENERATIONS);
        next
    }
}

fn explore(first: World) -> HashSet<World> {
    let mut seen = HashSet::from([first.clone()]);
    let mut open = vec![first];
    while let Some(world) = open.pop() {
        open.extend(world.successors().into_iter().filter(|next| seen.insert(next.clone())));
    }
    seen
}

/// Every order of binds, fences, resets and ends of three vQPs on three rails.
#[test]
fn all_queue_pairs_that_execute_requests_are_on_the_home_rail() {
    let mut first = World::default();
    first.core.share();
    let worlds = explore(first);
    for world in &worlds {
        for (member, rails) in world.executing.into_iter().enumerate() {
            assert_eq!(rails & !(1 << world.core.home().rail), 0, "{world:?}");
            let is_bound = |rail| world.core.is_bound(VqpId(member as u64), rail);
            assert!((0..RAILS).all(|rail| is_bound(rail) == (rails & (1 << rail) != 0)), "{world:?}");
        }
    }
    // Each set of bound vQPs occurs on each home.
    let homes: HashSet<(Home, [u8; MEMBERS as usize])> =
        worlds.iter().map(|world| (world.core.home(), world.executing)).collect();
    assert_eq!(homes.len(), 8 * usize::from(RAILS) * (GENERATIONS as usize + 1));
}

fn at(rail: u8) -> Home {
    Home { generation: 0, rail }
}

/// Of two homes of one generation, the one with the higher rail counts as newer, so two ends that
/// choose at the same time agree.
#[test]
fn older_home_replaces_a_newer_one_only_if_nobody_is_there() {
    let (older, newer) = (Home { generation: 1, rail: 1 }, Home { generation: 1, rail: 2 });
    let mut core = HomeRail::default();
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
    let mut core = HomeRail::default();
    assert!(core.bind(VqpId(0), at(0), qpn(0, 0)) && core.bind(VqpId(1), at(1), qpn(1, 1)));
    assert_eq!(core.next_to_fence(0), None);
    core.share();
    let split = Home { generation: 1, rail: 0 };
    assert_eq!((core.home(), core.next_to_fence(0)), (split, Some((VqpId(1), 1, qpn(1, 1)))));
    assert_eq!(core.next_to_fence(1), Some((VqpId(0), 0, qpn(0, 0))), "the home may move at once");
    assert!(!core.bind(VqpId(0), at(0), qpn(0, 0)), "a queue pair is bound to rail 1");
    core.unbind(VqpId(1), 1);
    assert!(core.bind(VqpId(0), at(0), qpn(0, 0)));
}

/// The vQP has followed the home of its peer. Its process then shares atomics too, with a first
/// home that is not older than the peer's.
#[test]
fn first_home_is_as_new_as_those_that_the_vqps_have_followed() {
    let mut core = HomeRail::default();
    let followed = Home { generation: 7, rail: 1 };
    assert!(core.bind(VqpId(0), followed, qpn(0, 1)));
    core.share();
    assert_eq!(core.home(), followed);
}

#[test]
fn only_a_bound_queue_pair_is_replaced() {
    let mut core = HomeRail::default();
    core.share();
    assert!(!core.replace(VqpId(0), 0, qpn(0, 0)));
    assert!(core.bind(VqpId(0), at(0), qpn(0, 0)) && core.replace(VqpId(0), 0, qpn(1, 1)));
    assert_eq!(core.next_to_fence(1), Some((VqpId(0), 0, qpn(1, 1))));
}

/// A queue pair that the vQP has left may give its number to another queue pair later. The other
/// queue pair must not be fenced.
#[test]
fn vqp_that_does_not_share_atomics_is_bound_to_one_rail() {
    let mut core = HomeRail::default();
    let (first, second) = (VqpId(0), VqpId(1));
    assert!(core.bind(first, at(0), qpn(0, 0)) && core.bind(second, at(0), qpn(1, 0)));
    assert!(core.bind(first, at(1), qpn(0, 1)));
    assert_eq!(core.next_of(first), Some((1, qpn(0, 1))));
    assert!(!core.is_bound(first, 0) && core.is_bound(second, 0));
}
