//! All measures of a graph: exact where the search ends in time, bounds where not.

use crate::exact_search::{BranchLimitReached, ExactSearch, MAX_SEARCH_VERTICES, vertices};
use crate::expansion_ratio::ExpansionRatio;
use crate::graph::Graph;
use crate::heuristic_search::grow_sets;
use crate::lower_bounds::LowerBounds;
use crate::spectral_bounds::Spectrum;
use crate::witnesses::Witnesses;

/// Up to this many vertices the search goes on until it ends: at most 0.2 s for the thousands of graphs that were tried.
pub const UNLIMITED_SEARCH_VERTICES: usize = 32;
/// Branches that the search of a larger graph may take for each measure: a few seconds.
pub const BRANCH_LIMIT: u64 = 4_000_000;

/// What is certain about a number. Exact where both are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds<T> {
    /// Proved.
    pub at_least: T,
    /// Shown by a set.
    pub at_most: T,
}

impl<T: PartialEq> Bounds<T> {
    /// Whether the number is known.
    pub fn is_exact(&self) -> bool {
        self.at_least == self.at_most
    }
}

/// What is being done, for those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Looking for bad sets by growing some.
    HeuristicSearch,
    /// Searching exhaustively for this measure.
    ExactSearch(&'static str),
    /// Bounding the eigenvalues.
    EigenvalueBounds,
}

/// How many crashes a graph tolerates, by each measure, and the sets that defeat it.
#[derive(Clone, Debug)]
pub struct Measures {
    /// h = min |∂S|/|S| over 1 ≤ |S| ≤ n/2; none for a single vertex.
    pub expansion: Option<Bounds<ExpansionRatio>>,
    /// Greatest f strictly below (1 − 1/(2(1+h)))·n.
    pub bound_f: Bounds<usize>,
    /// Greatest f such that every set of n − f processes represents more than n/2.
    pub hbo_f: Bounds<usize>,
    /// Greatest f ≤ n − 1 without an SM-cut of n − f processes on each side.
    pub best_f: Bounds<usize>,
    /// The sets that show the upper bounds.
    pub witnesses: Witnesses,
    /// Whether eigenvalues were used: then the lower bounds fail with a probability below 2⁻³⁹ over the seed.
    pub spectral: bool,
}

impl Measures {
    /// Measures `graph`; `seed` chooses where a large one is probed. Of at most [`MAX_SEARCH_VERTICES`] vertices, it is searched with
    /// [`BRANCH_LIMIT`], or as long as it takes up to [`UNLIMITED_SEARCH_VERTICES`].
    pub fn of(graph: &Graph, seed: u64, tell: &dyn Fn(Stage)) -> Measures {
        let effort = if graph.vertex_count() <= UNLIMITED_SEARCH_VERTICES { u64::MAX } else { BRANCH_LIMIT };
        Measures::with_branch_limit(graph, seed, effort, tell)
    }

    /// Measures `graph` with so much effort for the search of each measure; 0 leaves the bounds that large graphs get.
    pub fn with_branch_limit(graph: &Graph, seed: u64, effort: u64, tell: &dyn Fn(Stage)) -> Measures {
        let n = graph.vertex_count();
        tell(Stage::HeuristicSearch);
        let mut witnesses = Witnesses::default();
        grow_sets(graph, seed, &mut witnesses);
        let mut lower = LowerBounds::from_degrees(graph);
        if n <= MAX_SEARCH_VERTICES && effort > 0 {
            // A search that had to be given up leaves the lower as it was.
            if lower.minority > witnesses.hbo_minority.len() {
                tell(Stage::ExactSearch("hbo_f"));
                lower.minority = search_minority(graph, effort, &mut witnesses).unwrap_or(lower.minority);
            }
            if lower.cut > witnesses.sm_cut[0].len() {
                tell(Stage::ExactSearch("best_f"));
                lower.cut = search_cut(graph, effort, &mut witnesses).unwrap_or(lower.cut);
            }
            if lower.expansion < witnesses.expansion_set.as_ref().map(|(ratio, _)| *ratio) {
                tell(Stage::ExactSearch("expansion"));
                lower.expansion = search_expansion(graph, effort, &mut witnesses).unwrap_or(lower.expansion);
            }
        }
        let mut measures = Measures::between(n, &lower, witnesses);
        if !measures.is_exact() && graph.is_connected() {
            tell(Stage::EigenvalueBounds);
            let spectrum = Spectrum::of(graph, seed);
            measures.witnesses.try_order(graph, &spectrum.order);
            measures.witnesses.try_order(graph, &spectrum.order.iter().rev().copied().collect::<Vec<_>>());
            lower.tighten(n, &spectrum);
            measures = Measures { spectral: true, ..Measures::between(n, &lower, measures.witnesses) };
        }
        measures
    }

    /// Whether every measure is known exactly.
    pub fn is_exact(&self) -> bool {
        self.expansion.is_none_or(|h| h.is_exact())
            && [self.bound_f, self.hbo_f, self.best_f].iter().all(Bounds::is_exact)
    }

    fn between(n: usize, lower: &LowerBounds, witnesses: Witnesses) -> Measures {
        let thinnest = witnesses.expansion_set.as_ref().map(|(ratio, _)| *ratio);
        let expansion = lower.expansion.zip(thinnest).map(|(at_least, at_most)| Bounds { at_least, at_most });
        let bound_f = expansion.map_or(Bounds { at_least: 0, at_most: 0 }, |h| Bounds {
            at_least: h.at_least.bound_f(n),
            at_most: h.at_most.bound_f(n),
        });
        let tolerance =
            |largest: usize, example: usize| Bounds { at_least: n - 1 - largest, at_most: n - 1 - example };
        let mut hbo_f = tolerance(lower.minority, witnesses.hbo_minority.len());
        hbo_f.at_least = hbo_f.at_least.max(bound_f.at_least);
        let mut best_f = tolerance(lower.cut, witnesses.sm_cut[0].len());
        best_f.at_least = best_f.at_least.max(hbo_f.at_least);
        Measures { expansion, bound_f, hbo_f, best_f, witnesses, spectral: false }
    }
}

/// The size of the largest set that represents at most n/2; an example goes to `found`.
fn search_minority(
    graph: &Graph,
    mut effort: u64,
    witnesses: &mut Witnesses,
) -> Result<usize, BranchLimitReached> {
    let mut search = ExactSearch::new(graph, &mut effort);
    while let Some(set) = search.find(witnesses.hbo_minority.len() + 1, graph.vertex_count() / 2)? {
        witnesses.try_set(graph, vertices(set));
    }
    Ok(witnesses.hbo_minority.len())
}

/// The size of the largest SM-cut: S with as many vertices not within two steps of it.
fn search_cut(
    graph: &Graph,
    mut effort: u64,
    witnesses: &mut Witnesses,
) -> Result<usize, BranchLimitReached> {
    let mut search = ExactSearch::of_square(graph, &mut effort);
    loop {
        let size = witnesses.sm_cut[0].len() + 1;
        let Some(set) = search.find(size, graph.vertex_count() - size)? else { return Ok(size - 1) };
        witnesses.try_set(graph, vertices(set));
    }
}

/// The expansion: for each size, that no set has a lesser ratio than the least found.
fn search_expansion(
    graph: &Graph,
    mut effort: u64,
    witnesses: &mut Witnesses,
) -> Result<Option<ExpansionRatio>, BranchLimitReached> {
    let mut search = ExactSearch::new(graph, &mut effort);
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

    /// The searches do not lean on what growing sets has found before.
    #[test]
    fn searches_alone_find_what_they_find_together() {
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
            let alone = || {
                let mut witnesses = Witnesses::default();
                witnesses.try_set(&graph, [0]);
                witnesses
            };
            let f = |size| graph.vertex_count() - 1 - size;
            assert_eq!(
                f(search_minority(&graph, u64::MAX, &mut alone()).unwrap()),
                measures.hbo_f.at_least,
                "{name}"
            );
            assert_eq!(
                f(search_cut(&graph, u64::MAX, &mut alone()).unwrap()),
                measures.best_f.at_least,
                "{name}"
            );
            let expansion = search_expansion(&graph, u64::MAX, &mut alone()).unwrap();
            assert_eq!(expansion, measures.expansion.map(|h| h.at_least), "{name}");
        }
    }
}
