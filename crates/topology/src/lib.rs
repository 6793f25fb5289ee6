#![doc = include_str!("../README.md")]
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
