//! What people read: a line a measure, and the set that defeats it.

use std::io::{self, Write};

use mitra_topology::{Graph, Measures};

use super::summary::{Summary, set, shown};

/// Edges that a suggestion is printed with; more are for --write.
const PRINTED: usize = 60;

pub(super) fn print(
    out: &mut impl Write,
    name: &str,
    graph: &Graph,
    measures: &Measures,
    summary: &Summary,
) -> io::Result<()> {
    writeln!(out, "{name}: {}\n", size(summary))?;
    for (what, value, why) in rows(graph, measures, summary) {
        writeln!(out, "  {what:<18} {value:<16} {why}")?;
    }
    writeln!(out, "\n{}", slide(summary))?;
    writeln!(out, "{}", certainty(summary))?;
    if let Some(text) = suggestion(summary) {
        writeln!(out, "{text}")?;
        if summary.edges <= PRINTED {
            let edges: Vec<String> = graph.edges().map(|(u, v)| format!("{u}-{v}")).collect();
            writeln!(out, "Edges: {}", edges.join(" "))?;
        } else {
            writeln!(out, "Its {} edges: --write FILE.", summary.edges)?;
        }
    }
    Ok(())
}

/// Processes and connections.
pub(super) fn size(summary: &Summary) -> String {
    let Summary { n, edges, connections_per_nic: per_nic, .. } = summary;
    let per_nic = if per_nic.least == per_nic.most {
        per_nic.least.to_string()
    } else {
        format!("{} to {} (mean {:.1})", per_nic.least, per_nic.most, per_nic.mean)
    };
    format!("{n} processes, {edges} shared-memory connections, {per_nic} per NIC")
}

/// Measure, value, and the set that shows it can be no more.
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
    let thinnest = measures.witnesses.expansion_set.as_ref().map_or(String::new(), |(ratio, s)| {
        format!("{} around the {} of {}", ratio.boundary, ratio.size, set(s))
    });
    let minority = &measures.witnesses.hbo_minority;
    let hbo = match minority.len() {
        0 => "nothing defeats it: each process represents a majority".to_owned(),
        left => {
            let represented = graph.represented(minority).len();
            format!("f = {}: {} left, {represented} of {n} represented", n - left, set(minority))
        }
    };
    let [s, t] = &measures.witnesses.sm_cut;
    let best = match s.len() {
        0 if measures.best_f.is_exact() => {
            "nothing defeats it: no two processes are at distance 3 or more".to_owned()
        }
        0 => "no SM-cut was found".to_owned(),
        half => format!("f = {}: {} and {} are at distance 3 or more", n - half, set(s), set(t)),
    };
    let slide = summary.slide_f.map_or("none".to_owned(), |f| f.to_string());
    [
        ("expansion h", expansion, thinnest),
        ("theorem's bound f", shown(&measures.bound_f), "greatest f < (1 − 1/(2(1+h)))·n".to_owned()),
        ("slide's form f", slide, "greatest f < (1 − 1/(2h))·n".to_owned()),
        ("HBO f", shown(&measures.hbo_f), hbo),
        ("best possible f", shown(&measures.best_f), best),
    ]
}

/// Why the slide's form is no bound to go by.
pub(super) fn slide(summary: &Summary) -> String {
    let instead = match (summary.expansion, summary.slide_f) {
        (None, _) => "has nothing to say of one process".to_owned(),
        (_, Some(f)) => format!("gives {f} in the place of {}", summary.bound_f),
        (_, None) => format!("gives nothing in the place of {}", summary.bound_f),
    };
    format!(
        "The slide's form is right only for h read as |S ∪ N(S)|/|S|, which is 1 + h: with h = min |∂S|/|S| it {instead}."
    )
}

/// How far the numbers can be trusted.
pub(super) fn certainty(summary: &Summary) -> &'static str {
    match (summary.exact, summary.spectral) {
        (true, false) => "Exact.",
        (true, true) => {
            "Exact, but for a probability below 2⁻³⁹ (over the seed) that the eigenvalues were bounded wrongly."
        }
        (false, false) => "Bounds: the lower from degrees and connectivity, the upper from the sets shown.",
        (false, true) => {
            "Bounds: the lower from eigenvalues (wrong with a probability below 2⁻³⁹, over the seed), degrees and connectivity, \
             the upper from the sets shown."
        }
    }
}

/// What a suggestion rests on.
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
