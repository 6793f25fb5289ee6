use crate::{Key, MrId, MwId, PdId, RemoteAddr, Sge};

bitflags::bitflags! {
    /// What may be done to memory, or through a queue pair (`enum ibv_access_flags`).
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
    pub struct Access: u8 {
        /// The NIC may write it for local requests (receives, READ results, atomic results).
        const LOCAL_WRITE = 1;
        /// The peer may WRITE it. Needs `LOCAL_WRITE`.
        const REMOTE_WRITE = 1 << 1;
        /// The peer may READ it.
        const REMOTE_READ = 1 << 2;
        /// The peer may CAS and FAA it. Needs `LOCAL_WRITE`.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to it.
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
    /// Its handle.
    pub id: MrId,
    /// The protection domain it belongs to.
    pub pd: PdId,
    /// The address that work requests name its first byte by.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Key for local scatter/gather entries.
    pub lkey: Key,
    /// Key for remote access.
    pub rkey: Key,
}

impl Mr {
    /// A scatter/gather entry of `len` bytes at `offset`. The NIC checks the bounds when it is used.
    pub fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge { addr: self.addr.wrapping_add(offset), len, key: self.lkey }
    }

    /// How a peer names the byte at `offset`.
    pub fn remote(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.addr.wrapping_add(offset), rkey: self.rkey }
    }
}

/// A type-2 memory window (IBTA volume 1, 10.6.7): rights on a part of a region, granted and revoked by work
/// requests, bound to one queue pair (2B).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Mw {
    /// Its handle.
    pub id: MwId,
    /// The protection domain it belongs to.
    pub pd: PdId,
    /// The key it was allocated with; not valid until bound. A bind chooses the low 8 bits.
    pub rkey: Key,
}

/// What a window is to be bound to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WindowBind {
    /// The window.
    pub mw: MwId,
    /// The key it shall answer to: the window's own upper 24 bits, any low 8.
    pub rkey: Key,
    /// The region, which must have [`Access::WINDOW_BIND`].
    pub mr: MrId,
    /// First byte, as in the region's addresses.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Remote rights to grant.
    pub access: Access,
}
