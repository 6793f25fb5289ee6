//! Heuristic search for witnesses in graphs of any size: greedy growth from many start vertices,
//! and breadth-first orders.

use std::collections::VecDeque;

use mitra_prng::Prng;

use crate::graph::Graph;
use crate::witnesses::Witnesses;

/// The number of random start vertices in a large graph. A graph with at most ten times as many
/// vertices counts as small.
const STARTS: usize = 24;

/// Grows sets from every vertex of a small graph. In a large graph, the start vertices are random
/// ones and one of least degree: if any single vertex is a witness for HBO, this one is.
pub(crate) fn grow_sets(graph: &Graph, seed: u64, witnesses: &mut Witnesses) {
    let mut rng = Prng::new(seed);
    let n = graph.vertex_count();
    let starts: Vec<u32> = if n <= 10 * STARTS {
        graph.vertices().collect()
    } else {
        let least = graph.vertices().min_by_key(|&v| graph.degree(v));
        least.into_iter().chain((0..STARTS).map(|_| rng.index(n) as u32)).collect()
    };
    for start in starts {
        for oldest_first in [true, false] {
            witnesses.try_order(graph, &greedy(graph, start, oldest_first));
        }
        witnesses.try_order(graph, &graph.bfs_order(start));
    }
}

/// Returns half of the vertices, in an order that starts with `start` and continues greedily: the
/// next vertex adds the fewest vertices to the closed neighbourhood. Of several such vertices, the
/// vertex that reached this cost first (`oldest_first`) or last comes next.
fn greedy(graph: &Graph, start: u32, oldest_first: bool) -> Vec<u32> {
    let n = graph.vertex_count();
    let mut cost: Vec<u32> = graph.vertices().map(|v| graph.degree(v) as u32 + 1).collect();
    let mut queues = vec![VecDeque::new(); graph.degree_range().1 + 2];
    for v in graph.vertices() {
        queues[cost[v as usize] as usize].push_back(v);
    }
    let (mut taken, mut represented) = (vec![false; n], vec![false; n]);
    let (mut order, mut cheapest, mut next) = (Vec::new(), 0, Some(start));
    while order.len() < n / 2 {
        let v = match next.take() {
            Some(v) => v,
            None => {
                let queue: &mut VecDeque<u32> = &mut queues[cheapest];
                let popped = if oldest_first { queue.pop_front() } else { queue.pop_back() };
                match popped {
                    // Entries of taken vertices and entries with an earlier cost are stale and are
                    // skipped.
                    Some(v) if !taken[v as usize] && cost[v as usize] as usize == cheapest => v,
                    Some(_) => continue,
                    None => {
                        cheapest += 1;
                        continue;
                    }
                }
            }
        };
        taken[v as usize] = true;
        order.push(v);
        for w in graph.closed_neighbourhood(v) {
            if std::mem::replace(&mut represented[w as usize], true) {
                continue;
            }
            for u in graph.closed_neighbourhood(w).filter(|&u| !taken[u as usize]) {
                cost[u as usize] -= 1;
                let now = cost[u as usize] as usize;
                queues[now].push_back(u);
                cheapest = cheapest.min(now);
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clique and one more vertex of degree 1, which is the only vertex that represents a
    /// minority.
    #[test]
    fn vertex_that_represents_a_minority_is_found() {
        let n = 601;
        let clique = crate::generators::generate("complete", &[n - 1], 0).unwrap();
        let edges: Vec<_> = clique.edges().chain([(17, n as u32 - 1)]).collect();
        let mut witnesses = Witnesses::default();
        grow_sets(&Graph::new(n, &edges).unwrap(), 0, &mut witnesses);
        assert_eq!(witnesses.hbo_minority, [n as u32 - 1]);
    }
}
