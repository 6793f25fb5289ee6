//! `--svg`: the graph twice, with what defeats HBO and with what defeats everybody.

use mitra_topology::{Graph, Measures};

use super::layout::{Point, layout};

/// What can be drawn so that it tells something.
pub(super) const LIMITS: &str = "300 processes and 3,000 connections";

const STYLE: &str = include_str!("drawing.css");
/// The side of a panel's square, and what is around it.
const SIDE: f64 = 480.0;
const MARGIN: f64 = 34.0;
const HEAD: f64 = 58.0;
const FOOT: f64 = 34.0;
const WIDTH: f64 = SIDE + 2.0 * MARGIN;
const HEIGHT: f64 = HEAD + SIDE + 2.0 * MARGIN + FOOT;

pub(super) fn is_drawable(graph: &Graph) -> bool {
    graph.vertex_count() <= 300 && graph.edge_count() <= 3000
}

/// What a panel says, and the class of each vertex.
struct Panel {
    title: String,
    text: String,
    classes: Vec<&'static str>,
    legend: &'static [(&'static str, &'static str)],
}

/// A drawing that stands by itself.
pub(super) fn draw(graph: &Graph, measures: &Measures) -> String {
    let places = layout(graph);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {HEIGHT}\" role=\"img\">\n<style>\n{STYLE}</style>\n\
         <rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n",
        2.0 * WIDTH
    );
    for (i, panel) in [minority(graph, measures), cut(graph, measures)].iter().enumerate() {
        out.push_str(&format!("<g transform=\"translate({} 0)\">\n", i as f64 * WIDTH));
        draw_panel(&mut out, graph, &places, panel);
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n");
    out
}

fn minority(graph: &Graph, measures: &Measures) -> Panel {
    let left = &measures.witnesses.hbo_minority;
    let represented = graph.represented(left);
    let mut classes = vec!["lost"; graph.vertex_count()];
    mark(&mut classes, &represented, "seen");
    mark(&mut classes, left, "live");
    let (title, text) = match left.len() {
        0 => ("Nothing defeats HBO".to_owned(), "each process alone represents a majority".to_owned()),
        size => (
            format!("HBO waits for ever at f = {}", graph.vertex_count() - size),
            format!(
                "{size} are left and represent {} of {}: no majority",
                represented.len(),
                graph.vertex_count()
            ),
        ),
    };
    let legend = &[("live", "alive"), ("seen", "crashed, represented"), ("lost", "crashed")];
    Panel { title, text, classes, legend }
}

fn cut(graph: &Graph, measures: &Measures) -> Panel {
    let [s, t] = &measures.witnesses.sm_cut;
    let mut classes = vec!["lost"; graph.vertex_count()];
    mark(&mut classes, s, "live");
    mark(&mut classes, t, "other");
    let (title, text) = match s.len() {
        0 if measures.best_f.is_exact() => {
            ("Nothing defeats everybody".to_owned(), "no two processes are at distance 3 or more".to_owned())
        }
        0 => ("No SM-cut was found".to_owned(), "there may be one".to_owned()),
        half => (
            format!("Nobody can decide at f = {}", graph.vertex_count() - half),
            format!("either {half} may be all that is left: at distance 3 or more, neither can tell"),
        ),
    };
    Panel {
        title,
        text,
        classes,
        legend: &[("live", "these"), ("other", "or these"), ("lost", "the others")],
    }
}

fn mark(classes: &mut [&'static str], vertices: &[u32], class: &'static str) {
    for &v in vertices {
        classes[v as usize] = class;
    }
}

fn draw_panel(out: &mut String, graph: &Graph, places: &[Point], panel: &Panel) {
    let at = |v: u32| {
        let [x, y] = places[v as usize];
        (MARGIN + SIDE * x, HEAD + MARGIN + SIDE * y)
    };
    out.push_str(&format!(
        "<text class=\"title\" x=\"{MARGIN}\" y=\"30\">{}</text>\n<text x=\"{MARGIN}\" y=\"50\">{}</text>\n",
        panel.title, panel.text
    ));
    for (u, v) in graph.edges() {
        let ((x1, y1), (x2, y2)) = (at(u), at(v));
        out.push_str(&format!(
            "<line class=\"edge\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>\n"
        ));
    }
    let radius = (SIDE / (graph.vertex_count() as f64).sqrt() * 0.2).clamp(3.5, 14.0);
    for v in graph.vertices() {
        let ((x, y), class) = (at(v), panel.classes[v as usize]);
        out.push_str(&format!(
            "<circle class=\"vertex {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius:.1}\"><title>{v}</title></circle>\n"
        ));
        if radius >= 9.0 {
            out.push_str(&format!(
                "<text class=\"id {class}\" x=\"{x:.1}\" y=\"{:.1}\">{v}</text>\n",
                y + 4.0
            ));
        }
    }
    let y = HEIGHT - 18.0;
    for (i, (class, what)) in panel.legend.iter().enumerate() {
        let x = MARGIN + 6.0 + 170.0 * i as f64;
        out.push_str(&format!(
            "<circle class=\"vertex {class}\" cx=\"{x}\" cy=\"{y}\" r=\"6\"/>\n<text x=\"{}\" y=\"{}\">{what}</text>\n",
            x + 12.0,
            y + 4.5
        ));
    }
}
