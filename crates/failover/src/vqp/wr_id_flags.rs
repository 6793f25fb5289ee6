//! The flags in the `wr_id`s that a vQP uses on its rails. The `wr_id` of an operation is its
//! 48-bit sequence number without a flag.

/// A completion log entry. The low bits are the sequence number of the operation that the entry
/// follows.
pub(super) const LOG: u64 = 1 << 62;
/// Everything posted to the receive queue.
pub(super) const RECV: u64 = 1 << 63;
/// The markers of the fence.
pub(super) const MARKER: u64 = 1 << 61;
/// The binds and invalidations that keep the windows of the rails equal.
pub(super) const WINDOW: u64 = 1 << 60;
