use crate::{Key, MrId, MwId, PdId, RemoteAddr, Sge};

bitflags::bitflags! {
    /// Access rights of a memory region, a window or a queue pair (`enum ibv_access_flags`).
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
    pub struct Access: u8 {
        /// The NIC may write the memory for local requests: receives, and the results of READs and
        /// atomics.
        const LOCAL_WRITE = 1;
        /// The peer may WRITE. Requires `LOCAL_WRITE`.
        const REMOTE_WRITE = 1 << 1;
        /// The peer may READ.
        const REMOTE_READ = 1 << 2;
        /// The peer may execute atomics. Requires `LOCAL_WRITE`.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const WINDOW_BIND = 1 << 4;
    }
}

impl Access {
    /// All three remote rights.
    pub const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);
}

/// A registered memory region (IBTA volume 1, 10.6).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Mr {
    /// The handle.
    pub id: MrId,
    /// The protection domain.
    pub pd: PdId,
    /// The address that work requests use for the first byte.
    pub addr: u64,
    /// The length in bytes.
    pub len: u64,
    /// The key for local scatter/gather entries.
    pub lkey: Key,
    /// The key for remote access.
    pub rkey: Key,
}

impl Mr {
    /// Returns a scatter/gather entry of `len` bytes at `offset`. The NIC checks the bounds when it
    /// executes a request.
    pub fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge { addr: self.addr.wrapping_add(offset), len, key: self.lkey }
    }

    /// Returns the address and key by which a peer accesses the byte at `offset`.
    pub fn remote(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.addr.wrapping_add(offset), rkey: self.rkey }
    }
}

/// The type of a memory window (IBTA volume 1, 10.6.7).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WindowType {
    /// Grants access to every queue pair of its protection domain. A bind replaces the last one,
    /// and a bind of 0 bytes ends it. The window cannot be invalidated.
    Type1,
    /// Type 2B: grants access through the queue pair on which it was bound. The window must be
    /// invalidated before it can be bound again.
    Type2,
}

/// A memory window, which grants remote access to a part of a region. Work requests bind the
/// window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Mw {
    /// The handle.
    pub id: MwId,
    /// The protection domain.
    pub pd: PdId,
    /// The key that the NIC assigned at the allocation. It grants no access. A bind replaces its
    /// low 8 bits, and the resulting key grants access ([`WindowBind::rkey`]).
    pub rkey: Key,
}

/// The parameters of a window bind (`struct ibv_mw_bind_info`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WindowBind {
    /// The window.
    pub mw: MwId,
    /// The low 8 bits of the new key. The NIC ignores the upper 24 bits of the field: the new key
    /// has the upper 24 bits of the window's key.
    pub rkey: Key,
    /// The region, which must have [`Access::WINDOW_BIND`]. Ignored if `len` is 0.
    pub mr: MrId,
    /// The address of the first byte, counted from the same origin as [`Mr::addr`].
    pub addr: u64,
    /// The length in bytes. 0 ends the binding of a type 1 window, and is an error for a type 2
    /// window.
    pub len: u64,
    /// The remote rights to grant.
    pub access: Access,
    /// Whether peers address a byte of the window by its offset in the window, instead of by its
    /// address in the region. A type 1 window cannot be zero-based.
    pub zero_based: bool,
}
