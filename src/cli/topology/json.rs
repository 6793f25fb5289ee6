//! The measures, under the field names of `--json`.

use mitra_topology::{Bounds, Graph, Measures, Suggestion};
use serde::Serialize;

/// The object that `--json` prints; docs/topology.md describes the fields.
#[derive(Serialize)]
pub(super) struct Summary {
    pub(super) n: usize,
    pub(super) edges: usize,
    pub(super) connections_per_nic: Connections,
    /// The expansion h, or its lower bound; null for a single process.
    pub(super) expansion: Option<f64>,
    /// The expansion as a fraction in lowest terms.
    pub(super) expansion_ratio: Option<String>,
    pub(super) bound_f: usize,
    /// The bound that results from reading h as |S ∪ N(S)|/|S|; null if it does not even allow
    /// f = 0.
    #[serde(rename = "slide_f")]
    pub(super) misread_bound: Option<usize>,
    pub(super) hbo_f: usize,
    pub(super) best_f: usize,
    pub(super) exact: bool,
    #[serde(flatten)]
    pub(super) at_most: Option<AtMost>,
    /// Whether the lower bounds rest on eigenvalues.
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

/// The upper bounds, if the measures are not exact.
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
    /// The smallest degree for which a graph can tolerate f crashes under HBO.
    pub(super) least_degree: usize,
    /// How the suggestion was checked: by the exact `hbo_f` ("exact") or by its lower bound
    /// ("bound").
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
            misread_bound: h.and_then(|h| h.misread_bound(n)),
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

/// Formats a value, or the bounds between which it lies.
pub(super) fn format_bounds<T: PartialEq + ToString>(between: &Bounds<T>) -> String {
    if between.is_exact() {
        between.at_least.to_string()
    } else {
        format!("{} … {}", between.at_least.to_string(), between.at_most.to_string())
    }
}

/// Formats a set of vertices: at most twelve of them, and the number of the others.
pub(super) fn format_set(vertices: &[u32]) -> String {
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
