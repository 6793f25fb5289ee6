//! The measures of a graph: exact if the search completes within its branch limit, otherwise
//! bounds.

use crate::exact_search::{BranchLimitReached, ExactSearch, MAX_SEARCH_VERTICES, vertices};
use crate::expansion_ratio::ExpansionRatio;
use crate::graph::Graph;
use crate::heuristic_search::grow_sets;
use crate::lower_bounds::LowerBounds;
use crate::spectral_bounds::Spectrum;
use crate::witnesses::Witnesses;

/// The greatest number of vertices for which the search has no branch limit. Such a search took at
/// most 0.2 s for each of thousands of graphs.
pub const UNLIMITED_SEARCH_VERTICES: usize = 32;
/// Branches that the search of a larger graph may take for each measure; they take a few seconds.
pub const BRANCH_LIMIT: u64 = 4_000_000;

/// A lower and an upper bound on a number. The number is exact if both are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds<T> {
    /// The proved lower bound.
    pub at_least: T,
    /// The upper bound, proved by a witness.
    pub at_most: T,
}

impl<T: PartialEq> Bounds<T> {
    /// Whether the number is known exactly.
    pub fn is_exact(&self) -> bool {
        self.at_least == self.at_most
    }
}

/// The current stage of a computation, for progress display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Growing sets heuristically.
    HeuristicSearch,
    /// Searching exhaustively, for the measure with this name.
    ExactSearch(&'static str),
    /// Certifying bounds on the eigenvalues.
    EigenvalueBounds,
}

/// The number of crashes that a graph tolerates, by each measure, with the witnesses of the upper
/// bounds.
#[derive(Clone, Debug)]
pub struct Measures {
    /// The vertex expansion h = min |∂S|/|S| over 1 ≤ |S| ≤ n/2; `None` for a single vertex.
    pub expansion: Option<Bounds<ExpansionRatio>>,
    /// The greatest f strictly below (1 − 1/(2(1+h)))·n.
    pub bound_f: Bounds<usize>,
    /// The greatest f such that every set of n − f processes represents more than n/2.
    pub hbo_f: Bounds<usize>,
    /// The greatest f ≤ n − 1 without an SM-cut of n − f processes on each side.
    pub best_f: Bounds<usize>,
    /// The witnesses of the upper bounds.
    pub witnesses: Witnesses,
    /// Whether spectral bounds were used. The lower bounds are then wrong with a probability below
    /// 2⁻³⁹ over the seed.
    pub spectral: bool,
}

impl Measures {
    /// Computes the measures of `graph`. `seed` determines the start vertices of the heuristic
    /// search and the random vector of the spectral bounds. A graph of at most
    /// [`MAX_SEARCH_VERTICES`] is searched exactly, with [`BRANCH_LIMIT`] branches for each
    /// measure, or without a limit if it has at most [`UNLIMITED_SEARCH_VERTICES`]. Calls
    /// `on_stage` before each stage.
    pub fn of(graph: &Graph, seed: u64, on_stage: &dyn Fn(Stage)) -> Measures {
        let branch_limit =
            if graph.vertex_count() <= UNLIMITED_SEARCH_VERTICES { u64::MAX } else { BRANCH_LIMIT };
        Measures::with_branch_limit(graph, seed, branch_limit, on_stage)
    }

    /// Computes the measures with this branch limit for the exact search of each measure. With 0
    /// the graph is not searched, and the measures are bounds, as for a large graph.
    pub fn with_branch_limit(
        graph: &Graph,
        seed: u64,
        branch_limit: u64,
        on_stage: &dyn Fn(Stage),
    ) -> Measures {
        let n = graph.vertex_count();
        on_stage(Stage::HeuristicSearch);
        let mut witnesses = Witnesses::default();
        grow_sets(graph, seed, &mut witnesses);
        let mut lower = LowerBounds::from_degrees(graph);
        if n <= MAX_SEARCH_VERTICES && branch_limit > 0 {
            // A search that reaches its branch limit leaves the lower bound unchanged.
            if lower.max_minority > witnesses.hbo_minority.len() {
                on_stage(Stage::ExactSearch("hbo_f"));
                lower.max_minority =
                    search_minority(graph, branch_limit, &mut witnesses).unwrap_or(lower.max_minority);
            }
            if lower.max_cut > witnesses.sm_cut[0].len() {
                on_stage(Stage::ExactSearch("best_f"));
                lower.max_cut = search_cut(graph, branch_limit, &mut witnesses).unwrap_or(lower.max_cut);
            }
            if lower.expansion < witnesses.expansion_set.as_ref().map(|(ratio, _)| *ratio) {
                on_stage(Stage::ExactSearch("expansion"));
                lower.expansion =
                    search_expansion(graph, branch_limit, &mut witnesses).unwrap_or(lower.expansion);
            }
        }
        let mut measures = Measures::from_bounds(n, &lower, witnesses);
        if !measures.is_exact() && graph.is_connected() {
            on_stage(Stage::EigenvalueBounds);
            let spectrum = Spectrum::of(graph, seed);
            measures.witnesses.try_order(graph, &spectrum.order);
            measures.witnesses.try_order(graph, &spectrum.order.iter().rev().copied().collect::<Vec<_>>());
            lower.tighten(n, &spectrum);
            measures = Measures { spectral: true, ..Measures::from_bounds(n, &lower, measures.witnesses) };
        }
        measures
    }

    /// Returns whether every measure is known exactly.
    pub fn is_exact(&self) -> bool {
        self.expansion.is_none_or(|h| h.is_exact())
            && [self.bound_f, self.hbo_f, self.best_f].iter().all(Bounds::is_exact)
    }

    fn from_bounds(n: usize, lower: &LowerBounds, witnesses: Witnesses) -> Measures {
        let least_ratio = witnesses.expansion_set.as_ref().map(|(ratio, _)| *ratio);
        let expansion =
            lower.expansion.zip(least_ratio).map(|(at_least, at_most)| Bounds { at_least, at_most });
        let bound_f = expansion.map_or(Bounds { at_least: 0, at_most: 0 }, |h| Bounds {
            at_least: h.at_least.bound_f(n),
            at_most: h.at_most.bound_f(n),
        });
        let tolerance =
            |upper: usize, witness: usize| Bounds { at_least: n - 1 - upper, at_most: n - 1 - witness };
        let mut hbo_f = tolerance(lower.max_minority, witnesses.hbo_minority.len());
        hbo_f.at_least = hbo_f.at_least.max(bound_f.at_least);
        let mut best_f = tolerance(lower.max_cut, witnesses.sm_cut[0].len());
        best_f.at_least = best_f.at_least.max(hbo_f.at_least);
        Measures { expansion, bound_f, hbo_f, best_f, witnesses, spectral: false }
    }
}

/// Returns the size of the largest set that represents at most n/2, and adds such a set to
/// `witnesses`.
fn search_minority(
    graph: &Graph,
    mut branches_left: u64,
    witnesses: &mut Witnesses,
) -> Result<usize, BranchLimitReached> {
    let mut search = ExactSearch::new(graph, &mut branches_left);
    while let Some(set) = search.find(witnesses.hbo_minority.len() + 1, graph.vertex_count() / 2)? {
        witnesses.try_set(graph, vertices(set));
    }
    Ok(witnesses.hbo_minority.len())
}

/// Returns the size of each side of the largest SM-cut. The sides are a set S, and as many vertices
/// that are farther than two steps from S.
fn search_cut(
    graph: &Graph,
    mut branches_left: u64,
    witnesses: &mut Witnesses,
) -> Result<usize, BranchLimitReached> {
    let mut search = ExactSearch::of_square(graph, &mut branches_left);
    loop {
        let size = witnesses.sm_cut[0].len() + 1;
        let Some(set) = search.find(size, graph.vertex_count() - size)? else { return Ok(size - 1) };
        witnesses.try_set(graph, vertices(set));
    }
}

/// Returns the expansion. For each size, the function searches for a set with a smaller ratio than
/// the smallest found so far.
fn search_expansion(
    graph: &Graph,
    mut branches_left: u64,
    witnesses: &mut Witnesses,
) -> Result<Option<ExpansionRatio>, BranchLimitReached> {
    let mut search = ExactSearch::new(graph, &mut branches_left);
    let half = graph.vertex_count() / 2;
    for size in 1..=half {
        while let Some((ExpansionRatio { boundary, size: of }, _)) = witnesses.expansion_set
            && boundary > 0
        {
            let less = (boundary * size as u64 - 1) / of;
            let Some(set) = search.find(size, size + less as usize)? else { break };
            witnesses.try_set(graph, vertices(set).take(half));
        }
    }
    Ok(witnesses.expansion_set.as_ref().map(|(ratio, _)| *ratio))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generators::generate;

    #[test]
    fn searches_are_exact_without_heuristic_witnesses() {
        let cases: [(&str, &[usize]); 8] = [
            ("ring", &[9]),
            ("star", &[8]),
            ("grid", &[3, 5]),
            ("torus", &[3, 4]),
            ("hypercube", &[4]),
            ("petersen", &[]),
            ("random-regular", &[18, 3]),
            ("random-regular", &[20, 4]),
        ];
        for (name, sizes) in cases {
            let graph = generate(name, sizes, 1).unwrap();
            let measures = Measures::of(&graph, 1, &|_| ());
            let single_witness = || {
                let mut witnesses = Witnesses::default();
                witnesses.try_set(&graph, [0]);
                witnesses
            };
            let f = |size| graph.vertex_count() - 1 - size;
            assert_eq!(
                f(search_minority(&graph, u64::MAX, &mut single_witness()).unwrap()),
                measures.hbo_f.at_least,
                "{name}"
            );
            assert_eq!(
                f(search_cut(&graph, u64::MAX, &mut single_witness()).unwrap()),
                measures.best_f.at_least,
                "{name}"
            );
            let expansion = search_expansion(&graph, u64::MAX, &mut single_witness()).unwrap();
            assert_eq!(expansion, measures.expansion.map(|h| h.at_least), "{name}");
        }
    }
}
