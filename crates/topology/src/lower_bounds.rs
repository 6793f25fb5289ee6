//! Lower bounds from degrees and connectivity, which need no search.

use crate::expansion_ratio::ExpansionRatio;
use crate::graph::Graph;
use crate::spectral_bounds::Spectrum;

/// Lower bounds on the measures, as upper bounds on the sizes of sets.
/// [`Witnesses`](crate::witnesses::Witnesses) holds examples of such sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LowerBounds {
    /// A lower bound on the expansion; `None` for a single vertex, which has no set of at most n/2
    /// vertices.
    pub(crate) expansion: Option<ExpansionRatio>,
    /// An upper bound on the size of a set that represents at most n/2 processes.
    pub(crate) max_minority: usize,
    /// An upper bound on the size of each side of an SM-cut.
    pub(crate) max_cut: usize,
}

impl LowerBounds {
    /// Derives the bounds from the degrees and the connectivity.
    ///
    /// For |S| ≤ n/2, |∂S| is at least the vertex connectivity, and at least (least degree + 1) −
    /// |S|, because one vertex of S alone has least degree + 1 vertices in its closed
    /// neighbourhood. The two sides of an SM-cut have disjoint closed neighbourhoods, so one of the
    /// neighbourhoods has at most n/2 vertices. One side contains no vertex of the closed
    /// neighbourhood of a vertex of greatest degree; otherwise that vertex would connect the sides.
    pub(crate) fn from_degrees(graph: &Graph) -> LowerBounds {
        let n = graph.vertex_count();
        let (least, greatest) = graph.degree_range();
        let connected = connectivity(graph);
        let boundary = connected.max((least + 1).saturating_sub(n / 2));
        let expansion = (n > 1).then_some(ExpansionRatio { boundary: boundary as u64, size: n as u64 / 2 });
        let max_minority = if 2 * (least + 1) > n { 0 } else { n / 2 - boundary };
        LowerBounds { expansion, max_minority, max_cut: max_minority.min(n - 1 - greatest) }
    }

    /// Replaces each bound that is less tight than the spectral bound.
    pub(crate) fn tighten(&mut self, n: usize, spectrum: &Spectrum) {
        const UNIT: u64 = 1 << 20;
        let expansion = ExpansionRatio { boundary: (spectrum.expansion() * UNIT as f64) as u64, size: UNIT };
        self.expansion = self.expansion.max(Some(expansion));
        self.max_minority = self.max_minority.min(spectrum.minority(n));
        self.max_cut = self.max_cut.min(spectrum.cut(n)).min(self.max_minority);
    }
}

/// Returns the vertex connectivity, or 2 if it is greater.
fn connectivity(graph: &Graph) -> usize {
    match graph.is_connected() {
        false => 0,
        true => 1 + usize::from(graph.vertex_count() > 2 && !has_cut_vertex(graph)),
    }
}

/// Returns whether a connected graph has a cut vertex (Hopcroft and Tarjan 1973).
fn has_cut_vertex(graph: &Graph) -> bool {
    let n = graph.vertex_count();
    // The discovery time of each vertex, from 1, and its low-point: the least discovery time that
    // its subtree reaches by a back edge.
    let (mut discovered, mut low_point) = (vec![0; n], vec![0; n]);
    let mut children_of_root = 0;
    let mut clock = 1;
    discovered[0] = clock;
    low_point[0] = clock;
    // The vertices on the current path: each with its parent and the number of its neighbours that
    // are done.
    let mut path = vec![(0u32, 0u32, 0usize)];
    while let Some((v, parent, done)) = path.last_mut() {
        let (v, parent) = (*v, *parent);
        if let Some(&w) = graph.neighbours(v).get(*done) {
            *done += 1;
            if discovered[w as usize] == 0 {
                clock += 1;
                discovered[w as usize] = clock;
                low_point[w as usize] = clock;
                path.push((w, v, 0));
            } else {
                low_point[v as usize] = low_point[v as usize].min(discovered[w as usize]);
            }
            continue;
        }
        path.pop();
        if v == 0 {
            break;
        }
        if parent == 0 {
            children_of_root += 1;
        } else if low_point[v as usize] >= discovered[parent as usize] {
            return true;
        }
        low_point[parent as usize] = low_point[parent as usize].min(low_point[v as usize]);
    }
    children_of_root > 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn connectivity_matches_removal_of_each_vertex(n in 1usize..8, edges in proptest::collection::vec((0u32..8, 0u32..8), 0..16)) {
            let edges: Vec<_> = edges.into_iter().filter(|&(u, v)| u != v && u.max(v) < n as u32).collect();
            let graph = Graph::new(n, &edges).unwrap();
            let without = |removed: u32| {
                let renamed = |v: u32| v - u32::from(v > removed);
                let rest = edges.iter().filter(|&&(u, v)| u != removed && v != removed);
                Graph::new(n - 1, &rest.map(|&(u, v)| (renamed(u), renamed(v))).collect::<Vec<_>>()).unwrap()
            };
            let expected = match graph.is_connected() {
                false => 0,
                true if n > 2 && graph.vertices().all(|v| without(v).is_connected()) => 2,
                true => 1,
            };
            prop_assert_eq!(connectivity(&graph), expected);
        }
    }
}
