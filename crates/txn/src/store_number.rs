//! The number of a store, which its loader writes to every memory node when all else is written.
//!
//! The memory of a node is zero when its process starts. So a node that was started again has lost
//! the number together with its records and its log. A node of another store has a different
//! number. Every life reads the number on all nodes that are not declared dead before it writes
//! anything. Reading once is enough: a node that starts again has lost the queue pairs of the life.
//!
//! The word behind the number is the claim of the loader, which it swaps in on one node after the
//! other before it writes anything. So two loaders do not write at the same time, and a load that
//! was interrupted is told from memory that is new.

use core::num::NonZeroU64;

use crate::layout::Layout;
use crate::place::Location;
use crate::request::{NodeId, Op, Outcome, Request};

/// Why the memory nodes do not have one store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The node has no store number.
    #[error(
        "memory node {} has no store: it was started again and has lost its memory, or the load has not ended; declare the node dead, or load the store on new nodes",
        .0.0
    )]
    Missing(NodeId),
    /// Two nodes have different store numbers.
    #[error(
        "memory nodes {} and {} have different stores; list the nodes of one store, and declare the one that has left it dead",
        .0.0, .1.0
    )]
    Different(NodeId, NodeId),
}

/// The length of a store number, in bytes.
const BYTES: u32 = 8;

/// How far the load of a store has come.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StoreState {
    /// No load has begun.
    Empty,
    /// A load has begun on this node, and has not ended: it runs, or was interrupted.
    Loading(NodeId),
    /// The store is loaded.
    Loaded,
}

/// Returns the claim of a node by a loader. `number` is the number of its store. The loader claims
/// all nodes, in their order, before it writes anything. The claim has succeeded if the word was 0
/// or has the number; it may be repeated.
pub fn claim_store(layout: &Layout, node: NodeId, number: NonZeroU64) -> Request {
    let at = layout.store_line() + u64::from(BYTES);
    Request { node, at, op: Op::CompareSwap { compare: 0, swap: number.get() } }
}

/// Returns the READs for [`store_state`].
pub fn read_store_state(layout: &Layout) -> Vec<Request> {
    let at = layout.store_line();
    layout.nodes().map(|node| Request::read(Location { node, at }, 2 * BYTES)).collect()
}

/// Returns the state of a store from the outcomes of [`read_store_state`], without the nodes that
/// are declared dead; `None` if the READs must be repeated.
///
/// # Errors
/// A [`StoreError`] if some nodes have a store and others do not have the same.
pub fn store_state(layout: &Layout, outcomes: &[Outcome]) -> Option<Result<StoreState, StoreError>> {
    let (mut loading, mut is_empty, mut numbers) = (None, true, Vec::new());
    for (node, outcome) in layout.nodes().zip(outcomes) {
        if *outcome == Outcome::NodeDead {
            numbers.push(Outcome::NodeDead);
            continue;
        }
        let (number, claim) = outcome.bytes()?.split_at_checked(BYTES as usize)?;
        let is_set = |word: &[u8]| word.iter().any(|&byte| byte != 0);
        if is_set(claim) && !is_set(number) {
            loading.get_or_insert(node);
        }
        is_empty &= !is_set(number) && !is_set(claim);
        numbers.push(Outcome::Executed(number.to_vec()));
    }
    if is_empty {
        return Some(Ok(StoreState::Empty));
    }
    let errors = check(layout, &numbers)?;
    Some(match (loading, errors.first()) {
        (Some(node), _) => Ok(StoreState::Loading(node)),
        (None, Some(&error)) => Err(error),
        (None, None) => Ok(StoreState::Loaded),
    })
}

/// Returns the READs of the store number on all nodes.
pub(crate) fn reads(layout: &Layout) -> Vec<Request> {
    let at = layout.store_line();
    layout.nodes().map(|node| Request::read(Location { node, at }, BYTES)).collect()
}

/// Checks the store numbers of the nodes that are not declared dead, from the outcomes of `reads`.
/// Returns the errors, or `None` if the numbers must be read again.
pub(crate) fn check(layout: &Layout, outcomes: &[Outcome]) -> Option<Vec<StoreError>> {
    let mut outcomes = outcomes.iter();
    let (mut first, mut errors) = (None, Vec::new());
    for node in layout.nodes() {
        let outcome = outcomes.next()?;
        if *outcome == Outcome::NodeDead {
            continue;
        }
        match (outcome.word()?, first) {
            (0, _) => errors.push(StoreError::Missing(node)),
            (number, None) => first = Some((node, number)),
            (number, Some((other, known))) if number != known => {
                errors.push(StoreError::Different(other, node));
            }
            _ => {}
        }
    }
    Some(errors)
}
