//! The addresses of records.

use core::fmt::{self, Display, Formatter};

use crate::TableId;
use crate::request::NodeId;

/// A place for a record, in the numbering that all coordinators share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    /// The table.
    pub table: TableId,
    /// The partition of the table: all its places are on the same nodes.
    pub partition: u32,
    /// Whether it is the place of a bucket of the table's index, or of one of its records.
    pub kind: PlaceKind,
    /// The number of the place among the places of its kind in the partition.
    pub index: u32,
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            PlaceKind::Bucket => "bucket",
            PlaceKind::Record => "record",
        };
        write!(f, "{kind} {} in partition {} of table {}", self.index, self.partition, self.table.0)
    }
}

/// The use of a [`Place`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PlaceKind {
    /// A bucket of the index. Buckets are stored as records, so locks, versions and the log protect
    /// them in the same way.
    Bucket,
    /// A record.
    Record,
}

/// An address in the memory of a node, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Location {
    /// The node.
    pub node: NodeId,
    /// The offset in its memory.
    pub at: u64,
}

/// The copies of a record.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Copies {
    /// The place.
    pub place: Place,
    /// The copy that is locked and read.
    pub primary: Location,
    /// The copies that are written before the primary.
    pub backups: Vec<Location>,
    /// The length of the place, in bytes.
    pub bytes: u32,
}
