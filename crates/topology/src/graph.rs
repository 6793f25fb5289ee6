//! The graph: who shares memory with whom.

use std::collections::VecDeque;

/// Most processes that are taken; more would only cost memory.
pub const MAX_VERTICES: usize = 100_000;
/// Most connections (undirected edges) that are taken.
pub const MAX_EDGES: usize = 5_000_000;

/// Why there is no such graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// No process at all.
    #[error("a graph without vertices: at least one is needed")]
    Empty,
    /// More than [`MAX_VERTICES`].
    #[error("{0} vertices, more than the limit of {MAX_VERTICES}")]
    TooManyVertices(usize),
    /// More than [`MAX_EDGES`].
    #[error("more than the limit of {MAX_EDGES} edges")]
    TooManyEdges,
    /// An edge names a vertex that is not there.
    #[error("the edge {0} {1} names a vertex that is not there: there are {2}, from 0")]
    NoSuchVertex(u32, u32, usize),
    /// An edge from a vertex to itself.
    #[error("the edge {0} {0} leads from a vertex to itself: a process reaches its own memory anyway")]
    Loop(u32),
}

/// An undirected graph of processes, each a vertex from 0. Neighbours share memory: each may access the other's registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    /// The neighbours of `v` are `targets[starts[v]..starts[v + 1]]`, in ascending order.
    starts: Vec<usize>,
    targets: Vec<u32>,
}

impl Graph {
    /// The graph of `n` vertices with these edges; an edge that is named twice, in either direction, is one.
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
        let mut both = Vec::with_capacity(2 * edges.len());
        for &(u, v) in edges {
            if u.max(v) as usize >= n {
                return Err(GraphError::NoSuchVertex(u, v, n));
            }
            if u == v {
                return Err(GraphError::Loop(u));
            }
            both.extend([(u, v), (v, u)]);
        }
        both.sort_unstable();
        both.dedup();
        let mut starts = vec![0; n + 1];
        for &(u, _) in &both {
            starts[u as usize + 1] += 1;
        }
        for v in 0..n {
            starts[v + 1] += starts[v];
        }
        Ok(Graph { starts, targets: both.into_iter().map(|(_, v)| v).collect() })
    }

    /// The number of vertices.
    pub fn vertex_count(&self) -> usize {
        self.starts.len() - 1
    }

    /// The vertices.
    pub fn vertices(&self) -> std::ops::Range<u32> {
        0..self.vertex_count() as u32
    }

    /// The neighbours of `v`, in ascending order.
    pub fn neighbours(&self, v: u32) -> &[u32] {
        &self.targets[self.starts[v as usize]..self.starts[v as usize + 1]]
    }

    /// N\[v\]: `v` and its neighbours.
    pub fn closed_neighbourhood(&self, v: u32) -> impl Iterator<Item = u32> + '_ {
        std::iter::once(v).chain(self.neighbours(v).iter().copied())
    }

    /// The number of neighbours: the RDMA connections of the NIC of `v`.
    pub fn degree(&self, v: u32) -> usize {
        self.neighbours(v).len()
    }

    /// The number of edges.
    pub fn edge_count(&self) -> usize {
        self.targets.len() / 2
    }

    /// The edges, each once, the smaller vertex first.
    pub fn edges(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.vertices().flat_map(|u| self.neighbours(u).iter().filter(move |&&v| u < v).map(move |&v| (u, v)))
    }

    /// The least and the greatest degree.
    pub fn degree_range(&self) -> (usize, usize) {
        let degrees = || self.vertices().map(|v| self.degree(v));
        (degrees().min().unwrap_or(0), degrees().max().unwrap_or(0))
    }

    /// N\[S\], in ascending order: what the processes of `set` represent, namely themselves and their neighbours.
    pub fn represented(&self, set: &[u32]) -> Vec<u32> {
        let mut within = vec![false; self.vertex_count()];
        for w in set.iter().flat_map(|&v| self.closed_neighbourhood(v)) {
            within[w as usize] = true;
        }
        self.vertices().filter(|&v| within[v as usize]).collect()
    }

    /// The vertices in breadth-first order from `start`; those that cannot be reached are left out.
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

    /// Whether every vertex can be reached from every other.
    pub fn is_connected(&self) -> bool {
        self.bfs_order(0).len() == self.vertex_count()
    }
}
