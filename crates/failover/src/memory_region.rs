//! Memory regions that have an address and keys on every rail: local memory, and memory of the peer.

use mitra_verbs::{Error, Key, Mr, RemoteAddr, Result, Sge};
use smallvec::SmallVec;

use crate::control_message::{Reader, Rejected};
use crate::negotiation::MAX_RAILS;

/// Local memory that is registered with every live NIC of a [`Domain`](crate::Domain).
///
/// Work requests name the memory by its primary registration, no matter which rail executes them. The primary registration is the one on the
/// first rail whose NIC was alive at registration, usually rail 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VirtualMr {
    primary: Mr,
    /// The registrations in the order of rails. `None` if the NIC was dead at registration.
    rails: SmallVec<[Option<Mr>; 2]>,
}

impl VirtualMr {
    /// Creates the region from its registrations in the order of rails. Returns `None` if no rail has a registration.
    pub(crate) fn new(rails: SmallVec<[Option<Mr>; 2]>) -> Option<VirtualMr> {
        let primary = *rails.iter().flatten().next()?;
        Some(VirtualMr { primary, rails })
    }

    /// Returns the region with the same primary keys and other registrations, given in the order of rails. Returns `None` if no rail has a
    /// registration.
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
        // A NIC that was dead at registration executes no request, so the primary address and key are never used there.
        let registration = self.rails[rail].unwrap_or(self.primary);
        Sge {
            addr: registration.addr.wrapping_add(sge.addr.wrapping_sub(self.primary.addr)),
            len: sge.len,
            key: registration.lkey,
        }
    }
}

/// The peer's memory, with its address and rkey on every rail. Work requests use the address and rkey of rail 0.
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

    /// Returns a region with the same key on every rail. The peer need not have registered memory with that key. A request with the key
    /// is then posted, and the peer's NIC refuses it, as it would on a queue pair without failover.
    pub fn with_unknown_key(rkey: Key, rails: usize) -> RemoteRegion {
        let everywhere = RemoteAddr { addr: 0, rkey };
        RemoteRegion { len: u64::MAX, rails: core::iter::repeat_n(everywhere, rails).collect() }
    }

    /// Returns whether the region is the memory of a window, or one with an unknown key. No memory has this length.
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
        let mut out = vec![self.rails.len() as u8];
        out.extend_from_slice(&self.len.to_le_bytes());
        for r in &self.rails {
            out.extend_from_slice(&r.addr.to_le_bytes());
            out.extend_from_slice(&r.rkey.0.to_le_bytes());
        }
        out
    }

    /// Decodes the bytes that [`RemoteRegion::encode`] returned.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the bytes are malformed.
    pub fn decode(bytes: &[u8]) -> Result<RemoteRegion> {
        let mut r = Reader(bytes);
        let region = RemoteRegion::parse(&mut r).map_err(|_| Error::Invalid("malformed remote region"))?;
        if r.0.is_empty() { Ok(region) } else { Err(Error::Invalid("malformed remote region")) }
    }

    pub(crate) fn parse(r: &mut Reader<'_>) -> Result<RemoteRegion, Rejected> {
        let rails = usize::from(r.byte()?);
        if !(1..=MAX_RAILS).contains(&rails) {
            return Err(Rejected::Malformed);
        }
        let len = u64::from_le_bytes(r.array()?);
        let mut list = SmallVec::new();
        for _ in 0..rails {
            let addr = u64::from_le_bytes(r.array()?);
            list.push(RemoteAddr { addr, rkey: Key(u32::from_le_bytes(r.array()?)) });
        }
        Ok(RemoteRegion { len, rails: list })
    }
}
