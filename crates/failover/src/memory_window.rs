use mitra_verbs::{Key, Mw, MwId, RemoteAddr, WindowType};
use smallvec::SmallVec;

use crate::memory_region::RemoteRegion;

const CONSUMER_BITS: u32 = 0xff;

/// A memory window on every live NIC of a [`Domain`](crate::Domain).
///
/// Whichever rail executes them, work requests name the window by its primary allocation. This is
/// the allocation on the first rail whose NIC was alive, usually rail 0. A bind gives the windows
/// of all rails the same low 8 bits of the key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VirtualMw {
    primary: Mw,
    window_type: WindowType,
    /// The windows in the order of rails. `None` if the NIC was dead at the allocation.
    rails: SmallVec<[Option<Mw>; 2]>,
}

impl VirtualMw {
    /// `rails` has the allocations in the order of rails. Returns `None` if no rail has one.
    pub(crate) fn new(window_type: WindowType, rails: SmallVec<[Option<Mw>; 2]>) -> Option<VirtualMw> {
        let primary = *rails.iter().flatten().next()?;
        Some(VirtualMw { primary, window_type, rails })
    }

    /// The window whose handle and key work requests use. Its key grants no access before a bind.
    pub fn primary(&self) -> Mw {
        self.primary
    }

    /// Type 1 or 2.
    pub fn window_type(&self) -> WindowType {
        self.window_type
    }

    /// Returns the description by which the peer uses the key `rkey` of this window on every rail.
    /// The window need not be bound. The peer's requests name the addresses that the bind gave to
    /// the bytes of the window.
    pub fn remote(&self, rkey: Key) -> RemoteRegion {
        let on = |rail| RemoteAddr { addr: 0, rkey: self.key_on(rail, rkey).unwrap_or(rkey) };
        RemoteRegion::new(u64::MAX, (0..self.rails.len()).map(on).collect())
    }

    pub(crate) fn allocations(&self) -> &[Option<Mw>] {
        &self.rails
    }

    /// Whether `rkey` is a key of the primary window, bound or not.
    pub(crate) fn has_key(&self, rkey: Key) -> bool {
        is_same_window(self.primary.rkey, rkey)
    }

    /// `None` if the NIC of `rail` was dead at the allocation.
    pub(crate) fn id_on(&self, rail: usize) -> Option<MwId> {
        self.rails[rail].map(|mw| mw.id)
    }

    /// Translates a key of the primary window. `None` if the NIC of `rail` was dead at the
    /// allocation.
    pub(crate) fn key_on(&self, rail: usize, rkey: Key) -> Option<Key> {
        self.rails[rail].map(|mw| mw.rkey.with_consumer_bits(rkey.0 as u8))
    }

    /// Translates a key on `rail` to the primary window. `None` if `key` belongs to another window.
    pub(crate) fn key_from(&self, rail: usize, key: Key) -> Option<Key> {
        let is_key = self.rails[rail].is_some_and(|mw| is_same_window(mw.rkey, key));
        is_key.then(|| self.primary.rkey.with_consumer_bits(key.0 as u8))
    }
}

fn is_same_window(a: Key, b: Key) -> bool {
    a.0 & !CONSUMER_BITS == b.0 & !CONSUMER_BITS
}
