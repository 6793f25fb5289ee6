use crate::{Key, MrId, MwId, PdId, RemoteAddr, Sge};

bitflags::bitflags! {
    /// Access rights of a memory region, a window or a queue pair (`enum ibv_access_flags`).
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
    pub struct Access: u8 {
        /// The NIC may write the memory for local requests: receives, and the results of READs and atomics.
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
    /// The address of the first byte that work requests use.
    pub addr: u64,
    /// The length in bytes.
    pub len: u64,
    /// The key for local scatter/gather entries.
    pub lkey: Key,
    /// The key for remote access.
    pub rkey: Key,
}

impl Mr {
    /// Returns a scatter/gather entry of `len` bytes at `offset`. The NIC checks the bounds when it executes a request.
    pub fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge { addr: self.addr.wrapping_add(offset), len, key: self.lkey }
    }

    /// Returns the address and key by which a peer accesses the byte at `offset`.
    pub fn remote(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.addr.wrapping_add(offset), rkey: self.rkey }
    }
}

/// A memory window of type 2B (IBTA volume 1, 10.6.7), which grants remote access to a part of a region through one queue pair. Work
/// requests on that queue pair bind and invalidate the window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Mw {
    /// The handle.
    pub id: MwId,
    /// The protection domain.
    pub pd: PdId,
    /// The key that the NIC assigned at the allocation. It grants no access. A bind replaces its low 8 bits, and the resulting key grants
    /// access ([`WindowBind::rkey`]).
    pub rkey: Key,
}

/// The parameters of a window bind (`struct ibv_mw_bind_info`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WindowBind {
    /// The window.
    pub mw: MwId,
    /// The new key: the upper 24 bits of the window's key, and any low 8 bits.
    pub rkey: Key,
    /// The region, which must have [`Access::WINDOW_BIND`].
    pub mr: MrId,
    /// The address of the first byte. It counts like [`Mr::addr`].
    pub addr: u64,
    /// The length in bytes.
    pub len: u64,
    /// The remote rights to grant.
    pub access: Access,
}
