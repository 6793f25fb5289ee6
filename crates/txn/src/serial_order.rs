//! Checks whether a history of committed transactions is strictly serializable, and finds a serial
//! order.

use std::collections::BTreeMap;

use petgraph::algo::kosaraju_scc;
use petgraph::graph::{DiGraph, NodeIndex};

use crate::execution::Footprint;
use crate::place::Place;

/// A committed transaction of a history.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Event {
    /// The places that the transaction has read and written.
    pub footprint: Footprint,
    /// The time at which the caller began the transaction, in a unit that all events share.
    pub begun: u64,
    /// The time at which the caller knew of the commit, in the same unit.
    pub told: u64,
}

/// Why a history is not strictly serializable. A transaction is given by the index of its event.
#[derive(Clone, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Violation {
    /// Two transactions have made the same version of a place, so one update is lost.
    #[error("transactions {first} and {second} have both made version {version} of {place:?}")]
    LostUpdate {
        /// The place.
        place: Place,
        /// The version.
        version: u64,
        /// One event that has made the version.
        first: usize,
        /// Another event that has made the version.
        second: usize,
    },
    /// Each of these transactions must precede another transaction of the list.
    #[error("the transactions {0:?} are in a cycle")]
    Cycle(Vec<usize>),
}

/// The graph of the constraints on the order. The first nodes are the events.
struct Order {
    graph: DiGraph<(), ()>,
}

impl Order {
    fn before(&mut self, first: usize, second: usize) {
        if first != second {
            self.graph.add_edge(NodeIndex::new(first), NodeIndex::new(second), ());
        }
    }

    fn add(&mut self) -> usize {
        self.graph.add_node(()).index()
    }
}

/// Returns a serial order with the same results. The order respects real time: a transaction comes
/// before all transactions that began after its caller knew of the commit.
///
/// The history may lack transactions, for example of coordinators that died. Each version that no
/// event has made counts as the write of an unknown transaction. Unknown transactions weaken the
/// check, and cause no false violation.
///
/// # Errors
/// [`Violation`].
pub fn serial_order(events: &[Event]) -> Result<Vec<usize>, Violation> {
    let mut order = Order { graph: DiGraph::new() };
    events.iter().for_each(|_| _ = order.add());
    order_by_versions(events, &mut order)?;
    order_by_time(events, &mut order);
    let mut serial = Vec::with_capacity(events.len());
    // The components come in reverse topological order.
    for component in kosaraju_scc(&order.graph).into_iter().rev() {
        let in_component = component.iter().map(|node| node.index()).filter(|&node| node < events.len());
        if component.len() > 1 {
            return Err(Violation::Cycle(in_component.collect()));
        }
        serial.extend(in_component);
    }
    Ok(serial)
}

/// The writer of a version comes after the writer of the previous version, and before the readers
/// of the version. A reader comes before the writer of the next version.
fn order_by_versions(events: &[Event], order: &mut Order) -> Result<(), Violation> {
    let mut writers: BTreeMap<(Place, u64), usize> = BTreeMap::new();
    for (second, event) in events.iter().enumerate() {
        for &(place, version) in &event.footprint.writes {
            if let Some(first) = writers.insert((place, version), second) {
                return Err(Violation::LostUpdate { place, version, first, second });
            }
        }
    }
    let reads = events.iter().flat_map(|event| &event.footprint.reads);
    for &(place, version) in reads {
        writers.entry((place, version)).or_insert_with(|| order.add());
    }
    let mut before: Option<((Place, u64), usize)> = None;
    for (&(place, version), &writer) in &writers {
        if let Some(((last, _), earlier)) = before
            && last == place
        {
            order.before(earlier, writer);
        }
        before = Some(((place, version), writer));
    }
    for (reader, event) in events.iter().enumerate() {
        for &(place, version) in &event.footprint.reads {
            order.before(writers[&(place, version)], reader);
            let next = writers.range((place, version + 1)..).next();
            if let Some(((_, _), &overwriter)) = next.filter(|((other, _), _)| *other == place) {
                order.before(reader, overwriter);
            }
        }
    }
    Ok(())
}

/// A transaction comes before all transactions that began after its caller knew of the commit.
fn order_by_time(events: &[Event], order: &mut Order) {
    let mut by_end: Vec<usize> = (0..events.len()).collect();
    by_end.sort_by_key(|&event| events[event].told);
    let mut by_begin: Vec<usize> = (0..events.len()).collect();
    by_begin.sort_by_key(|&event| events[event].begun);
    let mut ended = by_end.into_iter().peekable();
    // A node of the graph. It comes after all transactions that ended before the current event
    // began.
    let mut moment: Option<usize> = None;
    for event in by_begin {
        let mut latest = moment;
        while let Some(earlier) = ended.next_if(|&earlier| events[earlier].told < events[event].begun) {
            let next = *latest.filter(|_| latest != moment).get_or_insert_with(|| order.add());
            if let Some(moment) = moment.filter(|_| latest == moment) {
                order.before(moment, next);
            }
            order.before(earlier, next);
            latest = Some(next);
        }
        moment = latest;
        if let Some(moment) = moment {
            order.before(moment, event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PlaceKind, TableId};

    fn event(reads: &[(u32, u64)], writes: &[(u32, u64)], begun: u64, told: u64) -> Event {
        let at = |&(index, version): &(u32, u64)| {
            (Place { table: TableId(0), partition: 0, kind: PlaceKind::Record, index }, version)
        };
        let footprint =
            Footprint { reads: reads.iter().map(at).collect(), writes: writes.iter().map(at).collect() };
        Event { footprint, begun, told }
    }

    #[test]
    fn versions_give_the_order() {
        let events = [
            event(&[(0, 2)], &[(0, 3)], 0, 9),
            event(&[(0, 0)], &[(0, 1)], 0, 9),
            event(&[(0, 1)], &[], 0, 9),
            event(&[(0, 1)], &[(0, 2)], 0, 9),
        ];
        assert_eq!(serial_order(&events), Ok(vec![1, 2, 3, 0]));
    }

    #[test]
    fn write_skew_and_lost_updates_are_found() {
        let skew = [event(&[(0, 0), (1, 0)], &[(0, 1)], 0, 9), event(&[(0, 0), (1, 0)], &[(1, 1)], 0, 9)];
        assert!(matches!(serial_order(&skew), Err(Violation::Cycle(cycle)) if cycle.len() == 2));
        let lost = [event(&[(0, 0)], &[(0, 1)], 0, 9), event(&[(0, 0)], &[(0, 1)], 0, 9)];
        assert!(matches!(
            serial_order(&lost),
            Err(Violation::LostUpdate { version: 1, first: 0, second: 1, .. })
        ));
    }

    #[test]
    fn stale_reads_are_found_by_time() {
        let read = |begun| [event(&[], &[(0, 1)], 0, 5), event(&[(0, 0)], &[], begun, 9)];
        assert!(serial_order(&read(5)).is_ok());
        assert!(matches!(serial_order(&read(6)), Err(Violation::Cycle(_))));
        // A cycle through other transactions, in several steps of time.
        let chain = [
            event(&[], &[(0, 1)], 0, 1),
            event(&[], &[], 2, 3),
            event(&[], &[], 4, 5),
            event(&[(0, 0)], &[], 6, 7),
        ];
        assert!(matches!(serial_order(&chain), Err(Violation::Cycle(_))));
    }

    #[test]
    fn unknown_transactions_make_no_violations() {
        // Version 2 was made by no event.
        let events = [event(&[(0, 2)], &[(0, 3)], 6, 9), event(&[(0, 0)], &[(0, 1)], 0, 5)];
        assert_eq!(serial_order(&events), Ok(vec![1, 0]));
    }
}
