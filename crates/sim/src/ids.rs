//! The hosts and NICs of a world, by number.

/// Identifies a host of a world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostId(pub(crate) usize);

/// Identifies a NIC of a world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NicId(pub(crate) usize);
