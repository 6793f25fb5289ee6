//! Suggests a sparse graph that tolerates f crashes under HBO: draws random regular graphs and
//! checks each.

use crate::exact_search::{ExactSearch, MAX_SEARCH_VERTICES};
use crate::generators::random_edges;
use crate::graph::{Graph, GraphError, MAX_EDGES, MAX_VERTICES};
use crate::heuristic_search::grow_sets;
use crate::lower_bounds::LowerBounds;
use crate::measures::{BRANCH_LIMIT, Measures, Stage, UNLIMITED_SEARCH_VERTICES};
use crate::spectral_bounds::Spectrum;
use crate::witnesses::Witnesses;

/// The number of candidate graphs of each degree: the first number for graphs whose search has no
/// branch limit, the second for larger graphs that are still searched.
const CANDIDATES: [u64; 2] = [100, 20];
/// The number of branches that the searches of all candidates of a degree may take together, in
/// graphs with a branch limit.
const BRANCH_LIMIT_PER_DEGREE: u64 = BRANCH_LIMIT / 8;

/// Error: no graph can be suggested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuggestError {
    /// All processes would crash, or more than exist.
    #[error("{f} of {n} processes: at most {} can crash, one must be left to decide", n.saturating_sub(1))]
    TooManyCrashes {
        /// The number of processes.
        n: usize,
        /// The number of crashes.
        f: usize,
    },
    /// The graph would exceed a size limit.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// A suggested graph.
#[derive(Clone, Debug)]
pub struct Suggestion {
    /// The graph. All degrees are [`degree`](Suggestion::degree), except that one vertex has one
    /// less if the sum would be odd.
    pub graph: Graph,
    /// The number of crashes that the graph was checked to tolerate under HBO.
    pub f: usize,
    /// The greatest degree.
    pub degree: usize,
    /// A lower bound on the greatest degree of every graph that tolerates f under HBO. With a
    /// smaller degree, n − f processes represent at most n/2.
    pub least_degree: usize,
}

impl Suggestion {
    /// Computes all measures of the graph. The lower bounds include the result of the check.
    pub fn measures(&self, seed: u64, on_stage: &dyn Fn(Stage)) -> Measures {
        let mut measures = Measures::of(&self.graph, seed, on_stage);
        for f in [&mut measures.hbo_f, &mut measures.best_f] {
            f.at_least = f.at_least.max(self.f);
        }
        measures
    }
}

/// Returns a graph of `n` processes that tolerates `f` crashes under HBO, with the smallest degree
/// found. Calls `on_degree` with each degree before its candidates are checked.
///
/// # Errors
/// See [`SuggestError`].
pub fn suggest(n: usize, f: usize, seed: u64, on_degree: &dyn Fn(usize)) -> Result<Suggestion, SuggestError> {
    if f >= n {
        return Err(SuggestError::TooManyCrashes { n, f });
    }
    if n > MAX_VERTICES {
        return Err(GraphError::TooManyVertices(n).into());
    }
    // (d + 1)·(n − f) must exceed n/2.
    let least_degree = (n / 2 + 1).div_ceil(n - f) - 1;
    let most_degree = (n - 1).min(2 * MAX_EDGES / n);
    if least_degree > most_degree {
        return Err(GraphError::TooManyEdges.into());
    }
    let try_degree = |degree: usize, candidates: u64| -> Result<Option<Graph>, GraphError> {
        on_degree(degree);
        let mut branches_left =
            if n <= UNLIMITED_SEARCH_VERTICES { u64::MAX } else { BRANCH_LIMIT_PER_DEGREE };
        for draw in 0..candidates {
            let graph = Graph::new(n, &random_edges(n, degree, seed.wrapping_add(draw)))?;
            if tolerates(&graph, f, seed, &mut branches_left) {
                return Ok(Some(graph));
            }
        }
        Ok(None)
    };
    let suggestion = |degree, graph| Ok(Suggestion { graph, f, degree, least_degree });
    if n <= MAX_SEARCH_VERTICES {
        for degree in least_degree..n {
            if let Some(graph) = try_degree(degree, CANDIDATES[usize::from(n > UNLIMITED_SEARCH_VERTICES)])? {
                return suggestion(degree, graph);
            }
        }
    }
    // Large random graphs of the same degree hardly differ, and a greater degree tolerates more
    // crashes. The search doubles the degree until a graph passes, and then bisects.
    let (mut failing, mut degree) = (least_degree.saturating_sub(1), least_degree);
    let mut graph = loop {
        match try_degree(degree, 1)? {
            Some(graph) => break graph,
            None if degree == most_degree => return Err(GraphError::TooManyEdges.into()),
            None => (failing, degree) = (degree, (2 * degree).min(most_degree)),
        }
    };
    while degree - failing > 1 {
        let middle = (failing + degree) / 2;
        match try_degree(middle, 1)? {
            Some(better) => (degree, graph) = (middle, better),
            None => failing = middle,
        }
    }
    suggestion(degree, graph)
}

/// Returns whether every set of n − f processes is proved to represent more than n/2. Decrements
/// `branches_left` for each branch of the search; at 0 the search is skipped.
fn tolerates(graph: &Graph, f: usize, seed: u64, branches_left: &mut u64) -> bool {
    let n = graph.vertex_count();
    let alive = n - f;
    let mut lower = LowerBounds::from_degrees(graph);
    if lower.max_minority < alive {
        return true;
    }
    if n <= MAX_SEARCH_VERTICES {
        let mut witnesses = Witnesses::default();
        grow_sets(graph, seed, &mut witnesses);
        if witnesses.hbo_minority.len() >= alive {
            return false;
        }
        if let Ok(set) = ExactSearch::new(graph, branches_left).find(alive, n / 2) {
            return set.is_none();
        }
    }
    if graph.is_connected() {
        lower.tighten(n, &Spectrum::of(graph, seed));
    }
    lower.max_minority < alive
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rejects a graph with a set that only the exact search finds.
    #[test]
    fn graph_defeated_only_by_exact_search_is_rejected() {
        let n = 40;
        let missed = (0..40).any(|seed| {
            let graph = Graph::new(n, &random_edges(n, 4, seed)).unwrap();
            let mut grown = Witnesses::default();
            grow_sets(&graph, seed, &mut grown);
            // One crash fewer than the grown sets defeat.
            let f = n - grown.hbo_minority.len() - 1;
            let set = ExactSearch::new(&graph, &mut { u64::MAX }).find(n - f, n / 2).unwrap();
            assert_eq!(tolerates(&graph, f, seed, &mut { u64::MAX }), set.is_none());
            set.is_some()
        });
        assert!(missed);
    }
}
