//! Memory regions with an address and keys on every rail.

use mitra_verbs::{Codec, Error, Key, Malformed, Mr, Reader, RemoteAddr, Result, Sge};
use smallvec::SmallVec;

use crate::config::MAX_RAILS;

/// Local memory that is registered with every live NIC of a [`Domain`](crate::Domain).
///
/// Work requests name the memory by its primary registration, whichever rail executes them.
/// The primary registration is on the first rail whose NIC was alive, usually rail 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VirtualMr {
    primary: Mr,
    /// The registrations in the order of rails. `None` if the NIC was dead at registration.
    rails: SmallVec<[Option<Mr>; 2]>,
}

impl VirtualMr {
    /// `rails` has the registrations in the order of rails. Returns `None` if no rail has one.
    pub(crate) fn new(rails: SmallVec<[Option<Mr>; 2]>) -> Option<VirtualMr> {
        let primary = *rails.iter().flatten().next()?;
        Some(VirtualMr { primary, rails })
    }

    /// Returns the region with the same primary keys and other registrations. Returns `None` if no
    /// rail has a registration.
    pub(crate) fn reregistered(&self, rails: SmallVec<[Option<Mr>; 2]>) -> Option<VirtualMr> {
        let Mr { pd, addr, len, .. } = *rails.iter().flatten().next()?;
        Some(VirtualMr { primary: Mr { pd, addr, len, ..self.primary }, rails })
    }

    /// The entry for `len` bytes at `offset`.
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

    /// Whether the memory has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The description by which the peer reaches this memory on every rail.
    pub fn remote(&self) -> RemoteRegion {
        // A dead NIC executes no request, so the key on its rail is never used.
        let on = |mr: &Option<Mr>| mr.unwrap_or(self.primary).remote(0);
        RemoteRegion { len: self.len(), rails: self.rails.iter().map(on).collect() }
    }

    pub(crate) fn registrations(&self) -> &[Option<Mr>] {
        &self.rails
    }

    pub(crate) fn translate(&self, sge: Sge, rail: usize) -> Sge {
        // A NIC that was dead at registration never uses the entry.
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
    pub(crate) fn new(len: u64, rails: SmallVec<[RemoteAddr; 2]>) -> RemoteRegion {
        RemoteRegion { len, rails }
    }

    /// Returns a region for a key that the peer may not have registered. Without such a region, the
    /// vQP refuses a request with the key. With it, the peer's NIC refuses the request, as on a
    /// queue pair without failover.
    pub fn with_unknown_key(rkey: Key, rails: usize) -> RemoteRegion {
        let everywhere = RemoteAddr { addr: 0, rkey };
        RemoteRegion { len: u64::MAX, rails: core::iter::repeat_n(everywhere, rails).collect() }
    }

    /// A window and an unknown key have this length. No memory has it.
    pub(crate) fn is_window(&self) -> bool {
        self.len == u64::MAX
    }

    /// The address by which work requests name the byte at `offset`.
    pub fn at(&self, offset: u64) -> RemoteAddr {
        self.on_rail(0, offset)
    }

    /// The length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn on_rail(&self, rail: usize, offset: u64) -> RemoteAddr {
        let base = self.rails[rail];
        RemoteAddr { addr: base.addr.wrapping_add(offset), rkey: base.rkey }
    }

    pub(crate) fn rail_count(&self) -> usize {
        self.rails.len()
    }

    /// Encodes the region, to be sent to the peer.
    pub fn encode(&self) -> Vec<u8> {
        self.to_bytes()
    }

    /// Decodes the bytes of [`RemoteRegion::encode`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if the bytes are malformed.
    pub fn decode(bytes: &[u8]) -> Result<RemoteRegion> {
        RemoteRegion::from_bytes(bytes).map_err(|_| Error::Invalid("malformed remote region"))
    }
}

/// Encoding: number of rails, length, then the address and rkey on each rail.
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
