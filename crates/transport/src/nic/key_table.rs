//! The table of memory regions and memory windows of types 1 and 2B: keys, bounds, access rights
//! and revocation.
//!
//! Each object is in a slot of one table. The 24-bit *handle* of an object is the index and the
//! generation of its slot. The upper 24 bits of its key are the encrypted handle. The lower 8 bits
//! are random for a region; for a window, the consumer chooses them. This layout has four
//! properties:
//! - Finding an object by key takes constant time.
//! - A revoked key is invalid even when its slot holds another object, because the generation
//!   differs.
//! - No key is reused within the time `quarantine`, because a slot that has used all its
//!   generations is quarantined. A slot has 2²⁴ / (number of slots) generations, 256 with the
//!   default limits.
//! - Keys show no visible pattern. The cipher is not secure. A secure cipher would add little,
//!   because an attacker can try all 2²⁴ values and each key is unencrypted on the wire.
//!
//! Slots whose quarantine has ended are reused first, then the other free slots in the order in
//! which they were freed. The table grows only when no slot can be reused.

use core::fmt;
use core::time::Duration;
use std::collections::VecDeque;

use mitra_mutants::Mutant;
use mitra_verbs::{
    Access, Error, Key, Limits, Mr, MrId, MwId, PdId, Qpn, RegionId, Result, Time, WindowType,
    check_region_access,
};
use rand_chacha::ChaCha8Rng;
use rand_core::RngCore;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct KeyTable {
    slots: Vec<Slot>,
    /// The free slots that can be used at once. The slot that was freed first is in front.
    free: VecDeque<u32>,
    /// The free slots that have used all their generations, with the end of their quarantine, in
    /// ascending order.
    quarantined: VecDeque<(Time, u32)>,
    cipher: Cipher,
    /// The number of low bits of a handle that hold the slot index.
    index_bits: u32,
    quarantine: Duration,
    regions: ObjectCount,
    windows: ObjectCount,
    bound_windows: u32,
}

/// The place in memory where a permitted access begins.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RegionSpan {
    pub(crate) region: RegionId,
    /// The first byte of the access, as an offset into the region.
    pub(crate) offset: u64,
}

/// The reason why the table refuses an access, a bind or an invalidation. The table is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum KeyError {
    /// No region or bound window has this key.
    Unknown,
    WrongPd,
    WrongQp,
    NoRight,
    OutOfBounds,
    AlreadyBound,
    ZeroLength,
    /// Bind: a type 1 window would be zero-based.
    ZeroBased,
    /// Invalidate: the key belongs to a memory region or a type 1 window. Only
    /// [`KeyTable::dereg_mr`], or a bind of the window, revokes such a key.
    NotInvalidatable,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyError::Unknown => "no memory region or bound window has this key",
            KeyError::WrongPd => "the key belongs to another protection domain",
            KeyError::WrongQp => "the window is bound to another queue pair",
            KeyError::NoRight => "the key does not grant this access",
            KeyError::OutOfBounds => "the bytes lie outside the memory region or window of the key",
            KeyError::AlreadyBound => "the window is already bound; invalidate it first",
            KeyError::ZeroLength => "a type-2 window cannot be bound to 0 bytes; invalidate it instead",
            KeyError::ZeroBased => "a type-1 window cannot be zero-based; bind a type-2 window",
            KeyError::NotInvalidatable => {
                "the key of a memory region or a type 1 window cannot be invalidated; deregister or bind it"
            }
        })
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Slot {
    generation: u32,
    object: Object,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Object {
    None,
    Region(Region),
    Window(Window),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Region {
    key: Key,
    pd: PdId,
    region: RegionId,
    range: AddressRange,
    access: Access,
    /// The number of windows that are bound to the region.
    windows: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Window {
    pd: PdId,
    window_type: WindowType,
    binding: Option<WindowBinding>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct WindowBinding {
    key: Key,
    /// The queue pair that may use a type 2 window. `None` for a type 1 window, which all queue
    /// pairs of the protection domain may use.
    qpn: Option<Qpn>,
    /// The region cannot be deregistered while the window is bound.
    mr: MrId,
    /// The addresses of the window's bytes in requests.
    range: AddressRange,
    /// The address of the first byte in the region.
    addr: u64,
    access: Access,
}

/// The addresses `addr .. addr + len`. The end fits in 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct AddressRange {
    addr: u64,
    len: u64,
}

impl AddressRange {
    /// Returns the offset of `addr` in the range, if the bytes `addr .. addr + len` lie within the
    /// range.
    fn offset_of(self, addr: u64, len: u64) -> Result<u64, KeyError> {
        let offset = addr.checked_sub(self.addr).ok_or(KeyError::OutOfBounds)?;
        let rest = self.len.checked_sub(offset).ok_or(KeyError::OutOfBounds)?;
        if len <= rest + u64::from(Mutant::BoundsOffByOne.is_on()) {
            Ok(offset)
        } else {
            Err(KeyError::OutOfBounds)
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct ObjectCount {
    /// The name of the objects in error messages.
    kind: &'static str,
    live: u32,
    limit: u32,
}

impl ObjectCount {
    fn check(&self) -> Result<()> {
        if self.live < self.limit {
            return Ok(());
        }
        Err(Error::Limit {
            attribute: self.kind,
            requested: u64::from(self.live) + 1,
            limit: self.limit.into(),
        })
    }
}

const REGION: &str = "memory region";
const WINDOW: &str = "memory window";

/// The bits of a handle, and of a key without its low 8 bits.
const HANDLE_BITS: u32 = 24;
/// The largest number of index bits. A slot then has at least 16 generations.
const MAX_INDEX_BITS: u32 = 20;

impl KeyTable {
    /// Creates an empty table. A revoked key is not reused for `quarantine`, the maximum packet
    /// lifetime.
    ///
    /// The table uses `mrs` and `mws` of `limits`. It holds at most 2²⁰ objects.
    pub(crate) fn new(limits: &Limits, quarantine: Duration, rng: &mut ChaCha8Rng) -> KeyTable {
        // Twice as many slots as objects, so that free slots rotate even when the table is full.
        let wanted = 2 * (u64::from(limits.mrs) + u64::from(limits.mws));
        KeyTable {
            slots: Vec::new(),
            free: VecDeque::new(),
            quarantined: VecDeque::new(),
            cipher: Cipher::new(rng),
            index_bits: wanted.next_power_of_two().ilog2().min(MAX_INDEX_BITS),
            quarantine,
            regions: ObjectCount { kind: "memory regions", live: 0, limit: limits.mrs },
            windows: ObjectCount { kind: "memory windows", live: 0, limit: limits.mws },
            bound_windows: 0,
        }
    }

    /// Registers a region at the addresses `addr .. addr + len`. The local and the remote key are
    /// the same.
    ///
    /// # Errors
    /// - `Invalid`: remote write or remote atomic access without local write access (IBTA volume 1,
    ///   11.2.8.2), or a range that ends beyond the last address.
    /// - `Limit`: the NIC has the maximum number of regions, or no slot is free.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn reg_mr(
        &mut self,
        now: Time,
        rng: &mut ChaCha8Rng,
        pd: PdId,
        region: RegionId,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Mr> {
        check_region(addr, len, access)?;
        self.regions.check()?;
        let index = self.take_slot(now)?;
        let id = self.handle(index);
        let key = self.key(id).with_consumer_bits(rng.next_u32() as u8);
        let object = Region { key, pd, region, range: AddressRange { addr, len }, access, windows: 0 };
        self.slots[index as usize].object = Object::Region(object);
        self.regions.live += 1;
        Ok(Mr { id: MrId(id), pd, addr, len, lkey: key, rkey: key })
    }

    /// Revokes the key of a region and returns the driver's identifier of its memory.
    ///
    /// # Errors
    /// - `Busy`: a window is bound to the region.
    /// - `NoSuchObject`: the region does not exist.
    pub(crate) fn dereg_mr(&mut self, now: Time, id: MrId) -> Result<RegionId> {
        let region = self.region(id).ok_or(Error::NoSuchObject { kind: REGION, id: id.0 })?;
        if region.windows > 0 {
            return Err(Error::Busy { kind: REGION, id: id.0, user: "a memory window" });
        }
        let region = region.region;
        if !Mutant::RevokedKeyValid.is_on() {
            self.free_slot(now, id.0);
        }
        self.regions.live -= 1;
        Ok(region)
    }

    /// `needs` is `LOCAL_WRITE` if the NIC writes to the scatter/gather entry.
    pub(crate) fn check_local(
        &self,
        pd: PdId,
        key: Key,
        addr: u64,
        len: u64,
        needs: Access,
    ) -> Result<RegionSpan, KeyError> {
        match self.object(self.cipher.decrypt(key.0 >> 8)) {
            Some(Object::Region(region)) if region.key == key => region.span(pd, addr, len, needs),
            _ => Err(KeyError::Unknown),
        }
    }

    /// Checks a remote access on queue pair `qpn`, which belongs to `pd`.
    ///
    /// The caller checks the access rights of the queue pair. A request of 0 bytes needs no key
    /// (IBTA volume 1, 9.7.4), and the caller does not check such a request. For a `len` of 0,
    /// `addr` must be in the region or window or at its end.
    pub(crate) fn check_remote(
        &self,
        qpn: Qpn,
        pd: PdId,
        key: Key,
        addr: u64,
        len: u64,
        needs: Access,
    ) -> Result<RegionSpan, KeyError> {
        match self.object(self.cipher.decrypt(key.0 >> 8)) {
            Some(Object::Region(region)) if region.key == key => region.span(pd, addr, len, needs),
            Some(&Object::Window(window)) => {
                let binding = binding_for(window, qpn, pd, key)?;
                if !binding.access.contains(needs) {
                    return Err(KeyError::NoRight);
                }
                let offset = binding.range.offset_of(addr, len)?;
                let region = self.region(binding.mr).ok_or(KeyError::Unknown)?;
                // The window lies in the region, so the sum is an address of the region.
                let offset = region.range.offset_of(binding.addr + offset, len)?;
                Ok(RegionSpan { region: region.region, offset })
            }
            _ => Err(KeyError::Unknown),
        }
    }

    /// The cost is linear in the table size.
    pub(crate) fn pd_in_use(&self, pd: PdId) -> bool {
        self.slots.iter().any(|slot| match slot.object {
            Object::None => false,
            Object::Region(region) => region.pd == pd,
            Object::Window(window) => window.pd == pd,
        })
    }

    fn take_slot(&mut self, now: Time) -> Result<u32> {
        if let Some(&(until, index)) = self.quarantined.front()
            && until <= now
        {
            self.quarantined.pop_front();
            return Ok(index);
        }
        if let Some(index) = self.free.pop_front() {
            return Ok(index);
        }
        let (used, max) = (self.slots.len(), 1 << self.index_bits);
        if used == max {
            let attribute = "memory regions and windows (with quarantined keys)";
            return Err(Error::Limit { attribute, requested: used as u64 + 1, limit: max as u64 });
        }
        self.slots.push(Slot { generation: 0, object: Object::None });
        Ok(used as u32)
    }

    /// The handle and the key of the object are invalid from now on.
    fn free_slot(&mut self, now: Time, handle: u32) {
        let index = handle & ((1 << self.index_bits) - 1);
        let slot = &mut self.slots[index as usize];
        slot.object = Object::None;
        slot.generation = (slot.generation + 1) & ((1 << (HANDLE_BITS - self.index_bits)) - 1);
        if slot.generation == 0 {
            self.quarantined.push_back((now + self.quarantine, index));
        } else {
            self.free.push_back(index);
        }
    }

    fn handle(&self, index: u32) -> u32 {
        self.slots[index as usize].generation << self.index_bits | index
    }

    /// The low 8 bits of the key are zero.
    fn key(&self, handle: u32) -> Key {
        Key(self.cipher.encrypt(handle) << 8)
    }

    fn object(&self, handle: u32) -> Option<&Object> {
        let slot = self.slots.get((handle & ((1 << self.index_bits) - 1)) as usize)?;
        (slot.generation == handle >> self.index_bits).then_some(&slot.object)
    }

    fn object_mut(&mut self, handle: u32) -> Option<&mut Object> {
        let slot = self.slots.get_mut((handle & ((1 << self.index_bits) - 1)) as usize)?;
        (slot.generation == handle >> self.index_bits).then_some(&mut slot.object)
    }

    fn region(&self, id: MrId) -> Option<&Region> {
        if let Object::Region(region) = self.object(id.0)? { Some(region) } else { None }
    }

    fn window(&self, id: MwId) -> Option<&Window> {
        if let Object::Window(window) = self.object(id.0)? { Some(window) } else { None }
    }
}

impl Region {
    fn span(&self, pd: PdId, addr: u64, len: u64, needs: Access) -> Result<RegionSpan, KeyError> {
        if self.pd != pd && !Mutant::DomainUnchecked.is_on() {
            return Err(KeyError::WrongPd);
        }
        if !self.access.contains(needs) && !Mutant::RightsUnchecked.is_on() {
            return Err(KeyError::NoRight);
        }
        Ok(RegionSpan { region: self.region, offset: self.range.offset_of(addr, len)? })
    }
}

fn check_region(addr: u64, len: u64, access: Access) -> Result<()> {
    check_region_access(access)?;
    if addr.checked_add(len).is_none() {
        return Err(Error::Invalid("the region ends beyond the last address; choose a lower one"));
    }
    Ok(())
}

fn binding_for(window: Window, qpn: Qpn, pd: PdId, key: Key) -> Result<WindowBinding, KeyError> {
    match window.binding {
        Some(binding) if binding.key == key => {
            if window.pd != pd {
                Err(KeyError::WrongPd)
            } else if binding.qpn.is_some_and(|bound_on| bound_on != qpn) {
                Err(KeyError::WrongQp)
            } else {
                Ok(binding)
            }
        }
        _ => Err(KeyError::Unknown),
    }
}

/// Returns whether a region with the access rights `owned` may grant the rights `granted` to peers.
/// Remote write and remote atomic access require local write access (IBTA volume 1, 10.6.3.1).
fn may_grant(granted: Access, owned: Access) -> bool {
    !granted.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) || owned.contains(Access::LOCAL_WRITE)
}

mod cipher;
mod reregistration;
#[cfg(test)]
mod tests;
mod windows;

pub(crate) use cipher::Cipher;
