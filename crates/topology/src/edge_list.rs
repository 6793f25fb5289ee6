//! Edge lists as text: an edge `u v` or an isolated vertex `v` on a line, `#` begins a comment.

use crate::graph::{Graph, GraphError, MAX_EDGES, MAX_VERTICES};

/// Longest text that is taken, in bytes.
pub const MAX_BYTES: usize = 128 << 20;

/// What is wrong with a text, and in which line (from 1).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EdgeListError {
    /// A line that is no edge.
    #[error("line {line}: {what}")]
    Line {
        /// Which line, from 1.
        line: usize,
        /// What it should be.
        what: String,
    },
    /// A vertex below the greatest is never named.
    #[error(
        "vertex {missing} is missing, but {greatest} is named: vertices count from 0; an isolated one stands alone on its line"
    )]
    Gap {
        /// The least that is not named.
        missing: usize,
        /// The greatest that is.
        greatest: usize,
    },
    /// More bytes than [`MAX_BYTES`].
    #[error("longer than the limit of {} MiB", MAX_BYTES >> 20)]
    TooLong,
    /// Too large or empty.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// The graph that a text describes.
pub fn parse(text: &[u8]) -> Result<Graph, EdgeListError> {
    if text.len() > MAX_BYTES {
        return Err(EdgeListError::TooLong);
    }
    let mut edges = Vec::new();
    let mut named = Vec::new();
    for (i, bytes) in text.split(|&byte| byte == b'\n').enumerate() {
        let wrong = |what| EdgeListError::Line { line: i + 1, what };
        let line = bytes.split(|&byte| byte == b'#').next().unwrap_or_default();
        let line = std::str::from_utf8(line).map_err(|_| wrong("not text (UTF-8)".into()))?;
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        let u = vertex(first).map_err(wrong)?;
        let v = words.next().map(vertex).transpose().map_err(wrong)?;
        if let Some(more) = words.next() {
            return Err(wrong(format!("{} after an edge: a line is `u v`, or `v` alone", shown(more))));
        }
        for vertex in std::iter::once(u).chain(v) {
            if named.len() <= vertex as usize {
                named.resize(vertex as usize + 1, false);
            }
            named[vertex as usize] = true;
        }
        if let Some(v) = v {
            if u == v {
                return Err(wrong(GraphError::Loop(u).to_string()));
            }
            if edges.len() == MAX_EDGES {
                return Err(wrong(GraphError::TooManyEdges.to_string()));
            }
            edges.push((u, v));
        }
    }
    if let Some(missing) = named.iter().position(|&named| !named) {
        return Err(EdgeListError::Gap { missing, greatest: named.len() - 1 });
    }
    Ok(Graph::new(named.len(), &edges)?)
}

fn vertex(word: &str) -> Result<u32, String> {
    match word.parse::<u32>() {
        Ok(v) if (v as usize) < MAX_VERTICES => Ok(v),
        _ => Err(format!("{} is no vertex: a number from 0 to {}", shown(word), MAX_VERTICES - 1)),
    }
}

/// A word as an error may repeat it: without control characters, and not at any length.
fn shown(word: &str) -> String {
    let start: String = word.chars().take(24).collect();
    format!("`{}{}`", start.escape_debug(), if start.len() < word.len() { "…" } else { "" })
}

/// The text of a graph, which [`parse`] reads.
pub fn format(graph: &Graph) -> String {
    let mut out = format!("# {} vertices, {} edges\n", graph.vertex_count(), graph.edge_count());
    for v in graph.vertices().filter(|&v| graph.degree(v) == 0) {
        out.push_str(&format!("{v}\n"));
    }
    for (u, v) in graph.edges() {
        out.push_str(&format!("{u} {v}\n"));
    }
    out
}
