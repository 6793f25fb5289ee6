//! Generators of graph families.

use mitra_prng::Prng;

use crate::graph::{Graph, GraphError, MAX_EDGES, MAX_VERTICES};

/// The families: the name of each, and the names of its size arguments.
pub const FAMILIES: [(&str, &[&str]); 9] = [
    ("ring", &["N"]),
    ("complete", &["N"]),
    ("star", &["N"]),
    ("empty", &["N"]),
    ("hypercube", &["DIMENSION"]),
    ("petersen", &[]),
    ("grid", &["ROWS", "COLUMNS"]),
    ("torus", &["ROWS", "COLUMNS"]),
    ("random-regular", &["N", "DEGREE"]),
];

/// Error: the family has no such graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeneratorError {
    /// No family has this name.
    #[error("no family `{}`: there are {}", .0.escape_debug(), names())]
    Unknown(String),
    /// The number of size arguments is wrong. The fields are the family, the number of arguments
    /// that it takes, and its usage.
    #[error("{0} takes {1}: {0}{2}")]
    Sizes(&'static str, usize, String),
    /// The family has no graph of this size.
    #[error("{0}")]
    Size(&'static str),
    /// The graph would be empty or too large.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

fn names() -> String {
    FAMILIES.map(|(name, _)| name).join(", ")
}

/// Generates the graph of a family with these sizes. `seed` determines the graph of a random
/// family.
///
/// # Errors
/// See [`GeneratorError`].
pub fn generate(name: &str, sizes: &[usize], seed: u64) -> Result<Graph, GeneratorError> {
    let &(name, size_names) = FAMILIES
        .iter()
        .find(|(known, _)| *known == name)
        .ok_or_else(|| GeneratorError::Unknown(name.chars().take(40).collect()))?;
    if sizes.len() != size_names.len() {
        let usage = size_names.iter().map(|size| format!(" {size}")).collect();
        return Err(GeneratorError::Sizes(name, size_names.len(), usage));
    }
    let size = |i: usize| sizes.get(i).copied().unwrap_or(0);
    let (a, b) = (size(0), size(1));
    let (n, edges) = match name {
        "hypercube" if a > MAX_VERTICES.ilog2() as usize => {
            return Err(GeneratorError::Size("a hypercube of dimension 0 to 16"));
        }
        "hypercube" => (1 << a, a << a >> 1),
        "petersen" => (10, 15),
        "complete" => (a, a.saturating_mul(a.saturating_sub(1)) / 2),
        "grid" | "torus" => (a.saturating_mul(b), a.saturating_mul(b).saturating_mul(2)),
        "random-regular" => (a, a.saturating_mul(b) / 2),
        "empty" => (a, 0),
        _ => (a, a),
    };
    if n > MAX_VERTICES {
        return Err(GraphError::TooManyVertices(n).into());
    }
    if edges > MAX_EDGES {
        return Err(GraphError::TooManyEdges.into());
    }
    let vertex = |v: usize| v as u32;
    let edges: Vec<(u32, u32)> = match name {
        "ring" if n < 3 => return Err(GeneratorError::Size("a ring has at least 3 vertices")),
        "ring" => (0..n).map(|v| (vertex(v), vertex((v + 1) % n))).collect(),
        "complete" => (0..n).flat_map(|u| (u + 1..n).map(move |v| (vertex(u), vertex(v)))).collect(),
        "star" => (1..n).map(|v| (0, vertex(v))).collect(),
        "hypercube" => (0..n)
            .flat_map(|v| (0..a).map(move |bit| (v, v ^ 1 << bit)))
            .filter(|(u, v)| u < v)
            .map(|(u, v)| (vertex(u), vertex(v)))
            .collect(),
        "petersen" => (0..5).flat_map(|v| [(v, (v + 1) % 5), (v, v + 5), (v + 5, (v + 2) % 5 + 5)]).collect(),
        "torus" if a < 3 || b < 3 => {
            return Err(GeneratorError::Size("a torus has at least 3 rows and 3 columns"));
        }
        "grid" | "torus" => lattice(a, b, name == "torus"),
        "random-regular" if b >= n => {
            return Err(GeneratorError::Size(
                "in a regular graph, the degree is below the number of vertices",
            ));
        }
        "random-regular" if n * b % 2 == 1 => {
            return Err(GeneratorError::Size("in a regular graph, vertices times degree is even"));
        }
        "random-regular" => random_edges(n, b, seed),
        _ => Vec::new(),
    };
    Ok(Graph::new(n, &edges)?)
}

fn lattice(rows: usize, columns: usize, wrapped: bool) -> Vec<(u32, u32)> {
    let at = |row: usize, column: usize| (row % rows * columns + column % columns) as u32;
    let mut edges = Vec::new();
    for row in 0..rows {
        for column in 0..columns {
            if wrapped || row + 1 < rows {
                edges.push((at(row, column), at(row + 1, column)));
            }
            if wrapped || column + 1 < columns {
                edges.push((at(row, column), at(row, column + 1)));
            }
        }
    }
    edges
}

/// Generates the edges of a nearly uniform random graph of degree `degree` < `n`. If `n`·`degree`
/// is odd, the degree of the last vertex is one less.
///
/// The configuration model pairs stubs at random. Pairs that are loops or parallel edges are then
/// switched with other edges.
pub(crate) fn random_edges(n: usize, degree: usize, seed: u64) -> Vec<(u32, u32)> {
    let mut rng = Prng::new(seed);
    let odd = n * degree % 2;
    // A dense graph is generated as the complement of a sparse one.
    let dense = 2 * degree > n;
    let mut degrees = vec![if dense { n - 1 - degree } else { degree }; n];
    if dense {
        degrees[n - 1] += odd;
    } else {
        degrees[n - 1] -= odd;
    }
    let neighbours = loop {
        if let Some(neighbours) = pair_stubs(&degrees, &mut rng) {
            break neighbours;
        }
    };
    let is_edge = |u: u32, v: u32| neighbours[u as usize].contains(&v) != dense;
    if dense {
        return (0..n as u32)
            .flat_map(|u| (u + 1..n as u32).map(move |v| (u, v)))
            .filter(|&(u, v)| is_edge(u, v))
            .collect();
    }
    let edges = neighbours
        .iter()
        .enumerate()
        .flat_map(|(u, neighbours)| neighbours.iter().map(move |&v| (u as u32, v)));
    edges.filter(|(u, v)| u < v).collect()
}

/// Returns the neighbours of each vertex in a random simple graph of these degrees, or `None` if
/// the attempt failed.
fn pair_stubs(degrees: &[usize], rng: &mut Prng) -> Option<Vec<Vec<u32>>> {
    let mut stubs: Vec<u32> =
        degrees.iter().enumerate().flat_map(|(v, &d)| std::iter::repeat_n(v as u32, d)).collect();
    rng.shuffle(&mut stubs);
    let mut neighbours: Vec<Vec<u32>> = vec![Vec::new(); degrees.len()];
    let can_connect =
        |neighbours: &[Vec<u32>], u: u32, v: u32| u != v && !neighbours[u as usize].contains(&v);
    fn add_edge(neighbours: &mut [Vec<u32>], u: u32, v: u32) {
        neighbours[u as usize].push(v);
        neighbours[v as usize].push(u);
    }
    fn remove_edge(neighbours: &mut [Vec<u32>], u: u32, v: u32) {
        neighbours[u as usize].retain(|&w| w != v);
        neighbours[v as usize].retain(|&w| w != u);
    }
    let (mut edges, mut conflicting) = (Vec::new(), Vec::new());
    for stubs in stubs.chunks_exact(2) {
        let (u, v) = (stubs[0], stubs[1]);
        if can_connect(&neighbours, u, v) {
            add_edge(&mut neighbours, u, v);
            edges.push((u, v));
        } else {
            conflicting.push((u, v));
        }
    }
    'conflicting: for (u, v) in conflicting {
        for _ in 0..1000.min(100 * edges.len()) {
            let i = rng.index(edges.len());
            let (x, y) = if rng.index(2) == 0 { edges[i] } else { (edges[i].1, edges[i].0) };
            if can_connect(&neighbours, u, x) && can_connect(&neighbours, v, y) && (u, x) != (y, v) {
                remove_edge(&mut neighbours, x, y);
                add_edge(&mut neighbours, u, x);
                add_edge(&mut neighbours, v, y);
                edges[i] = (u, x);
                edges.push((v, y));
                continue 'conflicting;
            }
        }
        return None;
    }
    Some(neighbours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_degree_sum_reduces_the_last_degree() {
        for (n, degree) in [(5, 3), (7, 1), (9, 5), (9, 7), (31, 3), (31, 29)] {
            let graph = Graph::new(n, &random_edges(n, degree, 2)).unwrap();
            let degrees: Vec<_> = graph.vertices().map(|v| graph.degree(v)).collect();
            assert!(degrees[..n - 1].iter().all(|&d| d == degree), "{n} {degree}: {degrees:?}");
            assert_eq!(degrees[n - 1], degree - 1, "{n} {degree}");
        }
    }
}
