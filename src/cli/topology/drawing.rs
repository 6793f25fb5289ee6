//! `--svg`: two drawings of the graph. One shows crashes that prevent a decision by HBO, the other
//! an SM-cut, which prevents a decision by any algorithm.

use askama::Template;
use mitra_topology::{Graph, Measures};

use super::layout::{Point, layout};
use crate::cli::svg_units::Px;

/// The largest graph that is drawn, in words.
pub(super) const DRAWING_LIMITS: &str = "300 processes and 3,000 connections";

/// Dimensions of a panel in user units of the SVG: the side of its square, and the space around the
/// square.
const SIDE: f64 = 480.0;
const MARGIN: f64 = 34.0;
/// The height of a panel's title and of the lines of its caption.
const HEAD: f64 = 76.0;
const FOOT: f64 = 34.0;
/// The position of the first line of a caption, and the distance of its lines.
const CAPTION: f64 = 50.0;
const CAPTION_LINE: f64 = 17.0;
/// The most letters in a line of a caption. A letter of the widest common font takes 7.6 units.
const CAPTION_LETTERS: usize = 64;
const WIDTH: f64 = SIDE + 2.0 * MARGIN;
const HEIGHT: f64 = HEAD + SIDE + 2.0 * MARGIN + FOOT;

pub(super) fn is_drawable(graph: &Graph) -> bool {
    graph.vertex_count() <= 300 && graph.edge_count() <= 3000
}

/// A self-contained SVG of two panels.
#[derive(Template)]
#[template(path = "topology/drawing.svg")]
pub(super) struct Drawing {
    width: Px,
    height: Px,
    margin: Px,
    radius: Px,
    /// Whether the vertices are large enough for their numbers.
    show_numbers: bool,
    edges: Vec<Edge>,
    panels: [DrawnPanel; 2],
}

struct Edge {
    from: Place,
    to: Place,
}

/// A position in a panel.
#[derive(Clone, Copy)]
struct Place {
    x: Px,
    y: Px,
}

struct DrawnPanel {
    x: Px,
    title: String,
    caption: Vec<CaptionLine>,
    vertices: Vec<Vertex>,
    legend: Vec<LegendItem>,
}

struct CaptionLine {
    y: Px,
    text: String,
}

struct Vertex {
    number: u32,
    class: &'static str,
    at: Place,
    number_y: Px,
}

struct LegendItem {
    class: &'static str,
    text: &'static str,
    x: Px,
    y: Px,
    text_x: Px,
    text_y: Px,
}

/// The texts of a panel, and the class of each vertex.
struct Panel {
    title: String,
    text: String,
    classes: Vec<&'static str>,
    legend: &'static [(&'static str, &'static str)],
}

impl Drawing {
    /// Lays out the graph and draws both panels.
    pub(super) fn new(graph: &Graph, measures: &Measures) -> Drawing {
        let points = layout(graph);
        let place = |v: u32| {
            let [x, y]: Point = points[v as usize];
            Place { x: Px(MARGIN + SIDE * x), y: Px(HEAD + MARGIN + SIDE * y) }
        };
        let places: Vec<Place> = graph.vertices().map(place).collect();
        let radius = (SIDE / (graph.vertex_count() as f64).sqrt() * 0.2).clamp(3.5, 14.0);
        let [hbo, sm_cut] = [hbo_panel(graph, measures), sm_cut_panel(graph, measures)];
        Drawing {
            width: Px(2.0 * WIDTH),
            height: Px(HEIGHT),
            margin: Px(MARGIN),
            radius: Px(radius),
            show_numbers: radius >= 9.0,
            edges: graph.edges().map(|(u, v)| Edge { from: place(u), to: place(v) }).collect(),
            panels: [DrawnPanel::new(0.0, hbo, &places), DrawnPanel::new(WIDTH, sm_cut, &places)],
        }
    }
}

impl DrawnPanel {
    fn new(x: f64, panel: Panel, places: &[Place]) -> DrawnPanel {
        let Panel { title, text, classes, legend } = panel;
        let vertex = |(number, (&at, class)): (u32, (&Place, &'static str))| Vertex {
            number,
            class,
            at,
            number_y: Px(at.y.0 + 4.0),
        };
        let item = |(i, &(class, text)): (usize, &(&'static str, &'static str))| {
            let (x, y) = (MARGIN + 6.0 + 170.0 * i as f64, HEIGHT - 18.0);
            LegendItem { class, text, x: Px(x), y: Px(y), text_x: Px(x + 12.0), text_y: Px(y + 4.5) }
        };
        DrawnPanel {
            x: Px(x),
            title,
            caption: caption(&text),
            vertices: (0..).zip(places.iter().zip(classes)).map(vertex).collect(),
            legend: legend.iter().enumerate().map(item).collect(),
        }
    }
}

/// Breaks a caption into lines.
fn caption(text: &str) -> Vec<CaptionLine> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= CAPTION_LETTERS => {
                line.extend([" ", word]);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    let place = |(i, text)| CaptionLine { y: Px(CAPTION + CAPTION_LINE * f64::from(i)), text };
    (0..).zip(lines).map(place).collect()
}

/// Returns the panel of the largest set found of processes that represent no majority. HBO cannot
/// decide if all other processes crash.
fn hbo_panel(graph: &Graph, measures: &Measures) -> Panel {
    let live = &measures.witnesses.hbo_minority;
    let represented = graph.represented(live);
    let mut classes = vec!["lost"; graph.vertex_count()];
    mark(&mut classes, &represented, "seen");
    mark(&mut classes, live, "live");
    let (title, text) = match live.len() {
        0 => ("No crashes stop HBO".to_owned(), "each process alone represents a majority".to_owned()),
        size => (
            format!("HBO does not terminate at f = {}", graph.vertex_count() - size),
            format!(
                "{size} live process{} {} of {}: no majority",
                if size == 1 { " represents" } else { "es represent" },
                represented.len(),
                graph.vertex_count()
            ),
        ),
    };
    let legend = &[("live", "alive"), ("seen", "crashed, represented"), ("lost", "crashed")];
    Panel { title, text, classes, legend }
}

/// Returns the panel that shows an SM-cut. No algorithm can decide if all processes outside the
/// cut's two sets crash.
fn sm_cut_panel(graph: &Graph, measures: &Measures) -> Panel {
    let [s, t] = &measures.witnesses.sm_cut;
    let mut classes = vec!["lost"; graph.vertex_count()];
    mark(&mut classes, s, "live");
    mark(&mut classes, t, "other");
    let (title, text) = match s.len() {
        0 if measures.best_f.is_exact() => (
            "No crashes stop every algorithm".to_owned(),
            "no two processes are at distance 3 or more".to_owned(),
        ),
        0 => ("No SM-cut was found".to_owned(), "there may be one".to_owned()),
        half => (
            format!("No algorithm decides at f = {}", graph.vertex_count() - half),
            format!(
                "neither set of {half} learns whether the other is alive: they are at distance 3 or more"
            ),
        ),
    };
    Panel {
        title,
        text,
        classes,
        legend: &[("live", "one set"), ("other", "the other set"), ("lost", "the rest")],
    }
}

fn mark(classes: &mut [&'static str], vertices: &[u32], class: &'static str) {
    for &v in vertices {
        classes[v as usize] = class;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every caption of a graph fits into its panel and above the graph, whatever its numbers.
    #[test]
    fn captions_are_not_clipped() {
        let longest = "neither set of 149 learns whether the other is alive: they are at distance 3 or more";
        for text in [longest, "there may be one", "150 live processes represent 150 of 300: no majority"] {
            let lines = caption(text);
            assert_eq!(lines.iter().map(|line| &line.text[..]).collect::<Vec<_>>().join(" "), text);
            for line in lines {
                assert!(line.text.chars().count() <= CAPTION_LETTERS, "{}", line.text);
                assert!(line.y.0 + CAPTION_LINE / 2.0 < HEAD, "{}", line.text);
            }
        }
        assert!(CAPTION_LETTERS as f64 * 7.6 <= SIDE + MARGIN, "a line ends within its panel");
    }
}
