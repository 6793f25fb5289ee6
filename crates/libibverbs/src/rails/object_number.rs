//! The numbers of objects that no NIC has.

use std::sync::atomic::{AtomicU32, Ordering};

/// The first number. NICs assign smaller numbers.
const FIRST: u32 = 1 << 31;

/// The numbers repeat after 2³¹ calls.
pub(in crate::rails) fn next() -> u32 {
    static COUNT: AtomicU32 = AtomicU32::new(1);
    FIRST | COUNT.fetch_add(1, Ordering::Relaxed)
}
