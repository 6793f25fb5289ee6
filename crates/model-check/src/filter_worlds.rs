//! The worlds in which the endpoint filter is checked.

use crate::{BitFilterLimits, FilterLimits};

/// Two senders, a table of one row: each sender must give the row back before the other can send.
pub const ONE_ROW: FilterLimits = FilterLimits {
    senders: 2,
    calls: 2,
    rows: 1,
    window: 1,
    requests_per_grant: 2,
    filter_restarts: 0,
    sender_restarts: 0,
    half_leases: 0,
    expirations: 1,
    grants: 5,
};

/// A world with one sender, which has two calls outstanding and uses up its sequence numbers after
/// three calls.
pub const WINDOW: FilterLimits =
    FilterLimits { senders: 1, calls: 5, window: 2, requests_per_grant: 3, grants: 5, ..ONE_ROW };

/// Two senders with one call each in a table of one row. The lease passes, so the filter may evict
/// a node with an outstanding call.
pub const EVICTION: FilterLimits =
    FilterLimits { calls: 1, half_leases: 2, expirations: 0, grants: 4, ..ONE_ROW };

/// Two senders with one call each in a table of one row, and the filter restarts.
pub const FILTER_RESTART: FilterLimits =
    FilterLimits { calls: 1, filter_restarts: 1, expirations: 0, grants: 4, ..ONE_ROW };

/// A world with one sender, which has up to two calls outstanding and restarts.
pub const SENDER_RESTART: FilterLimits =
    FilterLimits { senders: 1, calls: 3, window: 2, sender_restarts: 1, expirations: 0, ..ONE_ROW };

/// The worlds with a table, small ones first.
pub const TABLES: [FilterLimits; 5] = [WINDOW, SENDER_RESTART, FILTER_RESTART, EVICTION, ONE_ROW];

/// Worlds that are run from seeds.
pub const LARGE: FilterLimits = FilterLimits {
    senders: 3,
    calls: 8,
    rows: 2,
    window: 3,
    requests_per_grant: 4,
    filter_restarts: 1,
    sender_restarts: 2,
    half_leases: 4,
    expirations: 4,
    grants: u8::MAX,
};

/// The sender numbers its calls with one bit, so the third call has the bit of the first call. The
/// receiver restarts once.
pub const ONE_BIT: BitFilterLimits =
    BitFilterLimits { senders: 1, calls: 3, timeouts: 1, restarts: 1, ordered: true };

/// Two senders with one bit each; one restart.
pub const TWO_BITS: BitFilterLimits = BitFilterLimits { senders: 2, calls: 1, timeouts: 0, ..ONE_BIT };
