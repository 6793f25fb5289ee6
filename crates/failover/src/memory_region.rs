//! Memory regions that have an address and keys on every rail: local memory, and memory of the
//! peer.

use mitra_verbs::{Codec, Error, Key, Malformed, Mr, Reader, RemoteAddr, Result, Sge};
use smallvec::SmallVec;

use crate::config::MAX_RAILS;

/// Local memory that is registered with every live NIC of a [`Domain`](crate::Domain).
///
/// Work requests name the memory by its primary registration, no matter which rail executes them.
/// The primary registration is the one on the first rail whose NIC was alive at registration,
/// usually rail 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VirtualMr {
    primary: Mr,
    /// The registrations in the order of rails. `None` if the NIC was dead at registration.
    rails: SmallVec<[Option<Mr>; 2]>,
}

impl VirtualMr {
    /// Creates the region from its registrations in the order of rails. Returns `None` if no rail
    /// has a registration.
    pub(crate) fn new(rails: SmallVec<[Option<Mr>; 2]>) -> Option<VirtualMr> {
        let primary = *rails.iter().flatten().next()?;
        Some(VirtualMr { primary, rails })
    }

    /// Returns the region with the same primary keys and other registrations, given in the order of
    /// rails. Returns `None` if no rail has a registration.
    pub(crate) fn reregistered(&self, rails: SmallVec<[Option<Mr>; 2]>) -> Option<VirtualMr> {
        let Mr { pd, addr, len, .. } = *rails.iter().flatten().next()?;
        Some(VirtualMr { primary: Mr { pd, addr, len, ..self.primary }, rails })
    }

    /// Returns a scatter/gather entry of `len` bytes at `offset`.
    pub fn sge(&self, offset: u64, len: u32) -> Sge {
        self.primary.sge(offset, len)
    }

    /// The registration whose address and keys work requests use.
    pub fn primary(&self) -> Mr {
        self.primary
    }

    /// The length in bytes.
    pub fn len(&self) -> u64 {
        self.primary.len
    }

    /// Returns whether the memory has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the description that the peer imports to reach this memory on every rail.
    pub fn remote(&self) -> RemoteRegion {
        // A dead NIC executes no request, so the key on its rail is never used.
        let on = |mr: &Option<Mr>| mr.unwrap_or(self.primary).remote(0);
        RemoteRegion { len: self.len(), rails: self.rails.iter().map(on).collect() }
    }

    /// The registrations in the order of rails.
    pub(crate) fn registrations(&self) -> &[Option<Mr>] {
        &self.rails
    }

    /// Translates an entry from the primary registration to the registration on `rail`.
    pub(crate) fn translate(&self, sge: Sge, rail: usize) -> Sge {
        // A NIC that was dead at registration executes no request, so the primary address and key
        // are never used there.
        let registration = self.rails[rail].unwrap_or(self.primary);
        Sge {
            addr: registration.addr.wrapping_add(sge.addr.wrapping_sub(self.primary.addr)),
            len: sge.len,
            key: registration.lkey,
        }
    }
}

/// The peer's memory, with its address and rkey on every rail. Work requests use the address and
/// rkey of rail 0.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RemoteRegion {
    len: u64,
    rails: SmallVec<[RemoteAddr; 2]>,
}

impl RemoteRegion {
    /// Creates the region from the address and rkey of its first byte on every rail.
    pub(crate) fn new(len: u64, rails: SmallVec<[RemoteAddr; 2]>) -> RemoteRegion {
        RemoteRegion { len, rails }
    }

    /// Returns a region with the same key on every rail. The peer need not have registered memory
    /// with that key. A request with the key is then posted, and the peer's NIC refuses it, as it
    /// would on a queue pair without failover.
    pub fn with_unknown_key(rkey: Key, rails: usize) -> RemoteRegion {
        let everywhere = RemoteAddr { addr: 0, rkey };
        RemoteRegion { len: u64::MAX, rails: core::iter::repeat_n(everywhere, rails).collect() }
    }

    /// Returns whether the region is the memory of a window, or one with an unknown key. No memory
    /// has this length.
    pub(crate) fn is_window(&self) -> bool {
        self.len == u64::MAX
    }

    /// Returns the address of the byte at `offset`, as work requests name it.
    pub fn at(&self, offset: u64) -> RemoteAddr {
        self.on_rail(0, offset)
    }

    /// The length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address and rkey of the byte at `offset` on `rail`.
    pub(crate) fn on_rail(&self, rail: usize, offset: u64) -> RemoteAddr {
        let base = self.rails[rail];
        RemoteAddr { addr: base.addr.wrapping_add(offset), rkey: base.rkey }
    }

    /// The number of rails on which the region has an address.
    pub(crate) fn rail_count(&self) -> usize {
        self.rails.len()
    }

    /// Encodes the region, for the application to send to the peer.
    pub fn encode(&self) -> Vec<u8> {
        self.to_bytes()
    }

    /// Decodes the bytes that [`RemoteRegion::encode`] returned.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the bytes are malformed.
    pub fn decode(bytes: &[u8]) -> Result<RemoteRegion> {
        RemoteRegion::from_bytes(bytes).map_err(|_| Error::Invalid("malformed remote region"))
    }
}

/// The number of rails, the length, and the address and rkey on each rail.
impl Codec<'_> for RemoteRegion {
    fn put(&self, out: &mut impl Extend<u8>) {
        (self.rails.len() as u8).put(out);
        self.len.put(out);
        self.rails.iter().for_each(|rail| rail.put(out));
    }

    fn take(reader: &mut Reader<'_>) -> Result<RemoteRegion, Malformed> {
        let rails = usize::from(u8::take(reader)?);
        if !(1..=MAX_RAILS).contains(&rails) {
            return Err(Malformed::Field);
        }
        Ok(RemoteRegion { len: Codec::take(reader)?, rails: reader.list(rails)? })
    }
}
