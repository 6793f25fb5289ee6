//! Absences of the parts of a world, for the liveness rule.

use std::collections::BTreeSet;

use mitra_verbs::Time;

/// A part of a world whose absence may make a rail unusable, by its index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Part {
    /// A NIC is dead, hung or reset, or its link is down.
    Nic(usize),
    /// A host is paused.
    Host(usize),
    /// A NIC is starved.
    Starved(usize),
}

#[derive(Clone, Default, Debug)]
pub(crate) struct Absences {
    /// The time, the part, and whether its absence begins or ends.
    pub(crate) changes: Vec<(Time, Part, bool)>,
    absent: BTreeSet<Part>,
}

impl Absences {
    pub(crate) fn set(&mut self, now: Time, part: Part, is_absent: bool) {
        let changed = if is_absent { self.absent.insert(part) } else { self.absent.remove(&part) };
        if changed {
            self.changes.push((now, part, is_absent));
        }
    }
}
