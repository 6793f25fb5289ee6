//! The shared-memory graph.

use std::collections::VecDeque;

/// The greatest number of vertices. The limit bounds memory use.
pub const MAX_VERTICES: usize = 100_000;
/// The greatest number of undirected edges.
pub const MAX_EDGES: usize = 5_000_000;

/// Error: no graph has these vertices and edges.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// There is no vertex.
    #[error("a graph without vertices: at least one is needed")]
    Empty,
    /// There are more than [`MAX_VERTICES`] vertices.
    #[error("{0} vertices, more than the limit of {MAX_VERTICES}")]
    TooManyVertices(usize),
    /// There are more than [`MAX_EDGES`] edges.
    #[error("more than the limit of {MAX_EDGES} edges")]
    TooManyEdges,
    /// An edge names a vertex that does not exist.
    #[error("the edge {0} {1} names a vertex that is not there: there are {2}, from 0")]
    NoSuchVertex(u32, u32, usize),
    /// An edge leads from a vertex to itself.
    #[error("the edge {0} {0} leads from a vertex to itself: a process reaches its own memory anyway")]
    Loop(u32),
}

/// An undirected graph. Its vertices are processes, numbered from 0, and neighbours can access each
/// other's registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    /// The neighbours of `v` are `targets[starts[v]..starts[v + 1]]`, in ascending order.
    starts: Vec<usize>,
    targets: Vec<u32>,
}

impl Graph {
    /// Creates the graph with `n` vertices and these edges. Repeated edges, in either direction,
    /// count once.
    ///
    /// # Errors
    /// See [`GraphError`].
    pub fn new(n: usize, edges: &[(u32, u32)]) -> Result<Graph, GraphError> {
        if n == 0 {
            return Err(GraphError::Empty);
        }
        if n > MAX_VERTICES {
            return Err(GraphError::TooManyVertices(n));
        }
        if edges.len() > MAX_EDGES {
            return Err(GraphError::TooManyEdges);
        }
        let mut arcs = Vec::with_capacity(2 * edges.len());
        for &(u, v) in edges {
            if u.max(v) as usize >= n {
                return Err(GraphError::NoSuchVertex(u, v, n));
            }
            if u == v {
                return Err(GraphError::Loop(u));
            }
            arcs.extend([(u, v), (v, u)]);
        }
        arcs.sort_unstable();
        arcs.dedup();
        let mut starts = vec![0; n + 1];
        for &(u, _) in &arcs {
            starts[u as usize + 1] += 1;
        }
        for v in 0..n {
            starts[v + 1] += starts[v];
        }
        Ok(Graph { starts, targets: arcs.into_iter().map(|(_, v)| v).collect() })
    }

    /// Returns the number of vertices.
    pub fn vertex_count(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the vertices.
    pub fn vertices(&self) -> std::ops::Range<u32> {
        0..self.vertex_count() as u32
    }

    /// Returns the neighbours of `v`, in ascending order.
    pub fn neighbours(&self, v: u32) -> &[u32] {
        &self.targets[self.starts[v as usize]..self.starts[v as usize + 1]]
    }

    /// Returns the closed neighbourhood N\[v\]: `v` and its neighbours.
    pub fn closed_neighbourhood(&self, v: u32) -> impl Iterator<Item = u32> + '_ {
        std::iter::once(v).chain(self.neighbours(v).iter().copied())
    }

    /// Returns the number of neighbours, which is the number of RDMA connections of the process.
    pub fn degree(&self, v: u32) -> usize {
        self.neighbours(v).len()
    }

    /// Returns the number of edges.
    pub fn edge_count(&self) -> usize {
        self.targets.len() / 2
    }

    /// Returns each edge once, with the smaller vertex first.
    pub fn edges(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.vertices().flat_map(|u| self.neighbours(u).iter().filter(move |&&v| u < v).map(move |&v| (u, v)))
    }

    /// Returns the least and the greatest degree.
    pub fn degree_range(&self) -> (usize, usize) {
        let degrees = || self.vertices().map(|v| self.degree(v));
        (degrees().min().unwrap_or(0), degrees().max().unwrap_or(0))
    }

    /// Returns the closed neighbourhood N\[S\] of a set, in ascending order: the processes that the
    /// set represents.
    pub fn represented(&self, set: &[u32]) -> Vec<u32> {
        let mut is_represented = vec![false; self.vertex_count()];
        for w in set.iter().flat_map(|&v| self.closed_neighbourhood(v)) {
            is_represented[w as usize] = true;
        }
        self.vertices().filter(|&v| is_represented[v as usize]).collect()
    }

    /// Returns the vertices that are reachable from `start`, in breadth-first order.
    pub fn bfs_order(&self, start: u32) -> Vec<u32> {
        let mut seen = vec![false; self.vertex_count()];
        seen[start as usize] = true;
        let (mut queue, mut order) = (VecDeque::from([start]), Vec::new());
        while let Some(v) = queue.pop_front() {
            order.push(v);
            for &w in self.neighbours(v) {
                if !std::mem::replace(&mut seen[w as usize], true) {
                    queue.push_back(w);
                }
            }
        }
        order
    }

    /// Whether every vertex is reachable from every other.
    pub fn is_connected(&self) -> bool {
        self.bfs_order(0).len() == self.vertex_count()
    }
}
