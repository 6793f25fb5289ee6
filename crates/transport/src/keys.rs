//! Memory regions and type-2B windows: their keys, bounds, rights, generations and revocation.
//!
//! Every object sits in a slot of one table. Its *handle* is the slot's index and generation together, 24 bits; its
//! key is the handle *enciphered*, and 8 low bits: random and fixed for a region, the consumer's for a window. So
//! - finding a key is arithmetic and one index, whatever the number of objects;
//! - a revoked key's generation has passed: it is refused although its slot serves another object;
//! - a slot's generations come round only after a rest of `quarantine`: no key is given twice within that time
//!   (nor within 2^24 / slots registrations of one slot, 256 with the default limits);
//! - a key says nothing evident about other keys. The cipher spreads guesses over all 24 bits; it is no cryptography,
//!   nor would that help much at 24 bits on a wire that shows every key.
//!
//! Slots are taken in the order in which they were given back; the table grows only when none is free.

use core::fmt;
use core::time::Duration;
use std::collections::VecDeque;

use mitra_verbs::{
    Access, Error, Key, Limits, Mr, MrId, Mw, MwId, PdId, Qpn, RegionId, Result, Time, WindowBind,
};
use rand_chacha::ChaCha8Rng;
use rand_core::RngCore;

/// The keys of one NIC, and what each allows.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Keys {
    slots: Vec<Slot>,
    /// Free slots, the one that was given back first in front.
    free: VecDeque<u32>,
    /// Free slots whose generations have come round, and when their keys may be given again; ascending.
    resting: VecDeque<(Time, u32)>,
    cipher: Cipher,
    /// Low bits of a handle that are the index.
    index_bits: u32,
    quarantine: Duration,
    regions: Count,
    windows: Count,
    bound: u32,
}

/// Registered memory that a key gave access to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Span {
    /// Which.
    pub(crate) region: RegionId,
    /// Where the access begins in it.
    pub(crate) offset: u64,
}

/// Why a key does not give what was asked of it. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum KeyError {
    /// Nothing has this key: it was never given, is not bound, or was revoked.
    Unknown,
    /// What it names belongs to another protection domain.
    WrongPd,
    /// The window is bound to another queue pair.
    WrongQp,
    /// A right is missing.
    NoRight,
    /// The bytes do not lie within what it names.
    OutOfBounds,
    /// To be bound, but bound already.
    AlreadyBound,
    /// To be bound to a key whose upper 24 bits are not the window's.
    ForeignKey,
    /// To be bound to no bytes.
    ZeroLength,
    /// To be invalidated, but a region that was registered by a verb: only [`Keys::dereg_mr`] revokes it.
    NotInvalidatable,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyError::Unknown => "no region or bound window has this key (never given, or revoked)",
            KeyError::WrongPd => "the key belongs to another protection domain",
            KeyError::WrongQp => "the window is bound to another queue pair",
            KeyError::NoRight => "the key does not grant this access",
            KeyError::OutOfBounds => "the bytes do not lie within what the key names",
            KeyError::AlreadyBound => "the window is bound already; invalidate it first",
            KeyError::ForeignKey => "the new key's upper 24 bits are not the window's",
            KeyError::ZeroLength => "a type-2 window cannot be bound to no bytes; invalidate it instead",
            KeyError::NotInvalidatable => "a registered region's key cannot be invalidated; deregister it",
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
    range: Range,
    access: Access,
    /// Windows bound to it.
    windows: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Window {
    pd: PdId,
    bound: Option<Bound>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Bound {
    key: Key,
    qpn: Qpn,
    /// The region, which lives while this is bound.
    mr: MrId,
    range: Range,
    access: Access,
}

/// Addresses from `addr` on; the end does not overflow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Range {
    addr: u64,
    len: u64,
}

impl Range {
    /// How far into the range `len` bytes from `addr` on begin, if they lie within it.
    fn offset_of(self, addr: u64, len: u64) -> Result<u64, KeyError> {
        let offset = addr.checked_sub(self.addr).ok_or(KeyError::OutOfBounds)?;
        let room = self.len.checked_sub(offset).ok_or(KeyError::OutOfBounds)?;
        if len <= room { Ok(offset) } else { Err(KeyError::OutOfBounds) }
    }
}

/// How many there are of a kind, and may be.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Count {
    what: &'static str,
    live: u32,
    limit: u32,
}

impl Count {
    fn check(&self) -> Result<()> {
        if self.live < self.limit {
            return Ok(());
        }
        Err(Error::Limit {
            attribute: self.what,
            requested: u64::from(self.live) + 1,
            limit: self.limit.into(),
        })
    }
}

const REGION: &str = "memory region";
const WINDOW: &str = "memory window";

/// Bits of a handle, and of a key without its low 8.
const HANDLE_BITS: u32 = 24;
/// So that a slot has at least 16 generations.
const MAX_INDEX_BITS: u32 = 20;

impl Keys {
    /// No keys yet. A revoked key is not given again for `quarantine`, the maximum packet lifetime.
    ///
    /// Of `limits`, `mrs` and `mws` count; together they are cut to the table's 2^20 slots.
    pub(crate) fn new(limits: &Limits, quarantine: Duration, rng: &mut ChaCha8Rng) -> Keys {
        // Twice the slots that can be in use, so that a full table still has slots to rotate through.
        let wanted = 2 * (u64::from(limits.mrs) + u64::from(limits.mws));
        Keys {
            slots: Vec::new(),
            free: VecDeque::new(),
            resting: VecDeque::new(),
            cipher: Cipher::new(rng),
            index_bits: wanted.next_power_of_two().ilog2().min(MAX_INDEX_BITS),
            quarantine,
            regions: Count { what: "memory regions", live: 0, limit: limits.mrs },
            windows: Count { what: "memory windows", live: 0, limit: limits.mws },
            bound: 0,
        }
    }

    /// Registers `len` bytes that are named from `addr` on. Local and remote key are the same.
    ///
    /// # Errors
    /// `Invalid`: remote write or atomic rights without local write (IBTA volume 1, 11.2.8.2), or a range that
    /// ends beyond the last address. `Limit`.
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
        if !may_grant(access, access) {
            return Err(Error::Invalid(
                "remote write and atomic access need local write access; add LOCAL_WRITE",
            ));
        }
        if addr.checked_add(len).is_none() {
            return Err(Error::Invalid("the region ends beyond the last address; choose a lower one"));
        }
        self.regions.check()?;
        let index = self.take(now)?;
        let id = self.handle(index);
        let key = self.key(id).with_consumer_bits(rng.next_u32() as u8);
        let object = Region { key, pd, region, range: Range { addr, len }, access, windows: 0 };
        self.slots[index as usize].object = Object::Region(object);
        self.regions.live += 1;
        Ok(Mr { id: MrId(id), pd, addr, len, lkey: key, rkey: key })
    }

    /// Revokes a region's key and gives the driver's name for its memory back.
    ///
    /// # Errors
    /// `Busy` while a window is bound to it; `NoSuchObject`.
    pub(crate) fn dereg_mr(&mut self, now: Time, id: MrId) -> Result<RegionId> {
        let region = self.region(id).ok_or(Error::NoSuchObject { kind: REGION, id: id.0 })?;
        if region.windows > 0 {
            return Err(Error::Busy { kind: REGION, id: id.0, user: "a memory window" });
        }
        let region = region.region;
        self.give_back(now, id.0);
        self.regions.live -= 1;
        Ok(region)
    }

    /// Makes an unbound window. Its key gives nothing until bound.
    ///
    /// # Errors
    /// `Limit`.
    pub(crate) fn alloc_mw(&mut self, now: Time, pd: PdId) -> Result<Mw> {
        self.windows.check()?;
        let index = self.take(now)?;
        let id = self.handle(index);
        self.slots[index as usize].object = Object::Window(Window { pd, bound: None });
        self.windows.live += 1;
        Ok(Mw { id: MwId(id), pd, rkey: self.key(id) })
    }

    /// Revokes and removes a window, bound or not.
    ///
    /// # Errors
    /// `NoSuchObject`.
    pub(crate) fn dealloc_mw(&mut self, now: Time, id: MwId) -> Result<()> {
        self.window(id).ok_or(Error::NoSuchObject { kind: WINDOW, id: id.0 })?;
        self.unbind(id);
        self.give_back(now, id.0);
        self.windows.live -= 1;
        Ok(())
    }

    /// Binds an unbound window for the peer of queue pair `qpn`, which belongs to `pd` (IBTA volume 1, 10.6.7.2).
    /// Of the rights, only the remote ones count; what the region itself grants to peers does not matter.
    pub(crate) fn bind(&mut self, qpn: Qpn, pd: PdId, bind: &WindowBind) -> Result<(), KeyError> {
        let window = self.window(bind.mw).ok_or(KeyError::Unknown)?;
        if window.pd != pd {
            return Err(KeyError::WrongPd);
        }
        if window.bound.is_some() {
            return Err(KeyError::AlreadyBound);
        }
        if bind.rkey.index_part() != self.key(bind.mw.0).0 {
            return Err(KeyError::ForeignKey);
        }
        if bind.len == 0 {
            return Err(KeyError::ZeroLength);
        }
        let region = self.region(bind.mr).ok_or(KeyError::Unknown)?;
        if region.pd != pd {
            return Err(KeyError::WrongPd);
        }
        let access = bind.access & Access::REMOTE;
        if !region.access.contains(Access::WINDOW_BIND) || !may_grant(access, region.access) {
            return Err(KeyError::NoRight);
        }
        region.range.offset_of(bind.addr, bind.len)?;
        let range = Range { addr: bind.addr, len: bind.len };
        let bound = Bound { key: bind.rkey, qpn, mr: bind.mr, range, access };
        if let Some(Object::Window(window)) = self.object_mut(bind.mw.0) {
            window.bound = Some(bound);
        }
        if let Some(Object::Region(region)) = self.object_mut(bind.mr.0) {
            region.windows += 1;
        }
        self.bound += 1;
        Ok(())
    }

    /// Unbinds the window that has this key: local invalidation, and a SEND's with invalidate. Only the queue pair
    /// that it was bound on may (type 2B). The window can be bound again.
    pub(crate) fn invalidate(&mut self, qpn: Qpn, pd: PdId, key: Key) -> Result<(), KeyError> {
        let id = self.cipher.decipher(key.0 >> 8);
        match self.object(id) {
            Some(Object::Region(region)) if region.key == key => Err(KeyError::NotInvalidatable),
            Some(&Object::Window(window)) => {
                bound_for(window, qpn, pd, key)?;
                self.unbind(MwId(id));
                Ok(())
            }
            _ => Err(KeyError::Unknown),
        }
    }

    /// Judges a local scatter/gather entry. `needs` is `LOCAL_WRITE` where the NIC is to write.
    pub(crate) fn local(
        &self,
        pd: PdId,
        key: Key,
        addr: u64,
        len: u64,
        needs: Access,
    ) -> Result<Span, KeyError> {
        match self.object(self.cipher.decipher(key.0 >> 8)) {
            Some(Object::Region(region)) if region.key == key => region.span(pd, addr, len, needs),
            _ => Err(KeyError::Unknown),
        }
    }

    /// Judges a remote request that arrived on queue pair `qpn`, which belongs to `pd`. The queue pair's own rights
    /// are the caller's to check, and so is that a request of no bytes needs no key (IBTA volume 1, 9.7.4): here
    /// no bytes must lie within what the key names, its end included.
    pub(crate) fn remote(
        &self,
        qpn: Qpn,
        pd: PdId,
        key: Key,
        addr: u64,
        len: u64,
        needs: Access,
    ) -> Result<Span, KeyError> {
        match self.object(self.cipher.decipher(key.0 >> 8)) {
            Some(Object::Region(region)) if region.key == key => region.span(pd, addr, len, needs),
            Some(&Object::Window(window)) => {
                let bound = bound_for(window, qpn, pd, key)?;
                if !bound.access.contains(needs) {
                    return Err(KeyError::NoRight);
                }
                bound.range.offset_of(addr, len)?;
                let region = self.region(bound.mr).ok_or(KeyError::Unknown)?;
                Ok(Span { region: region.region, offset: region.range.offset_of(addr, len)? })
            }
            _ => Err(KeyError::Unknown),
        }
    }

    /// Whether a region or window belongs to this protection domain. Looks at all of them.
    pub(crate) fn pd_in_use(&self, pd: PdId) -> bool {
        self.slots.iter().any(|slot| match slot.object {
            Object::None => false,
            Object::Region(region) => region.pd == pd,
            Object::Window(window) => window.pd == pd,
        })
    }

    /// Unbinds the windows of a queue pair that is destroyed or reset: its number may get another peer. Looks at all
    /// slots if any window is bound.
    pub(crate) fn release(&mut self, qpn: Qpn) {
        if self.bound == 0 {
            return;
        }
        for index in 0..self.slots.len() as u32 {
            if let Object::Window(Window { bound: Some(bound), .. }) = self.slots[index as usize].object
                && bound.qpn == qpn
            {
                self.unbind(MwId(self.handle(index)));
            }
        }
    }

    /// Finds a free slot for a new object.
    fn take(&mut self, now: Time) -> Result<u32> {
        if let Some(&(until, index)) = self.resting.front()
            && until <= now
        {
            self.resting.pop_front();
            return Ok(index);
        }
        if let Some(index) = self.free.pop_front() {
            return Ok(index);
        }
        let (used, most) = (self.slots.len(), 1 << self.index_bits);
        if used == most {
            let what = "memory regions and windows, with those whose revoked keys are still quarantined,";
            return Err(Error::Limit { attribute: what, requested: used as u64 + 1, limit: most as u64 });
        }
        self.slots.push(Slot { generation: 0, object: Object::None });
        Ok(used as u32)
    }

    /// Ends an object: its handle and its key are dead from here on.
    fn give_back(&mut self, now: Time, handle: u32) {
        let index = handle & ((1 << self.index_bits) - 1);
        let slot = &mut self.slots[index as usize];
        slot.object = Object::None;
        slot.generation = (slot.generation + 1) & ((1 << (HANDLE_BITS - self.index_bits)) - 1);
        if slot.generation == 0 {
            self.resting.push_back((now + self.quarantine, index));
        } else {
            self.free.push_back(index);
        }
    }

    fn unbind(&mut self, id: MwId) {
        let Some(Object::Window(window)) = self.object_mut(id.0) else { return };
        let Some(bound) = window.bound.take() else { return };
        self.bound -= 1;
        if let Some(Object::Region(region)) = self.object_mut(bound.mr.0) {
            region.windows -= 1;
        }
    }

    /// The handle of the object in a slot.
    fn handle(&self, index: u32) -> u32 {
        self.slots[index as usize].generation << self.index_bits | index
    }

    /// The key of a handle, its low 8 bits zero.
    fn key(&self, handle: u32) -> Key {
        Key(self.cipher.encipher(handle) << 8)
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
    fn span(&self, pd: PdId, addr: u64, len: u64, needs: Access) -> Result<Span, KeyError> {
        if self.pd != pd {
            return Err(KeyError::WrongPd);
        }
        if !self.access.contains(needs) {
            return Err(KeyError::NoRight);
        }
        Ok(Span { region: self.region, offset: self.range.offset_of(addr, len)? })
    }
}

/// What a window was bound to, if this queue pair may use it by this key.
fn bound_for(window: Window, qpn: Qpn, pd: PdId, key: Key) -> Result<Bound, KeyError> {
    match window.bound {
        Some(bound) if bound.key == key => {
            if window.pd != pd {
                Err(KeyError::WrongPd)
            } else if bound.qpn != qpn {
                Err(KeyError::WrongQp)
            } else {
                Ok(bound)
            }
        }
        _ => Err(KeyError::Unknown),
    }
}

/// Whether memory that has the rights `owned` may grant `granted` to peers: who lets them write must be allowed to
/// write itself (IBTA volume 1, 10.6.3.1).
fn may_grant(granted: Access, owned: Access) -> bool {
    !granted.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) || owned.contains(Access::LOCAL_WRITE)
}

/// A permutation of the 24-bit numbers: four Feistel rounds on halves of 12 bits, whose round functions are
/// multiply-shift with random factors (strongly universal: Dietzfelbinger 1996).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Cipher {
    rounds: [(u32, u32); 4],
}

impl Cipher {
    pub(crate) fn new(rng: &mut ChaCha8Rng) -> Cipher {
        Cipher { rounds: core::array::from_fn(|_| (rng.next_u32(), rng.next_u32())) }
    }

    pub(crate) fn encipher(&self, x: u32) -> u32 {
        let (l, r) = self.rounds.iter().fold((x >> 12 & 0xfff, x & 0xfff), |(l, r), k| (r, l ^ round(k, r)));
        l << 12 | r
    }

    pub(crate) fn decipher(&self, y: u32) -> u32 {
        let halves = (y >> 12 & 0xfff, y & 0xfff);
        let (l, r) = self.rounds.iter().rev().fold(halves, |(l, r), k| (r ^ round(k, l), l));
        l << 12 | r
    }
}

fn round(&(factor, addend): &(u32, u32), x: u32) -> u32 {
    x.wrapping_mul(factor).wrapping_add(addend) >> 20
}

#[cfg(test)]
mod tests;
