//! The one exact question: are there `size` processes that represent at most `most`?
//!
//! All measures follow from it: HBO's tolerance asks it of the graph with `most` = n/2, the best possible asks it of the
//! square of the graph with `most` = n − `size`, and the expansion asks it for every size up to n/2.
//!
//! A set S is grown vertex by vertex; N\[S\] and the vertices decided to stay outside S are kept as bits. A branch is cut
//! - where `most` leaves too little room: at most `most` vertices are represented, and those of them that stay outside S
//!   are not in it, so |S| ≤ `most` − |N\[S\] outside S|;
//! - where a vertex that stays outside would cost nothing: the branch that has it in S was searched before.
//!
//! A vertex that costs nothing is taken without asking, one that costs too much is left out without asking.

use crate::graph::Graph;

/// Vertices in a set of bits, and so of the graphs that are searched.
pub const MAX_SEARCH_VERTICES: usize = 128;

/// A set of vertices.
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

/// The effort was spent before there was an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BranchLimitReached;

/// N\[v\] of every vertex, and the effort that is left.
pub(crate) struct ExactSearch<'a> {
    closed: Vec<Bits>,
    effort: &'a mut u64,
}

/// What is looked for.
#[derive(Clone, Copy)]
struct Wanted {
    size: u32,
    most: u32,
}

impl<'a> ExactSearch<'a> {
    /// Over a graph of at most [`MAX_SEARCH_VERTICES`] vertices; each branch costs one of `effort`.
    pub(crate) fn new(graph: &Graph, effort: &'a mut u64) -> ExactSearch<'a> {
        ExactSearch {
            closed: graph.vertices().map(|v| bits(graph.closed_neighbourhood(v))).collect(),
            effort,
        }
    }

    /// Over the square of the graph, where neighbours are at distance 1 or 2.
    pub(crate) fn of_square(graph: &Graph, effort: &'a mut u64) -> ExactSearch<'a> {
        let ExactSearch { closed, effort } = ExactSearch::new(graph, effort);
        let of = |&set: &Bits| vertices(set).fold(0, |all, v| all | closed[v as usize]);
        ExactSearch { closed: closed.iter().map(of).collect(), effort }
    }

    /// At least `size` vertices S with |N\[S\]| ≤ `most`, or none if there is no such set.
    pub(crate) fn find(&mut self, size: usize, most: usize) -> Result<Option<Bits>, BranchLimitReached> {
        self.grow(Wanted { size: size as u32, most: most as u32 }, 0, 0, 0)
    }

    fn all(&self) -> Bits {
        Bits::MAX >> (MAX_SEARCH_VERTICES - self.closed.len())
    }

    fn grow(
        &mut self,
        wanted: Wanted,
        mut set: Bits,
        represented: Bits,
        mut outside: Bits,
    ) -> Result<Option<Bits>, BranchLimitReached> {
        loop {
            *self.effort = self.effort.checked_sub(1).ok_or(BranchLimitReached)?;
            if vertices(outside & represented).any(|v| self.closed[v as usize] & !represented == 0) {
                return Ok(None);
            }
            let room = wanted.most - represented.count_ones();
            // Where to branch: within what is represented, where it tells most.
            let mut branch = None;
            for v in vertices(self.all() & !set & !outside) {
                let cost = (self.closed[v as usize] & !represented).count_ones();
                if cost == 0 {
                    set |= 1 << v;
                } else if cost > room {
                    outside |= 1 << v;
                } else {
                    branch = branch.max(Some((represented >> v & 1, cost, v)));
                }
            }
            if set.count_ones() >= wanted.size {
                return Ok(Some(set));
            }
            let left = self.all() & !outside;
            if left.count_ones() < wanted.size
                || (represented & outside).count_ones() + wanted.size > wanted.most
            {
                return Ok(None);
            }
            let Some((_, _, v)) = branch else { return Ok(None) };
            let bit = 1 << v;
            let found = self.grow(wanted, set | bit, represented | self.closed[v as usize], outside)?;
            if found.is_some() {
                return Ok(found);
            }
            outside |= bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Every question that can be asked of a small graph and of its square, against all its subsets.
        #[test]
        fn finds_a_set_just_if_there_is_one(n in 1usize..=8, edges in proptest::collection::vec((0u32..8, 0u32..8), 0..14)) {
            let edges: Vec<_> = edges.into_iter().filter(|&(u, v)| u != v && u.max(v) < n as u32).collect();
            let graph = Graph::new(n, &edges).unwrap();
            let once = |set: Bits| bits(graph.represented(&vertices(set).collect::<Vec<_>>()));
            let twice = |set: Bits| once(once(set));
            let mut effort = u64::MAX;
            for squared in [false, true] {
                let represented = |set| if squared { twice(set) } else { once(set) };
                for (size, most) in (1..=n).flat_map(|size| (0..=n).map(move |most| (size, most))) {
                    let fits = |set: Bits| set.count_ones() as usize >= size && represented(set).count_ones() as usize <= most;
                    let mut search = if squared { ExactSearch::of_square(&graph, &mut effort) } else { ExactSearch::new(&graph, &mut effort) };
                    let found = search.find(size, most).unwrap();
                    prop_assert!(found.is_none_or(fits), "{size} {most}: {found:?}");
                    prop_assert_eq!(found.is_some(), (1..1 << n).any(fits), "{} {}", size, most);
                }
            }
        }
    }

    #[test]
    fn all_bits_can_be_used_and_the_effort_ends() {
        let ring: Vec<_> = (0..128).map(|v| (v, (v + 1) % 128)).collect();
        let graph = Graph::new(MAX_SEARCH_VERTICES, &ring).unwrap();
        let mut effort = 1_000_000;
        let mut search = ExactSearch::new(&graph, &mut effort);
        assert_eq!(search.find(62, 64).unwrap().map(Bits::count_ones), Some(62));
        assert_eq!(search.find(63, 64), Ok(None));
        effort = 3;
        assert_eq!(ExactSearch::new(&graph, &mut effort).find(63, 64), Err(BranchLimitReached));
        assert_eq!(effort, 0);
    }
}
