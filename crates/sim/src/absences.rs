//! The times at which parts of a world were absent, for the liveness rule.

use std::collections::BTreeSet;

use mitra_verbs::Time;

/// A part of a world whose absence may make a rail unusable, by its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Part {
    /// A NIC is dead, hung or reset, or its link is down.
    Nic(usize),
    /// A host is paused.
    Host(usize),
}

/// The times at which parts of a world were absent.
#[derive(Clone, Default, Debug)]
pub(crate) struct Absences {
    /// The begin and the end of each absence, by part.
    pub(crate) changes: Vec<(Time, Part, bool)>,
    absent: BTreeSet<Part>,
}

impl Absences {
    /// Records whether a part is absent from `now` on.
    pub(crate) fn set(&mut self, now: Time, part: Part, is_absent: bool) {
        let changed = if is_absent { self.absent.insert(part) } else { self.absent.remove(&part) };
        if changed {
            self.changes.push((now, part, is_absent));
        }
    }
}
