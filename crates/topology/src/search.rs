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
pub const MAX_SEARCHED: usize = 128;

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
pub(crate) struct Spent;

/// N\[v\] of every vertex, and the effort that is left.
pub(crate) struct Search<'a> {
    closed: Vec<Bits>,
    effort: &'a mut u64,
}

/// What is looked for.
#[derive(Clone, Copy)]
struct Wanted {
    size: u32,
    most: u32,
}

impl<'a> Search<'a> {
    /// Over a graph of at most [`MAX_SEARCHED`] vertices; each branch costs one of `effort`.
    pub(crate) fn new(graph: &Graph, effort: &'a mut u64) -> Search<'a> {
        Search { closed: graph.vertices().map(|v| bits(graph.closed(v))).collect(), effort }
    }

    /// Over the square of the graph, where neighbours are at distance 1 or 2.
    pub(crate) fn of_square(graph: &Graph, effort: &'a mut u64) -> Search<'a> {
        let Search { closed, effort } = Search::new(graph, effort);
        let of = |&set: &Bits| vertices(set).fold(0, |all, v| all | closed[v as usize]);
        Search { closed: closed.iter().map(of).collect(), effort }
    }

    /// At least `size` vertices S with |N\[S\]| ≤ `most`, or none if there is no such set.
    pub(crate) fn find(&mut self, size: usize, most: usize) -> Result<Option<Bits>, Spent> {
        self.grow(Wanted { size: size as u32, most: most as u32 }, 0, 0, 0)
    }

    fn all(&self) -> Bits {
        Bits::MAX >> (MAX_SEARCHED - self.closed.len())
    }

    fn grow(
        &mut self,
        wanted: Wanted,
        mut set: Bits,
        represented: Bits,
        mut outside: Bits,
    ) -> Result<Option<Bits>, Spent> {
        loop {
            *self.effort = self.effort.checked_sub(1).ok_or(Spent)?;
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
