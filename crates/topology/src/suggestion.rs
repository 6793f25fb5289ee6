//! A sparse graph that tolerates f crashes under HBO: candidates are drawn, and each is checked before it is believed.

use crate::exact_search::{ExactSearch, MAX_SEARCH_VERTICES};
use crate::generators::random_edges;
use crate::graph::{Graph, GraphError, MAX_EDGES, MAX_VERTICES};
use crate::heuristic_search::grow_sets;
use crate::lower_bounds::LowerBounds;
use crate::measures::{BRANCH_LIMIT, Measures, Stage, UNLIMITED_SEARCH_VERTICES};
use crate::spectral_bounds::Spectrum;
use crate::witnesses::Witnesses;

/// Candidates of each degree while a search always tells them apart exactly, and while it may.
const DRAWS: [u64; 2] = [100, 20];
/// Branches that the search of larger ones may take for all candidates of a degree together.
const BRANCH_LIMIT_PER_DEGREE: u64 = BRANCH_LIMIT / 8;

/// Why there is no suggestion.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuggestError {
    /// All processes, or more.
    #[error("{f} of {n} processes: at most {} can crash, one must be left to decide", n.saturating_sub(1))]
    TooManyCrashes {
        /// Processes.
        n: usize,
        /// Crashes.
        f: usize,
    },
    /// No graph of that size is taken.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// A graph that was checked.
#[derive(Clone, Debug)]
pub struct Suggestion {
    /// All degrees are [`degree`](Suggestion::degree), but for one less at one vertex where that makes the sum even.
    pub graph: Graph,
    /// What it was checked to tolerate under HBO.
    pub f: usize,
    /// The greatest degree.
    pub degree: usize,
    /// No graph with a lesser greatest degree tolerates f under HBO: n − f processes would represent too few.
    pub least_degree: usize,
}

impl Suggestion {
    /// All measures of the graph, with what the check has shown.
    pub fn measures(&self, seed: u64, tell: &dyn Fn(Stage)) -> Measures {
        let mut measures = Measures::of(&self.graph, seed, tell);
        for f in [&mut measures.hbo_f, &mut measures.best_f] {
            f.at_least = f.at_least.max(self.f);
        }
        measures
    }
}

/// A graph of `n` processes that tolerates `f` crashes under HBO, with the least degree found. `tell` hears each degree
/// that is tried.
pub fn suggest(n: usize, f: usize, seed: u64, tell: &dyn Fn(usize)) -> Result<Suggestion, SuggestError> {
    if f >= n {
        return Err(SuggestError::TooManyCrashes { n, f });
    }
    if n > MAX_VERTICES {
        return Err(GraphError::TooManyVertices(n).into());
    }
    // d + 1 times n − f must exceed n/2.
    let least_degree = (n / 2 + 1).div_ceil(n - f) - 1;
    let most_degree = (n - 1).min(2 * MAX_EDGES / n);
    if least_degree > most_degree {
        return Err(GraphError::TooManyEdges.into());
    }
    let try_degree = |degree: usize, draws: u64| -> Result<Option<Graph>, GraphError> {
        tell(degree);
        let mut effort = if n <= UNLIMITED_SEARCH_VERTICES { u64::MAX } else { BRANCH_LIMIT_PER_DEGREE };
        for draw in 0..draws {
            let graph = Graph::new(n, &random_edges(n, degree, seed.wrapping_add(draw)))?;
            if tolerates(&graph, f, seed, &mut effort) {
                return Ok(Some(graph));
            }
        }
        Ok(None)
    };
    let found = |degree, graph| Ok(Suggestion { graph, f, degree, least_degree });
    if n <= MAX_SEARCH_VERTICES {
        for degree in least_degree..n {
            if let Some(graph) = try_degree(degree, DRAWS[usize::from(n > UNLIMITED_SEARCH_VERTICES)])? {
                return found(degree, graph);
            }
        }
    }
    // Large random graphs of one degree hardly differ, and more connections tolerate more: double, then halve.
    let (mut fails, mut degree) = (least_degree.saturating_sub(1), least_degree);
    let mut graph = loop {
        match try_degree(degree, 1)? {
            Some(graph) => break graph,
            None if degree == most_degree => return Err(GraphError::TooManyEdges.into()),
            None => (fails, degree) = (degree, (2 * degree).min(most_degree)),
        }
    };
    while degree - fails > 1 {
        let middle = (fails + degree) / 2;
        match try_degree(middle, 1)? {
            Some(better) => (degree, graph) = (middle, better),
            None => fails = middle,
        }
    }
    found(degree, graph)
}

/// Whether it is certain that every set of n − f processes represents more than n/2. Spends of `effort` while there is some.
fn tolerates(graph: &Graph, f: usize, seed: u64, effort: &mut u64) -> bool {
    let n = graph.vertex_count();
    let left = n - f;
    let mut lower = LowerBounds::from_degrees(graph);
    if lower.minority < left {
        return true;
    }
    if n <= MAX_SEARCH_VERTICES {
        let mut found = Witnesses::default();
        grow_sets(graph, seed, &mut found);
        if found.hbo_minority.len() >= left {
            return false;
        }
        if let Ok(set) = ExactSearch::new(graph, effort).find(left, n / 2) {
            return set.is_none();
        }
    }
    if graph.is_connected() {
        lower.tighten(n, &Spectrum::of(graph, seed));
    }
    lower.minority < left
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Growing sets misses some that the search finds: such a graph is not believed.
    #[test]
    fn what_only_the_search_defeats_is_not_believed() {
        let n = 40;
        let missed = (0..40).any(|seed| {
            let graph = Graph::new(n, &random_edges(n, 4, seed)).unwrap();
            let mut grown = Witnesses::default();
            grow_sets(&graph, seed, &mut grown);
            // A crash fewer than what grown sets defeat.
            let f = n - grown.hbo_minority.len() - 1;
            let set = ExactSearch::new(&graph, &mut { u64::MAX }).find(n - f, n / 2).unwrap();
            assert_eq!(tolerates(&graph, f, seed, &mut { u64::MAX }), set.is_none());
            set.is_some()
        });
        assert!(missed);
    }
}
