//! The text output: one line per measure, with the formula or the set of processes that explains
//! its value.

use std::io::{self, Write};

use mitra_topology::{Graph, Measures};

use crate::cli::text_table;

use super::json::{Summary, format_bounds, format_set};

/// The largest number of edges that the output lists. `--write` saves larger graphs.
const MAX_PRINTED_EDGES: usize = 60;

pub(super) fn print(
    out: &mut impl Write,
    name: &str,
    graph: &Graph,
    measures: &Measures,
    summary: &Summary,
) -> io::Result<()> {
    writeln!(out, "{name}: {}\n", size(summary))?;
    let rows = rows(graph, measures, summary);
    let cells = rows.map(|(measure, value, reason)| [measure.to_owned(), value, reason]);
    text_table::layout(2, &[], cells).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    writeln!(out, "\n{}", misread_bound(summary))?;
    writeln!(out, "{}", certainty(summary))?;
    if let Some(text) = suggestion(summary) {
        writeln!(out, "{text}")?;
        if summary.edges <= MAX_PRINTED_EDGES {
            let edges: Vec<String> = graph.edges().map(|(u, v)| format!("{u}-{v}")).collect();
            writeln!(out, "Edges: {}", edges.join(" "))?;
        } else {
            writeln!(out, "The graph has {} edges; save them with --write FILE.", summary.edges)?;
        }
    }
    Ok(())
}

/// Formats the numbers of processes, of connections, and of connections per NIC.
pub(super) fn size(summary: &Summary) -> String {
    let Summary { n, edges, connections_per_nic: per_nic, .. } = summary;
    let per_nic = if per_nic.least == per_nic.most {
        per_nic.least.to_string()
    } else {
        format!("{} to {} (mean {:.1})", per_nic.least, per_nic.most, per_nic.mean)
    };
    format!("{n} processes, {edges} shared-memory connections, {per_nic} per NIC")
}

/// Returns for each measure its name, its value, and the reason why it is not larger: a formula or
/// a set of processes.
pub(super) fn rows(
    graph: &Graph,
    measures: &Measures,
    summary: &Summary,
) -> [(&'static str, String, String); 5] {
    let n = graph.vertex_count();
    let expansion = measures.expansion.map_or("none".to_owned(), |h| {
        if h.is_exact() {
            h.at_least.to_string()
        } else {
            format!("{:.4} … {:.4}", h.at_least.value(), h.at_most.value())
        }
    });
    let expansion_witness = measures.witnesses.expansion_set.as_ref().map_or(String::new(), |(ratio, s)| {
        format!("{} around the {} of {}", ratio.boundary, ratio.size, format_set(s))
    });
    let minority = &measures.witnesses.hbo_minority;
    let hbo = match minority.len() {
        0 => "no crashes defeat it: each process represents a majority".to_owned(),
        left => {
            let represented = graph.represented(minority).len();
            format!("f = {}: live {}, {represented} of {n} represented", n - left, format_set(minority))
        }
    };
    let [s, t] = &measures.witnesses.sm_cut;
    let best = match s.len() {
        0 if measures.best_f.is_exact() => {
            "no crashes defeat it: no two processes are at distance 3 or more".to_owned()
        }
        0 => "no SM-cut was found".to_owned(),
        half => {
            format!("f = {}: {} and {} are at distance 3 or more", n - half, format_set(s), format_set(t))
        }
    };
    let misread = summary.misread_bound.map_or("none".to_owned(), |f| f.to_string());
    [
        ("expansion h", expansion, expansion_witness),
        ("theorem's bound f", format_bounds(&measures.bound_f), "greatest f < (1 − 1/(2(1+h)))·n".to_owned()),
        ("misread bound f", misread, "greatest f < (1 − 1/(2h))·n".to_owned()),
        ("HBO f", format_bounds(&measures.hbo_f), hbo),
        ("best possible f", format_bounds(&measures.best_f), best),
    ]
}

/// Explains why the misread bound is not valid.
pub(super) fn misread_bound(summary: &Summary) -> String {
    let instead = match (summary.expansion, summary.misread_bound) {
        (None, _) => "is undefined for one process".to_owned(),
        (_, Some(f)) => format!("gives {f} instead of {}", summary.bound_f),
        (_, None) => format!("gives no bound instead of {}", summary.bound_f),
    };
    format!(
        "The misread bound holds only if h is read as |S ∪ N(S)|/|S|, which is 1 + h. With h = min |∂S|/|S| it {instead}."
    )
}

/// Describes whether the measures are exact.
pub(super) fn certainty(summary: &Summary) -> &'static str {
    match (summary.exact, summary.spectral) {
        (true, false) => "Exact.",
        (true, true) => {
            "Exact, except with a probability below 2⁻³⁹ (over the seed) that the eigenvalue bounds are wrong."
        }
        (false, false) => "Bounds: the lower from degrees and connectivity, the upper from the sets shown.",
        (false, true) => {
            "Bounds: the lower from eigenvalues (wrong with a probability below 2⁻³⁹, over the seed), degrees and connectivity, \
             the upper from the sets shown."
        }
    }
}

/// Describes the suggested graph, and how its tolerance was checked.
pub(super) fn suggestion(summary: &Summary) -> Option<String> {
    let suggested = summary.suggestion.as_ref()?;
    Some(format!(
        "Suggested: degree {}, tolerates f = {} under HBO, checked by {}; below degree {} no graph does.",
        suggested.degree,
        suggested.f,
        if suggested.checked_by == "exact" { "its exact tolerance" } else { "its lower bound" },
        suggested.least_degree
    ))
}
