//! The search, on all rails but rail 0, for the device that has a GID.
//!
//! Programs exchange the GID of rail 0, and a device cannot be addressed by it if rail 0 of either
//! end is down. The queue pairs 1 of all rails but rail 0 are members of a multicast group. A query
//! without an answer asks the group on each of these rails which device has the GID. The device
//! that has it, or had it before its address changed, answers the sender. The query then goes to
//! the address from which the answer came.
//!
//! Any host on the rail can claim the GID, as any host can send from the address of rail 0
//! (docs/security.md). A false claim does not displace the owner: the query goes to several
//! addresses, and only connection data that agree with the GID and the address end the query.

use mitra_failover::ConnectInfo;
use mitra_verbs::Gid;

use crate::rails::rail_address::RailAddress;

/// The maximum number of addresses that a search finds. Further claims are dropped.
const MAX_OWNERS: usize = 8;
/// The number of transmissions of a query on rail 0 before the group is asked. If rail 0 is down at
/// this end, the group is asked with the first transmission.
const FIRST_QUESTION: u32 = 3;
/// The number of transmissions from one question to the next. It bounds the load on a rail's
/// members.
const QUESTION_INTERVAL: u32 = 4;

/// A search of this end.
#[derive(Clone, Debug)]
pub(crate) struct OwnerSearch {
    /// The id of the questions. It must be unpredictable. It differs from the id of the query,
    /// because all members of the multicast group see the id of a question.
    pub(crate) id: u64,
    pub(crate) gid: Gid,
    /// The answers: the address from which each came, and the present GID of the device.
    owners: Vec<(RailAddress, Gid)>,
}

impl OwnerSearch {
    pub(crate) fn new(id: u64, gid: Gid) -> OwnerSearch {
        OwnerSearch { id, gid, owners: Vec::new() }
    }

    /// Returns the rails and addresses of the devices that claim to have the GID.
    pub(crate) fn owners(&self) -> impl Iterator<Item = RailAddress> {
        self.owners.iter().map(|(address, _)| *address)
    }

    /// Records a device that claims to have the GID, or to have had it. `current` is the GID that
    /// it has now.
    /// Several processes may be at an address; the query goes to all of them.
    pub(crate) fn add_owner(&mut self, from: RailAddress, current: Gid) {
        let from = from.of_all_processes();
        if self.owners.len() < MAX_OWNERS && from.rail > 0 && !self.owners.contains(&(from, current)) {
            self.owners.push((from, current));
        }
    }

    /// Returns whether an answer comes from an address that the search has found, and contains
    /// connection data that agree with the claim. In these data, rail 0 has the claimed GID, and
    /// `rail` has the address `from`. A negative answer is not accepted, because it contains
    /// nothing that could be checked.
    pub(super) fn accepts(&self, from: RailAddress, answer: Option<&[u8]>) -> bool {
        let agrees = |info: &ConnectInfo| {
            let claims = |current: Gid| self.owners.contains(&(from.of_all_processes(), current));
            info.gids().next().is_some_and(claims) && info.gids().nth(from.rail) == Some(from.gid)
        };
        answer.is_some_and(|answer| ConnectInfo::decode(answer).as_ref().is_ok_and(agrees))
    }
}

/// Returns whether the group is asked with this transmission of a query, counted from 0.
pub(crate) fn is_due(transmission: u32, rail_0_is_up: impl FnOnce() -> bool) -> bool {
    match transmission.checked_sub(FIRST_QUESTION) {
        Some(since_first) => since_first.is_multiple_of(QUESTION_INTERVAL),
        None => transmission == 0 && !rail_0_is_up(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rails::rail_address::Endpoint;

    fn at(rail: usize, byte: u8) -> RailAddress {
        RailAddress { rail, gid: Gid([byte; 16]), endpoint: Endpoint::QueuePair1 }
    }

    #[test]
    fn claims_are_bounded_and_counted_once() {
        let mut search = OwnerSearch::new(5, Gid([1; 16]));
        let gid = Gid([1; 16]);
        search.add_owner(at(0, 2), gid);
        assert_eq!(search.owners().count(), 0, "rail 0 is addressed by the GID itself");
        for byte in 0..100 {
            search.add_owner(at(1, byte), gid);
            search.add_owner(at(1, byte), gid);
        }
        assert_eq!(search.owners().count(), MAX_OWNERS);
        let first = (0..MAX_OWNERS as u8).map(|byte| at(1, byte));
        assert!(search.owners().eq(first));
    }

    #[test]
    fn answers_without_connection_data_are_rejected() {
        let mut search = OwnerSearch::new(5, Gid([1; 16]));
        search.add_owner(at(1, 2), Gid([1; 16]));
        assert!(!search.accepts(at(1, 2), None));
        assert!(!search.accepts(at(1, 2), Some(b"MVQ")));
    }

    #[test]
    fn group_is_asked_at_once_only_without_rail_0() {
        let due = |up: bool| (0..12).filter(|n| is_due(*n, || up)).collect::<Vec<_>>();
        assert_eq!(due(true), [3, 7, 11]);
        assert_eq!(due(false), [0, 3, 7, 11]);
    }
}
