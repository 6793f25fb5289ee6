//! The history of one cell, and the check that it is linearizable.
//!
//! No value occurs twice in a history: a compare-and-swap stores a new multiple of 2¹⁶, and the sum
//! of the additions stays below the next multiple. The changes therefore have at most one order, in
//! which each change finds the value that the previous change stored.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    Read,
    CompareSwap { expected: u32, new: u32 },
    FetchAdd(u32),
}

/// What a call returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Returned {
    /// The old value of a changed cell.
    ChangedFrom(u32),
    /// The value of a cell that was not changed.
    Value(u32),
}

/// A call of a client. The times are positions in the order in which all calls begin and end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) call: Call,
    pub(super) begun: u64,
    /// `None` if the path of the client ended first. Such a call is undecided: it takes effect at
    /// any time after its beginning, or never.
    pub(super) ended: Option<(u64, Returned)>,
}

impl Entry {
    /// Returns the value that the call stores in a cell with this value, or `None` if the call
    /// changes nothing.
    fn apply(&self, value: u32) -> Option<u32> {
        match self.call {
            Call::Read => None,
            Call::CompareSwap { expected, new } => (expected == value).then_some(new),
            Call::FetchAdd(add) => Some(value + add),
        }
    }

    /// Returns the value that the call stores in a cell with this value. Returns `None` if the call
    /// changes nothing, or if its result shows that the cell had another value.
    fn change_from(&self, value: u32) -> Option<u32> {
        match self.ended {
            Some((_, Returned::ChangedFrom(old))) if old != value => None,
            Some((_, Returned::Value(_))) => None,
            _ => self.apply(value),
        }
    }

    fn is_sensible(&self) -> bool {
        match (self.ended, self.call) {
            (None, _) => true,
            (Some((_, Returned::ChangedFrom(old))), _) => self.apply(old).is_some(),
            (Some((_, Returned::Value(_))), Call::Read) => true,
            (Some((_, Returned::Value(value))), Call::CompareSwap { expected, .. }) => value != expected,
            (Some((_, Returned::Value(_))), Call::FetchAdd(_)) => false,
        }
    }
}

/// Checks a history that began with the value 0 and left `last` in memory.
///
/// # Errors
/// A description of the violation.
pub(super) fn check(history: &[Entry], last: u32) -> Result<(), String> {
    if let Some(entry) = history.iter().find(|entry| !entry.is_sensible()) {
        return Err(format!("a result that the call cannot have: {entry:?}"));
    }
    let mut order = Vec::new();
    if extend(history, &mut order, 0, last) {
        Ok(())
    } else {
        Err(format!(
            "no order of the calls explains their results and the last value {last:#x}: {history:#?}"
        ))
    }
}

/// Extends `order`, whose last change stored `value`, to an order of changes that explains all
/// results. Returns false if there is no such order.
fn extend(history: &[Entry], order: &mut Vec<usize>, value: u32, last: u32) -> bool {
    let is_missing = |(nth, entry): (usize, &Entry)| {
        matches!(entry.ended, Some((_, Returned::ChangedFrom(_)))) && !order.contains(&nth)
    };
    if value == last && !history.iter().enumerate().any(is_missing) && respects_time(history, order) {
        return true;
    }
    // There is more than one candidate only if calls are undecided.
    let next = |(nth, entry): (usize, &Entry)| {
        let new = entry.change_from(value).filter(|_| !order.contains(&nth))?;
        Some((nth, new))
    };
    let candidates: Vec<(usize, u32)> = history.iter().enumerate().filter_map(next).collect();
    for (nth, new) in candidates {
        order.push(nth);
        if extend(history, order, new, last) {
            return true;
        }
        order.pop();
    }
    false
}

/// Returns whether the order respects real time: if a call ended before another call began, the
/// other call takes effect later. Each read stands behind the change whose value the read returned.
fn respects_time(history: &[Entry], order: &[usize]) -> bool {
    let mut values = vec![0];
    for &nth in order {
        let Some(new) = values.last().and_then(|&value| history[nth].change_from(value)) else {
            return false;
        };
        values.push(new);
    }
    let mut placed = Vec::new();
    for (nth, entry) in history.iter().enumerate() {
        let place = match entry.ended {
            Some((_, Returned::Value(value))) => match values.iter().position(|&v| v == value) {
                Some(index) => 2 * index + 1,
                None => return false,
            },
            _ => match order.iter().position(|&other| other == nth) {
                Some(index) => 2 * (index + 1),
                None => continue, // undecided, and without effect
            },
        };
        placed.push((place, entry));
    }
    let is_before = |x: &Entry, y: &Entry| x.ended.is_some_and(|(ended, _)| ended < y.begun);
    placed.iter().all(|(place, x)| placed.iter().all(|(other, y)| place <= other || !is_before(x, y)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(call: Call, begun: u64, ended: Option<(u64, Returned)>) -> Entry {
        Entry { call, begun, ended }
    }

    fn add(add: u32, old: u32, begun: u64, ended: u64) -> Entry {
        entry(Call::FetchAdd(add), begun, Some((ended, Returned::ChangedFrom(old))))
    }

    fn read(value: u32, begun: u64, ended: u64) -> Entry {
        entry(Call::Read, begun, Some((ended, Returned::Value(value))))
    }

    #[test]
    fn right_histories_are_accepted() {
        assert_eq!(check(&[], 0), Ok(()));
        assert_eq!(check(&[add(1, 0, 0, 1), read(1, 2, 3), add(2, 1, 2, 5), read(3, 6, 7)], 3), Ok(()));
        let swap = Call::CompareSwap { expected: 1, new: 1 << 16 };
        let swapped = entry(swap, 2, Some((3, Returned::ChangedFrom(1))));
        assert_eq!(check(&[add(1, 0, 0, 1), swapped], 1 << 16), Ok(()));
        let refused = entry(swap, 0, Some((9, Returned::Value(0))));
        assert_eq!(check(&[add(1, 0, 0, 1), refused], 1), Ok(()));
    }

    #[test]
    fn lost_doubled_and_wrong_changes_are_found() {
        assert!(check(&[add(1, 0, 0, 1)], 0).is_err(), "lost");
        assert!(check(&[add(1, 0, 0, 1)], 2).is_err(), "executed twice");
        assert!(check(&[add(1, 0, 0, 1), add(2, 0, 0, 1)], 3).is_err(), "two changes of the same value");
        assert!(
            check(&[add(1, 0, 0, 1), read(0, 2, 3)], 1).is_err(),
            "the read returns an overwritten value"
        );
        assert!(check(&[add(1, 0, 2, 3), read(1, 0, 1)], 1).is_err(), "the read returns a later value");
        assert!(check(&[read(1, 0, 3), read(0, 4, 5), add(1, 0, 0, 9)], 1).is_err(), "reads go back");
        let swap = Call::CompareSwap { expected: 0, new: 1 << 16 };
        let refused = entry(swap, 0, Some((1, Returned::Value(0))));
        assert!(check(&[refused], 0).is_err(), "refused although the value was the expected one");
        let counted = entry(Call::FetchAdd(1), 0, Some((1, Returned::Value(0))));
        assert!(check(&[counted], 0).is_err(), "an addition is never refused");
    }

    #[test]
    fn undecided_call_takes_effect_late_or_never() {
        for last in [2, 3] {
            let undecided = entry(Call::FetchAdd(1), 0, None);
            assert_eq!(check(&[undecided, add(2, 0, 1, 2)], last), Ok(()));
        }
        let undecided = entry(Call::FetchAdd(1), 3, None);
        assert!(check(&[undecided, add(2, 1, 1, 2)], 3).is_err(), "before it began");
    }
}
