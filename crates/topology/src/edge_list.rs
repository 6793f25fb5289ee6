//! Graphs as text. Each line holds an edge `u v` or an isolated vertex `v`; `#` starts a comment.

use crate::graph::{Graph, GraphError, MAX_EDGES, MAX_VERTICES};

/// The length of the longest text that is parsed, in bytes.
pub const MAX_BYTES: usize = 128 << 20;

/// Error: the text is not an edge list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EdgeListError {
    /// A line is neither an edge nor a vertex.
    #[error("line {line}: {reason}")]
    Line {
        /// The number of the line, from 1.
        line: usize,
        /// The reason why the line is refused.
        reason: String,
    },
    /// A vertex below the greatest one does not occur.
    #[error(
        "vertex {missing} is missing, but {greatest} is named: vertices count from 0; an isolated one stands alone on its line"
    )]
    Gap {
        /// The least vertex that does not occur.
        missing: usize,
        /// The greatest vertex that occurs.
        greatest: usize,
    },
    /// The text has more than [`MAX_BYTES`] bytes.
    #[error("longer than the limit of {} MiB", MAX_BYTES >> 20)]
    TooLong,
    /// The graph is empty or too large.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// Parses an edge list.
///
/// # Errors
/// See [`EdgeListError`]; the message names the line.
pub fn parse(text: &[u8]) -> Result<Graph, EdgeListError> {
    if text.len() > MAX_BYTES {
        return Err(EdgeListError::TooLong);
    }
    let mut edges = Vec::new();
    let mut occurs = Vec::new();
    for (i, bytes) in text.split(|&byte| byte == b'\n').enumerate() {
        let error = |reason| EdgeListError::Line { line: i + 1, reason };
        let line = bytes.split(|&byte| byte == b'#').next().unwrap_or_default();
        let line = std::str::from_utf8(line).map_err(|_| error("not text (UTF-8)".into()))?;
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        let u = vertex(first).map_err(error)?;
        let v = words.next().map(vertex).transpose().map_err(error)?;
        if let Some(more) = words.next() {
            return Err(error(format!("{} after an edge: a line is `u v`, or `v` alone", quoted(more))));
        }
        for vertex in std::iter::once(u).chain(v) {
            if occurs.len() <= vertex as usize {
                occurs.resize(vertex as usize + 1, false);
            }
            occurs[vertex as usize] = true;
        }
        if let Some(v) = v {
            if u == v {
                return Err(error(GraphError::Loop(u).to_string()));
            }
            if edges.len() == MAX_EDGES {
                return Err(error(GraphError::TooManyEdges.to_string()));
            }
            edges.push((u, v));
        }
    }
    if let Some(missing) = occurs.iter().position(|&occurs| !occurs) {
        return Err(EdgeListError::Gap { missing, greatest: occurs.len() - 1 });
    }
    Ok(Graph::new(occurs.len(), &edges)?)
}

fn vertex(word: &str) -> Result<u32, String> {
    match word.parse::<u32>() {
        Ok(v) if (v as usize) < MAX_VERTICES => Ok(v),
        _ => Err(format!("{} is no vertex: a number from 0 to {}", quoted(word), MAX_VERTICES - 1)),
    }
}

/// Quotes a word for an error message: control characters are escaped and a long word is cut.
fn quoted(word: &str) -> String {
    let start: String = word.chars().take(24).collect();
    format!("`{}{}`", start.escape_debug(), if start.len() < word.len() { "…" } else { "" })
}

/// Formats a graph as text that [`parse`] reads.
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
