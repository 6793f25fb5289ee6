//! Reads whole partitions in pieces.

use std::rc::Rc;

use crate::layout::Layout;
use crate::place::{Copies, Location, Place, PlaceKind};
use crate::request::{NodeId, Outcome, Request};
use crate::transaction::TableId;

/// The length of the longest access that covers several places, in bytes.
pub(crate) const MAX_PIECE_BYTES: u64 = 256 << 10;

/// Places of one kind that follow each other, read from one or several of their copies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    first: Place,
    count: u32,
    /// The distance from one place to the next, in bytes. A place has `place_bytes` bytes.
    stride: usize,
    place_bytes: usize,
    copies: Vec<(Location, Copy)>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Copy {
    Wanted,
    Read(Vec<u8>),
    /// The node is declared dead.
    Dead,
}

impl Piece {
    /// Returns the piece that begins at a place, with at most `copies` copies. Returns `None` if
    /// the place does not exist.
    fn new(layout: &Layout, first: Place, copies: usize) -> Option<Piece> {
        let Copies { primary, backups, bytes, .. } = layout.copies_of(first)?;
        let (places, stride) = layout.places(first.table, first.kind)?;
        let count = u64::from(places - first.index).min((MAX_PIECE_BYTES / stride).max(1)) as u32;
        let copies = [primary].into_iter().chain(backups).take(copies).map(|at| (at, Copy::Wanted)).collect();
        let (stride, place_bytes) = (stride as usize, bytes as usize);
        Some(Piece { first, count, stride, place_bytes, copies })
    }

    fn requests(&self) -> Vec<Request> {
        let bytes = self.stride * (self.count as usize - 1) + self.place_bytes;
        let wanted = self.copies.iter().filter(|(_, copy)| *copy == Copy::Wanted);
        wanted.map(|(at, _)| Request::read(*at, bytes as u32)).collect()
    }

    fn on_outcomes(&mut self, outcomes: &[Outcome]) {
        let wanted = self.copies.iter_mut().filter(|(_, copy)| *copy == Copy::Wanted);
        for ((_, copy), outcome) in wanted.zip(outcomes) {
            match outcome {
                Outcome::Executed(bytes) => *copy = Copy::Read(bytes.clone()),
                Outcome::NodeDead => *copy = Copy::Dead,
                Outcome::ValueLost | Outcome::NotExecuted | Outcome::Unknown => {}
            }
        }
    }

    /// Returns the places, each with the bytes of its copies on nodes that are not declared dead,
    /// the primary first.
    pub(crate) fn places(&self) -> impl Iterator<Item = (Place, Vec<(NodeId, &[u8])>)> {
        (0..self.count).map(move |number| {
            let begin = number as usize * self.stride;
            let read = self.copies.iter().filter_map(move |(at, copy)| match copy {
                Copy::Read(bytes) => {
                    Some((at.node, bytes.get(begin..begin + self.place_bytes).unwrap_or_default()))
                }
                Copy::Wanted | Copy::Dead => None,
            });
            (Place { index: self.first.index + number, ..self.first }, read.collect())
        })
    }

    /// The nodes that are declared dead, and have a copy.
    pub(crate) fn dead_nodes(&self) -> impl Iterator<Item = NodeId> {
        self.copies.iter().filter(|(_, copy)| *copy == Copy::Dead).map(|(at, _)| at.node)
    }
}

/// Reads all places of some kinds of some partitions, one piece after the other. Pieces are read at
/// different times.
#[derive(Clone, Debug)]
pub(crate) struct Scan {
    layout: Rc<Layout>,
    /// The first place of the next piece, for each partition and kind that is not read completely.
    /// The last element is read first.
    begins: Vec<Place>,
    copies: usize,
    piece: Option<Piece>,
}

impl Scan {
    /// Creates a scan of the places of each table, partition and kind in `what`, in this order. The
    /// scan reads at most `copies` copies of each place.
    pub(crate) fn new(layout: Rc<Layout>, what: Vec<(TableId, u32, PlaceKind)>, copies: usize) -> Scan {
        let begin = |(table, partition, kind)| Place { table, partition, kind, index: 0 };
        Scan { layout, begins: what.into_iter().rev().map(begin).collect(), copies, piece: None }
    }

    /// The requests to execute: at least one; `None` at the end.
    pub(crate) fn requests(&mut self) -> Option<Vec<Request>> {
        while self.piece.is_none() {
            self.piece = Piece::new(&self.layout, self.begins.pop()?, self.copies);
        }
        self.piece.as_ref().map(Piece::requests)
    }

    /// Takes the outcomes of the last requests. Returns a piece when all its copies are known.
    pub(crate) fn on_outcomes(&mut self, outcomes: &[Outcome]) -> Option<Piece> {
        let piece = self.piece.as_mut()?;
        piece.on_outcomes(outcomes);
        let piece = self.piece.take_if(|piece| piece.requests().is_empty())?;
        self.begins.push(Place { index: piece.first.index + piece.count, ..piece.first });
        Some(piece)
    }
}
