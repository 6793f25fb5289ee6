//! The memory regions with on-demand paging, for `ibv_advise_mr`.

use std::collections::HashMap;

use mitra_verbs::{Key, PdId};

/// The regions by their lkey.
pub(crate) type OnDemandRegions = HashMap<Key, OnDemandRegion>;

pub(crate) struct OnDemandRegion {
    /// The program's protection domain.
    pub(crate) pd: PdId,
    /// The address of the first byte in the process.
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// The address of the first byte in work requests.
    pub(crate) iova: u64,
    pub(crate) writable: bool,
}
