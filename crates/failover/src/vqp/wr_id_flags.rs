//! The flags in the `wr_id`s that a vQP uses on its rails. The `wr_id` of an operation is its
//! sequence number, of 48 bits, without a flag.

/// The flag of a completion log entry. The low bits are the sequence number of the operation that
/// the entry follows.
pub(super) const LOG: u64 = 1 << 62;
/// The flag of everything posted to the receive queue.
pub(super) const RECV: u64 = 1 << 63;
/// The flag of the markers that the fence posts.
pub(super) const MARKER: u64 = 1 << 61;
/// The flag of the binds and invalidations that keep the windows of the rails in step.
pub(super) const WINDOW: u64 = 1 << 60;
