//! A linearizability check: Wing and Gong's search with Lowe's cache of visited configurations
//! ("Testing for linearizability", 2017).

use std::collections::HashSet;
use std::hash::Hash;

/// An operation of a history. The times may have any unit, if later events have larger times.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Operation<O, R> {
    /// The operation and its arguments.
    pub invocation: O,
    /// The time of the invocation.
    pub invoked_at: usize,
    /// The time of the response, and the result. `None` if there is no response: the operation may
    /// have taken effect, may take effect later, or never.
    pub response: Option<(usize, R)>,
}

/// The maximum length of a history: the search keeps the completed operations in 128 bits.
pub const MAX_OPERATIONS: usize = 128;

/// Returns whether the operations have a sequential order that respects real time and in which
/// `apply` returns the result of each operation. `start` is the initial state.
///
/// # Panics
/// If the history has more than [`MAX_OPERATIONS`] operations.
pub fn is_linearizable<S, O, R>(
    start: &S,
    history: &[Operation<O, R>],
    apply: impl Fn(&mut S, &O) -> R,
) -> bool
where
    S: Clone + Eq + Hash,
    R: PartialEq,
{
    assert!(
        history.len() <= MAX_OPERATIONS,
        "the history has {} operations, more than MAX_OPERATIONS",
        history.len()
    );
    let mut visited = HashSet::new();
    let mut unexplored = vec![(0_u128, start.clone())];
    while let Some((done, state)) = unexplored.pop() {
        let remaining = || history.iter().enumerate().filter(|(nth, _)| done >> nth & 1 == 0);
        // The next operation was invoked before the first response among the remaining operations.
        let Some(first_response) =
            remaining().filter_map(|(_, op)| op.response.as_ref().map(|(at, _)| *at)).min()
        else {
            return true;
        };
        for (nth, op) in remaining().filter(|(_, op)| op.invoked_at < first_response) {
            let mut next = state.clone();
            let result = apply(&mut next, &op.invocation);
            let matches = op.response.as_ref().is_none_or(|(_, expected)| *expected == result);
            let next = (done | 1 << nth, next);
            if matches && visited.insert(next.clone()) {
                unexplored.push(next);
            }
        }
    }
    false
}
