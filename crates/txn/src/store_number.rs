//! The number of a store, which its loader writes to every memory node when all else is written.
//!
//! The memory of a node is zero when its process starts. So a node that was started again has lost
//! the number together with its records and its log. A node of another store has a different
//! number. Every life reads the number on all nodes that are not declared dead before it writes
//! anything. Reading once is enough: a node that starts again has lost the queue pairs of the life.

use crate::layout::Layout;
use crate::place::Location;
use crate::request::{NodeId, Outcome, Request};

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
