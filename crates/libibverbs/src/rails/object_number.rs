//! Numbers of objects that are made after the NIC of rail 0 has died, which numbered those made
//! before.

use std::sync::atomic::{AtomicU32, Ordering};

/// The first number, which is greater than those that a NIC assigns.
const FIRST: u32 = 1 << 31;

/// Returns the next number. It comes again after 2³¹ others.
pub(in crate::rails) fn without_rail_0() -> u32 {
    static COUNT: AtomicU32 = AtomicU32::new(1);
    FIRST | COUNT.fetch_add(1, Ordering::Relaxed)
}
