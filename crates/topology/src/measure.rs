//! All measures of a graph: exact where the search ends in time, bounds where not.

use crate::floor::Floor;
use crate::found::Found;
use crate::graph::Graph;
use crate::probe::probe;
use crate::ratio::Ratio;
use crate::search::{MAX_SEARCHED, Search, Spent, vertices};
use crate::spectral::Spectrum;

/// Up to this many vertices the search goes on until it ends: at most 0.2 s for the thousands of graphs that were tried.
pub const ALWAYS_EXACT: usize = 32;
/// Branches that the search of a larger graph may take for each measure: a few seconds.
pub const EFFORT: u64 = 4_000_000;

/// What is certain about a number. Exact where both are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Between<T> {
    /// Proved.
    pub at_least: T,
    /// Shown by a set.
    pub at_most: T,
}

impl<T: PartialEq> Between<T> {
    /// Whether the number is known.
    pub fn is_exact(&self) -> bool {
        self.at_least == self.at_most
    }
}

/// What is being done, for those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Looking for bad sets by growing some.
    Probing,
    /// Searching exhaustively for this measure.
    Searching(&'static str),
    /// Bounding the eigenvalues.
    Eigenvalues,
}

/// How many crashes a graph tolerates, by each measure, and the sets that defeat it.
#[derive(Clone, Debug)]
pub struct Measures {
    /// h = min |∂S|/|S| over 1 ≤ |S| ≤ n/2; none for a single vertex.
    pub expansion: Option<Between<Ratio>>,
    /// Greatest f strictly below (1 − 1/(2(1+h)))·n.
    pub bound_f: Between<usize>,
    /// Greatest f such that every set of n − f processes represents more than n/2.
    pub hbo_f: Between<usize>,
    /// Greatest f ≤ n − 1 without an SM-cut of n − f processes on each side.
    pub best_f: Between<usize>,
    /// The sets that show the upper bounds.
    pub found: Found,
    /// Whether eigenvalues were used: then the lower bounds fail with a probability below 2⁻³⁹ over the seed.
    pub spectral: bool,
}

impl Measures {
    /// Measures `graph`; `seed` chooses where a large one is probed. Of at most [`MAX_SEARCHED`] vertices, it is searched with
    /// [`EFFORT`], or as long as it takes up to [`ALWAYS_EXACT`].
    pub fn of(graph: &Graph, seed: u64, tell: &dyn Fn(Stage)) -> Measures {
        let effort = if graph.n() <= ALWAYS_EXACT { u64::MAX } else { EFFORT };
        Measures::with_effort(graph, seed, effort, tell)
    }

    /// Measures `graph` with so much effort for the search of each measure; 0 leaves the bounds that large graphs get.
    pub fn with_effort(graph: &Graph, seed: u64, effort: u64, tell: &dyn Fn(Stage)) -> Measures {
        let n = graph.n();
        tell(Stage::Probing);
        let mut found = Found::default();
        probe(graph, seed, &mut found);
        let mut floor = Floor::simple(graph);
        if n <= MAX_SEARCHED && effort > 0 {
            // A search that had to be given up leaves the floor as it was.
            if floor.minority > found.minority.len() {
                tell(Stage::Searching("hbo_f"));
                floor.minority = search_minority(graph, effort, &mut found).unwrap_or(floor.minority);
            }
            if floor.cut > found.cut[0].len() {
                tell(Stage::Searching("best_f"));
                floor.cut = search_cut(graph, effort, &mut found).unwrap_or(floor.cut);
            }
            if floor.expansion < found.thin.as_ref().map(|(ratio, _)| *ratio) {
                tell(Stage::Searching("expansion"));
                floor.expansion = search_expansion(graph, effort, &mut found).unwrap_or(floor.expansion);
            }
        }
        let mut measures = Measures::between(n, &floor, found);
        if !measures.is_exact() && graph.is_connected() {
            tell(Stage::Eigenvalues);
            let spectrum = Spectrum::of(graph, seed);
            measures.found.try_order(graph, &spectrum.order);
            measures.found.try_order(graph, &spectrum.order.iter().rev().copied().collect::<Vec<_>>());
            floor.raise(n, &spectrum);
            measures = Measures { spectral: true, ..Measures::between(n, &floor, measures.found) };
        }
        measures
    }

    /// Whether every measure is known exactly.
    pub fn is_exact(&self) -> bool {
        self.expansion.is_none_or(|h| h.is_exact())
            && [self.bound_f, self.hbo_f, self.best_f].iter().all(Between::is_exact)
    }

    fn between(n: usize, floor: &Floor, found: Found) -> Measures {
        let thinnest = found.thin.as_ref().map(|(ratio, _)| *ratio);
        let expansion =
            floor.expansion.zip(thinnest).map(|(at_least, at_most)| Between { at_least, at_most });
        let bound_f = expansion.map_or(Between { at_least: 0, at_most: 0 }, |h| Between {
            at_least: h.at_least.bound_f(n),
            at_most: h.at_most.bound_f(n),
        });
        let tolerance =
            |largest: usize, example: usize| Between { at_least: n - 1 - largest, at_most: n - 1 - example };
        let mut hbo_f = tolerance(floor.minority, found.minority.len());
        hbo_f.at_least = hbo_f.at_least.max(bound_f.at_least);
        let mut best_f = tolerance(floor.cut, found.cut[0].len());
        best_f.at_least = best_f.at_least.max(hbo_f.at_least);
        Measures { expansion, bound_f, hbo_f, best_f, found, spectral: false }
    }
}

/// The size of the largest set that represents at most n/2; an example goes to `found`.
fn search_minority(graph: &Graph, mut effort: u64, found: &mut Found) -> Result<usize, Spent> {
    let mut search = Search::new(graph, &mut effort);
    while let Some(set) = search.find(found.minority.len() + 1, graph.n() / 2)? {
        found.try_set(graph, vertices(set));
    }
    Ok(found.minority.len())
}

/// The size of the largest SM-cut: S with as many vertices not within two steps of it.
fn search_cut(graph: &Graph, mut effort: u64, found: &mut Found) -> Result<usize, Spent> {
    let mut search = Search::of_square(graph, &mut effort);
    loop {
        let size = found.cut[0].len() + 1;
        let Some(set) = search.find(size, graph.n() - size)? else { return Ok(size - 1) };
        found.try_set(graph, vertices(set));
    }
}

/// The expansion: for each size, that no set has a lesser ratio than the least found.
fn search_expansion(graph: &Graph, mut effort: u64, found: &mut Found) -> Result<Option<Ratio>, Spent> {
    let mut search = Search::new(graph, &mut effort);
    let half = graph.n() / 2;
    for size in 1..=half {
        while let Some((Ratio { boundary, size: of }, _)) = found.thin
            && boundary > 0
        {
            let less = (boundary * size as u64 - 1) / of;
            let Some(set) = search.find(size, size + less as usize)? else { break };
            found.try_set(graph, vertices(set).take(half));
        }
    }
    Ok(found.thin.as_ref().map(|(ratio, _)| *ratio))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::build;

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
            let graph = build(name, sizes, 1).unwrap();
            let measures = Measures::of(&graph, 1, &|_| ());
            let alone = || {
                let mut found = Found::default();
                found.try_set(&graph, [0]);
                found
            };
            let f = |size| graph.n() - 1 - size;
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
