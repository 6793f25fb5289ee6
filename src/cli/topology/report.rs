//! `--report FILE.html`: the measures, and the graph with what defeats it.

use mitra_topology::{Graph, Measures};

use super::drawing::{LIMITS, draw, is_drawable};
use super::summary::Summary;
use super::table::{certainty, rows, size, slide, suggestion};
use crate::cli::page::{self, escape};

const STYLE: &str = "th, td { text-align: left; } td.value { font-weight: 600; white-space: nowrap; } section + p { margin-top: 16px; }\n";

pub(super) fn page(name: &str, graph: &Graph, measures: &Measures, summary: &Summary) -> String {
    let mut out = format!(
        "<header><p class=\"brand\">mitra topology</p>\n<h1>{}</h1>\n<p class=\"lead\">{}. Neighbours may access each other's memory, \
         which outlives its process; messages reach everybody.</p>\n",
        escape(name),
        escape(&size(summary))
    );
    for text in suggestion(summary).into_iter().chain([certainty(summary).to_owned()]) {
        out.push_str(&format!("<p class=\"quiet\">{}</p>\n", escape(&text)));
    }
    out.push_str("</header>\n");
    if is_drawable(graph) {
        out.push_str(&format!("<figure>\n{}</figure>\n", draw(graph, measures)));
    } else {
        out.push_str(&format!("<p class=\"quiet\">Not drawn: more than {LIMITS}.</p>\n"));
    }
    out.push_str(
        "<section class=\"tables\"><table><thead><tr><th>measure</th><th>value</th><th>what it comes from, or what defeats it</th></tr></thead><tbody>\n",
    );
    for (what, value, why) in rows(graph, measures, summary) {
        out.push_str(&format!(
            "<tr><th>{what}</th><td class=\"value\">{}</td><td>{}</td></tr>\n",
            escape(&value),
            escape(&why)
        ));
    }
    out.push_str(&format!(
        "</tbody></table></section>\n<p class=\"quiet\">{}</p>\n<footer class=\"quiet\"><p>Mitra {}. Each measure and its source: docs/topology.md.</p></footer>\n",
        escape(&slide(summary)),
        env!("CARGO_PKG_VERSION")
    ));
    page::page(&format!("mitra topology: {name}"), STYLE, &out)
}
