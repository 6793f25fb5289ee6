//! The numbers, with the names that scripts rely on.

use mitra_topology::{Bounds, Graph, Measures, Suggestion};
use serde::Serialize;

/// One JSON object; docs/topology.md describes the fields.
#[derive(Serialize)]
pub(super) struct Summary {
    pub(super) n: usize,
    pub(super) edges: usize,
    pub(super) connections_per_nic: Connections,
    /// h, or what it is at least; null for a single process.
    pub(super) expansion: Option<f64>,
    /// The same in lowest terms.
    pub(super) expansion_ratio: Option<String>,
    pub(super) bound_f: usize,
    /// What the slide's form gives in its place; null if not even f = 0.
    pub(super) slide_f: Option<usize>,
    pub(super) hbo_f: usize,
    pub(super) best_f: usize,
    pub(super) exact: bool,
    #[serde(flatten)]
    pub(super) at_most: Option<AtMost>,
    /// Whether lower bounds rest on eigenvalues.
    pub(super) spectral: bool,
    pub(super) expansion_set: Option<Vec<u32>>,
    pub(super) hbo_minority: Vec<u32>,
    pub(super) sm_cut: [Vec<u32>; 2],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) suggestion: Option<Suggested>,
}

#[derive(Serialize)]
pub(super) struct Connections {
    pub(super) least: usize,
    pub(super) mean: f64,
    pub(super) most: usize,
}

/// What the numbers are at most, where they are not exact.
#[derive(Serialize)]
pub(super) struct AtMost {
    expansion_at_most: Option<f64>,
    bound_f_at_most: usize,
    hbo_f_at_most: usize,
    best_f_at_most: usize,
}

#[derive(Serialize)]
pub(super) struct Suggested {
    pub(super) f: usize,
    pub(super) degree: usize,
    /// No graph with fewer connections at its busiest NIC tolerates f under HBO.
    pub(super) least_degree: usize,
    /// By which `hbo_f` it was checked: exact or bound.
    pub(super) checked_by: &'static str,
    pub(super) edges: Vec<(u32, u32)>,
}

impl Summary {
    pub(super) fn new(graph: &Graph, measures: &Measures, suggestion: Option<&Suggestion>) -> Summary {
        let Measures { expansion, bound_f, hbo_f, best_f, ref witnesses, spectral } = *measures;
        let (n, edges, (least, most)) = (graph.vertex_count(), graph.edge_count(), graph.degree_range());
        let exact = measures.is_exact();
        let h = expansion.map(|h| h.at_least);
        Summary {
            n,
            edges,
            connections_per_nic: Connections { least, mean: 2.0 * edges as f64 / n as f64, most },
            expansion: h.map(|h| h.value()),
            expansion_ratio: h.map(|h| h.to_string()),
            bound_f: bound_f.at_least,
            slide_f: h.and_then(|h| h.misread_bound(n)),
            hbo_f: hbo_f.at_least,
            best_f: best_f.at_least,
            exact,
            at_most: (!exact).then(|| AtMost {
                expansion_at_most: expansion.map(|h| h.at_most.value()),
                bound_f_at_most: bound_f.at_most,
                hbo_f_at_most: hbo_f.at_most,
                best_f_at_most: best_f.at_most,
            }),
            spectral,
            expansion_set: witnesses.expansion_set.as_ref().map(|(_, set)| set.clone()),
            hbo_minority: witnesses.hbo_minority.clone(),
            sm_cut: witnesses.sm_cut.clone(),
            suggestion: suggestion.map(|suggestion| Suggested {
                f: suggestion.f,
                degree: suggestion.degree,
                least_degree: suggestion.least_degree,
                checked_by: if hbo_f.is_exact() { "exact" } else { "bound" },
                edges: graph.edges().collect(),
            }),
        }
    }
}

/// A number, or what it lies between.
pub(super) fn shown<T: PartialEq + ToString>(between: &Bounds<T>) -> String {
    if between.is_exact() {
        between.at_least.to_string()
    } else {
        format!("{} … {}", between.at_least.to_string(), between.at_most.to_string())
    }
}

/// A set, shortened where it is long.
pub(super) fn set(vertices: &[u32]) -> String {
    const SHOWN: usize = 12;
    let mut sorted = vertices.to_vec();
    sorted.sort_unstable();
    let start: Vec<String> = sorted.iter().take(SHOWN).map(u32::to_string).collect();
    let more = match vertices.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(", … {more} more"),
    };
    format!("{{{}{more}}}", start.join(", "))
}
