//! `--svg`: two drawings of the graph. One shows crashes that prevent a decision by HBO, the other
//! an SM-cut, which prevents a decision by any algorithm.

use mitra_page::{Drawing, Point};
use mitra_topology::{Graph, Measures};

use super::layout;

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

/// The texts of a panel, and the class of each vertex.
struct Panel {
    title: String,
    text: String,
    classes: Vec<&'static str>,
    legend: &'static [(&'static str, &'static str)],
}

/// Lays out the graph and returns a self-contained SVG of two panels.
pub(super) fn drawing(graph: &Graph, measures: &Measures) -> String {
    let place = |[x, y]: layout::Point| [MARGIN + SIDE * x, HEAD + MARGIN + SIDE * y];
    let places: Vec<Point> = layout::layout(graph).into_iter().map(place).collect();
    let mut drawing = Drawing::default();
    drawing.raw(format_args!("<style>\n{}</style>", include_str!("drawing.css")));
    drawing.rect("paper", [0.0, 0.0], [2.0 * WIDTH, HEIGHT]);
    for (x, panel) in [(0.0, hbo_panel(graph, measures)), (WIDTH, sm_cut_panel(graph, measures))] {
        drawing.group(format_args!("transform=\"translate({x} 0)\""), "", |drawing| {
            panel.draw(drawing, graph, &places);
        });
    }
    drawing.finish([2.0 * WIDTH, HEIGHT], "xmlns=\"http://www.w3.org/2000/svg\"")
}

impl Panel {
    fn draw(&self, drawing: &mut Drawing, graph: &Graph, places: &[Point]) {
        drawing.text("title", [MARGIN, 30.0], &self.title);
        for (y, line) in caption(&self.text) {
            drawing.text("caption", [MARGIN, y], line);
        }
        for (u, v) in graph.edges() {
            drawing.line("edge", places[u as usize], places[v as usize]);
        }
        let radius = (SIDE / (places.len() as f64).sqrt() * 0.2).clamp(3.5, 14.0);
        for (number, (&[x, y], class)) in places.iter().zip(&self.classes).enumerate() {
            drawing.group("", &number.to_string(), |vertex| {
                vertex.circle(&format!("vertex {class}"), [x, y], radius);
                // Whether the vertex is large enough for its number.
                if radius >= 9.0 {
                    vertex.text(&format!("id {class}"), [x, y + 4.0], number);
                }
            });
        }
        for (i, (class, text)) in self.legend.iter().enumerate() {
            let (x, y) = (MARGIN + 6.0 + 170.0 * i as f64, HEIGHT - 18.0);
            drawing.circle(&format!("vertex {class}"), [x, y], 6.0);
            drawing.text("key", [x + 12.0, y + 4.5], text);
        }
    }
}

/// Breaks a caption into lines. Returns the height of each line with its text.
fn caption(text: &str) -> Vec<(f64, String)> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= CAPTION_LETTERS => {
                line.extend([" ", word]);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    (0..).map(|i| CAPTION + CAPTION_LINE * f64::from(i)).zip(lines).collect()
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
            assert_eq!(lines.iter().map(|(_, line)| &line[..]).collect::<Vec<_>>().join(" "), text);
            for (y, line) in lines {
                assert!(line.chars().count() <= CAPTION_LETTERS, "{line}");
                assert!(y + CAPTION_LINE / 2.0 < HEAD, "{line}");
            }
        }
        assert!(CAPTION_LETTERS as f64 * 7.6 <= SIDE + MARGIN, "a line ends within its panel");
    }
}
