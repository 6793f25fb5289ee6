//! Whether a history is linearizable: Wing & Gong's search, with Lowe's memory of what was tried ("Testing for linearizability", 2017).

use std::collections::HashSet;
use std::hash::Hash;

/// An operation of a history. Times are any numbers that grow.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Operation<O, R> {
    /// What was asked for.
    pub invocation: O,
    /// When.
    pub invoked_at: usize,
    /// When it returned, and what; none if it may still take effect, or never.
    pub response: Option<(usize, R)>,
}

/// The longest history that can be judged.
pub const MAX_OPERATIONS: usize = 128;

/// Whether there is an order of the operations that keeps to the times, and in which `apply` says what they returned.
///
/// # Panics
/// There are more than [`MAX_OPERATIONS`].
pub fn is_linearizable<S, O, R>(
    start: &S,
    history: &[Operation<O, R>],
    apply: impl Fn(&mut S, &O) -> R,
) -> bool
where
    S: Clone + Eq + Hash,
    R: PartialEq,
{
    assert!(history.len() <= MAX_OPERATIONS, "{} operations are too many", history.len());
    let mut tried = HashSet::new();
    let mut left = vec![(0_u128, start.clone())];
    while let Some((done, state)) = left.pop() {
        let open = || history.iter().enumerate().filter(|(nth, _)| done >> nth & 1 == 0);
        // Whatever is next was called before anything that is not done returned.
        let Some(until) = open().filter_map(|(_, op)| op.response.as_ref().map(|(at, _)| *at)).min() else {
            return true;
        };
        for (nth, op) in open().filter(|(_, op)| op.invoked_at < until) {
            let mut next = state.clone();
            let result = apply(&mut next, &op.invocation);
            let fits = op.response.as_ref().is_none_or(|(_, returned)| *returned == result);
            let next = (done | 1 << nth, next);
            if fits && tried.insert(next.clone()) {
                left.push(next);
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A register: some write it, others read it.
    type Register = Operation<Option<u8>, Option<u8>>;

    fn write(value: u8, invoked_at: usize, returned: Option<usize>) -> Register {
        Operation { invocation: Some(value), invoked_at, response: returned.map(|at| (at, None)) }
    }

    fn read(value: u8, invoked_at: usize, returned: usize) -> Register {
        Operation { invocation: None, invoked_at, response: Some((returned, Some(value))) }
    }

    fn holds(history: &[Register]) -> bool {
        is_linearizable(&0, history, |state, what| match what {
            Some(value) => {
                *state = *value;
                None
            }
            None => Some(*state),
        })
    }

    #[test]
    fn what_is_written_is_read_by_all_from_then_on() {
        assert!(holds(&[]));
        assert!(holds(&[write(1, 0, Some(1)), read(1, 2, 3)]));
        assert!(!holds(&[write(1, 0, Some(1)), read(0, 2, 3)]), "an old value");
        assert!(!holds(&[read(1, 0, 1), write(1, 2, Some(3))]), "from the future");
    }

    #[test]
    fn what_overlaps_may_be_either_way_but_not_back_again() {
        assert!(holds(&[write(1, 0, Some(9)), read(0, 1, 2), read(1, 3, 4)]));
        assert!(!holds(&[write(1, 0, Some(9)), read(1, 1, 2), read(0, 3, 4)]));
    }

    #[test]
    fn what_has_not_returned_may_take_effect_late_or_never() {
        for value in [0, 1] {
            assert!(holds(&[write(1, 0, None), read(0, 1, 2), read(value, 3, 4)]));
        }
        assert!(!holds(&[write(1, 0, None), read(1, 1, 2), read(0, 3, 4)]));
    }

    #[test]
    fn a_long_history_takes_no_longer_than_its_overlaps() {
        let both = |n: u8| {
            let at = 4 * usize::from(n);
            [write(n, at, Some(at + 2)), read(n, at + 1, at + 3)]
        };
        let history: Vec<Register> = (0..60).flat_map(both).collect();
        assert!(holds(&history));
    }
}
