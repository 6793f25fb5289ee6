//! How many crashes a shared-memory graph tolerates, by every measure, with the sets that defeat it; never does I/O or draws its own randomness.
//!
//! Processes are the vertices of a [`Graph`]; neighbours may access each other's registers, as RDMA lets them, and all may
//! exchange messages. *Memory outlives its process*: what a neighbour wrote can be read after its crash (Aguilera et al.,
//! "Passing Messages while Sharing Memory", PODC 2018). So a live process represents itself and its neighbours.
//!
//! [`Measures::of`] answers with the vertex expansion, the theorem's bound on f, the exact tolerance of HBO, and the best
//! that any algorithm can do: exactly for small graphs, between bounds for graphs of up to [`MAX_VERTICES`] vertices.
//! [`family`] has graphs by name, [`suggest`] a sparse one that tolerates f, [`edges`] reads and writes them as text.
//! `docs/topology.md` defines each measure with its source.
#![forbid(unsafe_code)]

pub mod edge_list;
mod exact_search;
mod expansion_ratio;
pub mod generators;
mod graph;
mod heuristic_search;
mod lower_bounds;
mod measures;
mod spectral_bounds;
mod suggestion;
mod witnesses;

pub use exact_search::MAX_SEARCH_VERTICES;
pub use expansion_ratio::ExpansionRatio;
pub use graph::{Graph, GraphError, MAX_EDGES, MAX_VERTICES};
pub use measures::{BRANCH_LIMIT, Bounds, Measures, Stage, UNLIMITED_SEARCH_VERTICES};
pub use suggestion::{SuggestError, Suggestion, suggest};
pub use witnesses::Witnesses;
