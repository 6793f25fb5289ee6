//! What is certain without any search: lower bounds from degrees and connectivity.

use crate::expansion_ratio::ExpansionRatio;
use crate::graph::Graph;
use crate::spectral_bounds::Spectrum;

/// Upper bounds on the sets that [`Witnesses`](crate::witnesses::Witnesses) holds examples of: no worse ones exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LowerBounds {
    /// The expansion is at least this; none for a single vertex, which has no set to measure.
    pub(crate) expansion: Option<ExpansionRatio>,
    /// No set of more processes represents at most n/2.
    pub(crate) minority: usize,
    /// No SM-cut has more on each side.
    pub(crate) cut: usize,
}

impl LowerBounds {
    /// From degrees and connectivity.
    ///
    /// Of S with |S| ≤ n/2, |∂S| is at least the connectivity, and at least (least degree + 1) − |S|: what one of its
    /// vertices represents, without S. The two sides of an SM-cut represent disjoint sets, of which one has at most n/2;
    /// and one of them touches no neighbour of the vertex of greatest degree, or they would be joined by it.
    pub(crate) fn from_degrees(graph: &Graph) -> LowerBounds {
        let n = graph.vertex_count();
        let (least, most) = graph.degree_range();
        let connected = connectivity(graph);
        let boundary = connected.max((least + 1).saturating_sub(n / 2));
        let expansion = (n > 1).then_some(ExpansionRatio { boundary: boundary as u64, size: n as u64 / 2 });
        let minority = if 2 * (least + 1) > n { 0 } else { n / 2 - boundary };
        LowerBounds { expansion, minority, cut: minority.min(n - 1 - most) }
    }

    /// With what the eigenvalues say.
    pub(crate) fn tighten(&mut self, n: usize, spectrum: &Spectrum) {
        const UNIT: u64 = 1 << 20;
        let expansion = ExpansionRatio { boundary: (spectrum.expansion() * UNIT as f64) as u64, size: UNIT };
        self.expansion = self.expansion.max(Some(expansion));
        self.minority = self.minority.min(spectrum.minority(n));
        self.cut = self.cut.min(spectrum.cut(n)).min(self.minority);
    }
}

/// How many vertices must go before the rest falls apart, counted up to 2.
fn connectivity(graph: &Graph) -> usize {
    match graph.is_connected() {
        false => 0,
        true => 1 + usize::from(graph.vertex_count() > 2 && !has_cut_vertex(graph)),
    }
}

/// Whether a connected graph has a vertex without which it would not be (Hopcroft and Tarjan 1973).
fn has_cut_vertex(graph: &Graph) -> bool {
    let n = graph.vertex_count();
    // When a vertex was entered, from 1, and the earliest that it or what is below it touches.
    let (mut entered, mut earliest) = (vec![0; n], vec![0; n]);
    let mut children_of_root = 0;
    let mut clock = 1;
    entered[0] = clock;
    earliest[0] = clock;
    // A vertex, its parent, and how many of its neighbours were looked at.
    let mut path = vec![(0u32, 0u32, 0usize)];
    while let Some((v, parent, looked)) = path.last_mut() {
        let (v, parent) = (*v, *parent);
        if let Some(&w) = graph.neighbours(v).get(*looked) {
            *looked += 1;
            if entered[w as usize] == 0 {
                clock += 1;
                entered[w as usize] = clock;
                earliest[w as usize] = clock;
                path.push((w, v, 0));
            } else {
                earliest[v as usize] = earliest[v as usize].min(entered[w as usize]);
            }
            continue;
        }
        path.pop();
        if v == 0 {
            break;
        }
        if parent == 0 {
            children_of_root += 1;
        } else if earliest[v as usize] >= entered[parent as usize] {
            return true;
        }
        earliest[parent as usize] = earliest[parent as usize].min(earliest[v as usize]);
    }
    children_of_root > 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn connectivity_is_what_removing_vertices_shows(n in 1usize..8, edges in proptest::collection::vec((0u32..8, 0u32..8), 0..16)) {
            let edges: Vec<_> = edges.into_iter().filter(|&(u, v)| u != v && u.max(v) < n as u32).collect();
            let graph = Graph::new(n, &edges).unwrap();
            let without = |gone: u32| {
                let renamed = |v: u32| v - u32::from(v > gone);
                let rest = edges.iter().filter(|&&(u, v)| u != gone && v != gone);
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
