//! Exact search by branch and bound: does a set S with |S| ≥ `size` and |N\[S\]| ≤ `limit` exist?
//!
//! All measures follow from this question. For HBO, `limit` is n/2. For the best possible
//! algorithm, the graph is squared and `limit` is n − `size`. For the expansion, the question is
//! asked for every size up to n/2.
//!
//! The search adds vertices to S one by one. Bit sets hold S, N\[S\] and the vertices that are
//! excluded from S. A branch is cut
//! - if |S| cannot reach `size`: excluded vertices of N\[S\] are not in S, so |S| ≤ `limit` −
//!   |N\[S\] ∩ excluded|;
//! - if an excluded vertex could be added without enlarging N\[S\]: the branch that includes it was
//!   searched before.
//!
//! A vertex that does not enlarge N\[S\] is added without branching. A vertex that would exceed
//! `limit` is excluded without branching.

use crate::graph::Graph;

/// The greatest number of vertices of a graph that is searched: the number of bits in a `u128`.
pub const MAX_SEARCH_VERTICES: usize = 128;

/// A set of vertices, one bit each.
pub(crate) type Bits = u128;

pub(crate) fn bits(vertices: impl IntoIterator<Item = u32>) -> Bits {
    vertices.into_iter().fold(0, |set, v| set | 1 << v)
}

pub(crate) fn vertices(mut set: Bits) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        (set != 0).then(|| {
            let v = set.trailing_zeros();
            set &= set - 1;
            v
        })
    })
}

/// Error: the search used up its branches before it had an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BranchLimitReached;

/// The search in one graph: N\[v\] of every vertex, and the number of branches left.
pub(crate) struct ExactSearch<'a> {
    closed_sets: Vec<Bits>,
    branches_left: &'a mut u64,
}

/// The set that is searched for: at least `size` vertices, and at most `limit` in its closed
/// neighbourhood.
#[derive(Clone, Copy)]
struct Goal {
    size: u32,
    limit: u32,
}

impl<'a> ExactSearch<'a> {
    /// Creates a search in a graph of at most [`MAX_SEARCH_VERTICES`] vertices. Each branch
    /// decrements `branches_left`.
    pub(crate) fn new(graph: &Graph, branches_left: &'a mut u64) -> ExactSearch<'a> {
        ExactSearch {
            closed_sets: graph.vertices().map(|v| bits(graph.closed_neighbourhood(v))).collect(),
            branches_left,
        }
    }

    /// Creates a search in the square of the graph, where vertices at distance 1 or 2 are
    /// neighbours.
    pub(crate) fn of_square(graph: &Graph, branches_left: &'a mut u64) -> ExactSearch<'a> {
        let ExactSearch { closed_sets, branches_left } = ExactSearch::new(graph, branches_left);
        let twice_closed = |&set: &Bits| vertices(set).fold(0, |all, v| all | closed_sets[v as usize]);
        ExactSearch { closed_sets: closed_sets.iter().map(twice_closed).collect(), branches_left }
    }

    /// Returns a set S with |S| ≥ `size` and |N\[S\]| ≤ `limit`, or `None` if there is none.
    ///
    /// # Errors
    /// [`BranchLimitReached`] if the branches are used up.
    pub(crate) fn find(&mut self, size: usize, limit: usize) -> Result<Option<Bits>, BranchLimitReached> {
        self.grow(Goal { size: size as u32, limit: limit as u32 }, 0, 0, 0)
    }

    fn all_vertices(&self) -> Bits {
        Bits::MAX >> (MAX_SEARCH_VERTICES - self.closed_sets.len())
    }

    fn grow(
        &mut self,
        goal: Goal,
        mut set: Bits,
        represented: Bits,
        mut excluded: Bits,
    ) -> Result<Option<Bits>, BranchLimitReached> {
        loop {
            *self.branches_left = self.branches_left.checked_sub(1).ok_or(BranchLimitReached)?;
            if vertices(excluded & represented).any(|v| self.closed_sets[v as usize] & !represented == 0) {
                return Ok(None);
            }
            let max_cost = goal.limit - represented.count_ones();
            // The search branches on a vertex of N\[S\] if possible, and among several on the
            // vertex that enlarges N\[S\] most.
            let mut branch = None;
            for v in vertices(self.all_vertices() & !set & !excluded) {
                let cost = (self.closed_sets[v as usize] & !represented).count_ones();
                if cost == 0 {
                    set |= 1 << v;
                } else if cost > max_cost {
                    excluded |= 1 << v;
                } else {
                    branch = branch.max(Some((represented >> v & 1, cost, v)));
                }
            }
            if set.count_ones() >= goal.size {
                return Ok(Some(set));
            }
            let allowed = self.all_vertices() & !excluded;
            if allowed.count_ones() < goal.size
                || (represented & excluded).count_ones() + goal.size > goal.limit
            {
                return Ok(None);
            }
            let Some((_, _, v)) = branch else { return Ok(None) };
            let bit = 1 << v;
            let found = self.grow(goal, set | bit, represented | self.closed_sets[v as usize], excluded)?;
            if found.is_some() {
                return Ok(found);
            }
            excluded |= bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Compares the search with an enumeration of all subsets, for all sizes and limits, in
        /// small graphs and their squares.
        #[test]
        fn finds_a_set_if_and_only_if_one_exists(n in 1usize..=8, edges in proptest::collection::vec((0u32..8, 0u32..8), 0..14)) {
            let edges: Vec<_> = edges.into_iter().filter(|&(u, v)| u != v && u.max(v) < n as u32).collect();
            let graph = Graph::new(n, &edges).unwrap();
            let once = |set: Bits| bits(graph.represented(&vertices(set).collect::<Vec<_>>()));
            let twice = |set: Bits| once(once(set));
            let mut branches_left = u64::MAX;
            for squared in [false, true] {
                let represented = |set| if squared { twice(set) } else { once(set) };
                for (size, most) in (1..=n).flat_map(|size| (0..=n).map(move |most| (size, most))) {
                    let fits = |set: Bits| set.count_ones() as usize >= size && represented(set).count_ones() as usize <= most;
                    let mut search = if squared { ExactSearch::of_square(&graph, &mut branches_left) } else { ExactSearch::new(&graph, &mut branches_left) };
                    let found = search.find(size, most).unwrap();
                    prop_assert!(found.is_none_or(fits), "{size} {most}: {found:?}");
                    prop_assert_eq!(found.is_some(), (1..1 << n).any(fits), "{} {}", size, most);
                }
            }
        }
    }

    #[test]
    fn search_uses_all_bits_and_stops_at_its_branch_limit() {
        let ring: Vec<_> = (0..128).map(|v| (v, (v + 1) % 128)).collect();
        let graph = Graph::new(MAX_SEARCH_VERTICES, &ring).unwrap();
        let mut branches_left = 1_000_000;
        let mut search = ExactSearch::new(&graph, &mut branches_left);
        assert_eq!(search.find(62, 64).unwrap().map(Bits::count_ones), Some(62));
        assert_eq!(search.find(63, 64), Ok(None));
        branches_left = 3;
        assert_eq!(ExactSearch::new(&graph, &mut branches_left).find(63, 64), Err(BranchLimitReached));
        assert_eq!(branches_left, 0);
    }
}
