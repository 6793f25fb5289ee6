//! The liveness rule of failover: while some rail is usable at both ends, posted work completes.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use mitra_failover::{CloseReason, Config, Policy};
use mitra_verbs::Time;

use crate::absences::Part;
use crate::workload::FailoverQp;
use crate::world_state::lock;
use crate::{HostId, World};

impl World {
    /// Returns the longest time for which these two hosts had no usable rail: on each rail, a NIC
    /// was dead, hung, reset or starved, or a link was down. A paused host has no usable rail. A
    /// rail that becomes usable again counts only after `settle`, because a move needs some time.
    /// Packet loss on a link that is up does not make a rail unusable. The result is
    /// [`Duration::MAX`] if the isolation has not ended, or if all addresses of the hosts have
    /// changed, because the hosts may have lost each other.
    pub fn longest_isolation(&self, hosts: [HostId; 2], settle: Duration) -> Duration {
        let world = lock(&self.shared);
        if world.nics.iter().any(|nic| nic.replaced) {
            return Duration::MAX; // the absences of the replaced NIC are not known
        }
        let mut rails: BTreeMap<u8, Vec<usize>> = BTreeMap::new();
        for (n, nic) in world.nics.iter().enumerate().filter(|(_, nic)| hosts.contains(&HostId(nic.host))) {
            rails.entry(nic.rail).or_default().push(n);
        }
        let has_moved = |&n: &usize| world.nics[n].address_changes > 0;
        if rails.values().flatten().all(has_moved) {
            return Duration::MAX;
        }
        let mut absent = BTreeSet::new();
        let (mut longest, mut since, mut usable_since) = (Duration::ZERO, None, Some(Time::ZERO));
        let end = (world.now, Part::Host(usize::MAX), true);
        for &(at, part, is_absent) in world.absences.changes.iter().chain([&end]) {
            if is_absent {
                absent.insert(part)
            } else {
                absent.remove(&part)
            };
            let is_host_absent = hosts.iter().any(|host| absent.contains(&Part::Host(host.0)));
            let is_present =
                |&n: &usize| !absent.contains(&Part::Nic(n)) && !absent.contains(&Part::Starved(n));
            let is_usable =
                !is_host_absent && rails.values().any(|nics| nics.len() == 2 && nics.iter().all(is_present));
            if usable_since.is_some_and(|usable: Time| at.saturating_since(usable) >= settle) {
                since = None;
            }
            match is_usable {
                true => _ = usable_since.get_or_insert(at),
                false => {
                    usable_since = None;
                    since.get_or_insert(at);
                }
            }
            if let Some(since) = since {
                longest = longest.max(at.saturating_since(since));
            }
        }
        if usable_since.is_none() { Duration::MAX } else { longest }
    }
}

/// Checks the liveness rule for the two ends of a queue pair over several rails, on `hosts`.
/// Returns whether the rule applied: a rail was usable at all times, apart from times shorter than
/// half of `peer_timeout`.
///
/// The rule does not apply in three cases:
/// - An end has closed for a reason that is not about rails: its program, an invalid request, or a
///   NIC that lies or cannot be stopped. The other end may then find no peer on any rail.
/// - The links drop large packets. Such a link looks up and is not.
/// - An end has [`Policy::None`]. Its vQP closes when its rail fails.
///
/// # Errors
/// The end that has closed for lack of a rail.
pub fn check_liveness<Q: FailoverQp>(
    world: &World,
    hosts: [HostId; 2],
    ends: [&Q; 2],
) -> Result<bool, String> {
    check_close_reasons(world, hosts, ends.map(Q::config), ends.map(Q::close_reason))
}

/// Checks the liveness rule like [`check_liveness`], for two ends that closed for these reasons.
/// `None` is an open end.
///
/// # Errors
/// The end that has closed for lack of a rail.
pub fn check_close_reasons(
    world: &World,
    hosts: [HostId; 2],
    configs: [Config; 2],
    reasons: [Option<CloseReason>; 2],
) -> Result<bool, String> {
    let peer_timeout = configs.iter().map(|config| config.peer_timeout).min().unwrap_or_default();
    let drops_large_packets = world.config().link.max_packet_bytes < usize::MAX;
    if drops_large_packets || configs.iter().any(|config| config.policy == Policy::None) {
        return Ok(false);
    }
    let isolation = world.longest_isolation(hosts, peer_timeout / 8);
    if isolation >= peer_timeout / 2 {
        return Ok(false);
    }
    let lacks_rail = |reason: &CloseReason| {
        matches!(
            reason,
            CloseReason::NoRail
                | CloseReason::PeerUnreachable
                | CloseReason::PeerExited
                | CloseReason::FailedDuringRecovery
        )
    };
    let is_of_rails = |reason: &CloseReason| lacks_rail(reason) || *reason == CloseReason::PeerClosed;
    if !reasons.iter().flatten().all(is_of_rails) {
        return Ok(false);
    }
    match reasons.iter().flatten().find(|reason| lacks_rail(reason)) {
        Some(reason) => Err(format!(
            "an end closed as {reason:?} although both ends had a usable rail, apart from {isolation:?}; {reasons:?}"
        )),
        None => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Failure, Testbed};

    const MS: Duration = Duration::from_millis(1);

    fn testbed() -> Testbed {
        Testbed::with_config(1, crate::Config::fault_free(), 2)
    }

    #[test]
    fn links_that_fail_in_turn_isolate_nobody() {
        let mut t = testbed();
        for rail in [0, 1, 0] {
            let nic = t.rail(rail)[rail];
            t.world.set_link(nic, false);
            t.world.run_for(10 * MS);
            t.world.set_link(nic, true);
            t.world.run_for(5 * MS);
        }
        assert_eq!(t.world.longest_isolation(t.hosts, MS), Duration::ZERO);
    }

    #[test]
    fn hosts_whose_addresses_have_all_changed_are_isolated() {
        let mut t = testbed();
        for rail in 0..2 {
            for nic in t.rail(rail) {
                assert_eq!(t.world.longest_isolation(t.hosts, MS), Duration::ZERO);
                t.world.change_address(nic);
            }
        }
        assert_eq!(t.world.longest_isolation(t.hosts, MS), Duration::MAX);
    }

    #[test]
    fn isolation_lasts_while_each_rail_or_a_host_is_absent() {
        let mut t = testbed();
        let (a0, b1) = (t.rail(0)[0], t.rail(1)[1]);
        t.world.set_link(a0, false);
        t.world.run_for(10 * MS);
        t.world.set_link(b1, false);
        t.world.run_for(3 * MS);
        t.world.set_link(a0, true);
        t.world.run_for(MS);
        t.world.fail(a0, Failure::NicHung);
        t.world.run_for(2 * MS);
        assert_eq!(t.world.longest_isolation(t.hosts, MS / 2), Duration::MAX, "it lasts");
        t.world.set_link(b1, true);
        t.world.run_for(10 * MS);
        assert_eq!(t.world.longest_isolation(t.hosts, MS / 2), 3 * MS);
        assert_eq!(t.world.longest_isolation(t.hosts, 2 * MS), 6 * MS, "one usable millisecond is too short");
        t.world.pause(t.hosts[1], None);
        t.world.run_for(8 * MS);
        t.world.resume(t.hosts[1]);
        t.world.run_for(MS);
        assert_eq!(t.world.longest_isolation(t.hosts, MS / 2), 8 * MS);
    }
}
