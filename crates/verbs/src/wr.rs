use core::fmt;
use smallvec::SmallVec;

use crate::{AhId, Key, Qpn, WcOpcode, WindowBind};

/// A scatter/gather entry: local memory by address and key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sge {
    /// The first byte, in the region's addresses.
    pub addr: u64,
    /// The length in bytes.
    pub len: u32,
    /// The local key.
    pub key: Key,
}

/// A scatter/gather list. Up to two entries need no allocation.
pub type SgeList = SmallVec<[Sge; 2]>;

/// Payload in the work request itself (`IBV_SEND_INLINE`). It is copied when the request is posted, so its memory needs no key and
/// can be reused at once. Up to 32 bytes need no allocation.
pub type InlineData = SmallVec<[u8; 32]>;

/// Remote memory by address and key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteAddr {
    /// The first byte, in the addresses of the peer's region.
    pub addr: u64,
    /// The peer's remote key.
    pub rkey: Key,
}

/// The operation of a send work request (IBTA volume 1, 11.4.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SendOp {
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendWithImm(u32),
    /// SEND that invalidates a key of the peer.
    SendWithInvalidate(Key),
    /// RDMA WRITE.
    Write(RemoteAddr),
    /// RDMA WRITE that consumes a receive and delivers immediate data.
    WriteWithImm(RemoteAddr, u32),
    /// RDMA READ into the local entries.
    Read(RemoteAddr),
    /// Atomic compare-and-swap of the 8-byte word at the remote address, in the responder's byte order; the old value
    /// goes to the one 8-byte local entry.
    CompareSwap {
        /// The word; 8-byte aligned.
        remote: RemoteAddr,
        /// The value that the word must have for the swap.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Atomic fetch-and-add on the 8-byte word at the remote address; the old value goes to the one 8-byte local entry.
    FetchAdd {
        /// The word; 8-byte aligned.
        remote: RemoteAddr,
        /// The addend; the addition wraps.
        add: u64,
    },
    /// Binds a type-2 memory window; a local operation.
    BindWindow(WindowBind),
    /// Invalidates a local key; a local operation.
    LocalInvalidate(Key),
}

impl SendOp {
    /// Returns the remote memory of the operation, if it has one.
    pub fn remote(&self) -> Option<RemoteAddr> {
        match *self {
            SendOp::Write(r) | SendOp::WriteWithImm(r, _) | SendOp::Read(r) => Some(r),
            SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. } => Some(remote),
            _ => None,
        }
    }

    /// Whether the operation is a READ or an atomic, which `max_rd_atomic` limits.
    pub fn is_read_or_atomic(&self) -> bool {
        matches!(self, SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }

    /// Returns the opcode of the completion.
    pub fn wc_opcode(&self) -> WcOpcode {
        match self {
            SendOp::Send | SendOp::SendWithImm(_) | SendOp::SendWithInvalidate(_) => WcOpcode::Send,
            SendOp::Write(_) | SendOp::WriteWithImm(..) => WcOpcode::Write,
            SendOp::Read(_) => WcOpcode::Read,
            SendOp::CompareSwap { .. } => WcOpcode::CompareSwap,
            SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
            SendOp::BindWindow(_) => WcOpcode::BindWindow,
            SendOp::LocalInvalidate(_) => WcOpcode::LocalInvalidate,
        }
    }

    /// Whether the operation is an atomic.
    pub fn is_atomic(&self) -> bool {
        matches!(self, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }
}

/// The local data of a send work request.
#[derive(PartialEq, Eq, Hash, Debug)]
pub enum Data {
    /// Registered memory.
    Sges(SgeList),
    /// Inline data.
    Inline(InlineData),
}

impl Clone for Data {
    fn clone(&self) -> Data {
        // `SmallVec::clone` clones each element. `from_slice` copies the elements at once.
        match self {
            Data::Sges(list) => Data::Sges(SgeList::from_slice(list)),
            Data::Inline(bytes) => Data::Inline(InlineData::from_slice(bytes)),
        }
    }
}

impl Data {
    /// Returns data of no bytes.
    pub fn empty() -> Data {
        Data::Sges(SgeList::new())
    }

    /// Returns data in one entry of registered memory.
    pub fn sge(sge: Sge) -> Data {
        Data::Sges(SgeList::from_slice(&[sge]))
    }

    /// Returns inline data.
    pub fn inline(bytes: &[u8]) -> Data {
        Data::Inline(InlineData::from_slice(bytes))
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Data::Sges(list) => list.iter().map(|s| u64::from(s.len)).sum(),
            Data::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

bitflags::bitflags! {
    /// The flags of a send work request (`enum ibv_send_flags`). [`Data::Inline`] takes the place of the flag INLINE.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct SendFlags: u8 {
        /// Starts the request only after all earlier READs and atomics of this queue pair have completed.
        const FENCE = 1;
        /// Requests a completion on success.
        const SIGNALED = 1 << 1;
        /// Requests a solicited event at the receiver.
        const SOLICITED = 1 << 2;
    }
}

/// The destination of a UD SEND.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UdDestination {
    /// The address handle.
    pub ah: AhId,
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// The Q_Key. If its top bit is set, the sender's queue pair uses its own Q_Key instead (IBTA volume 1, 10.2.5).
    pub qkey: u32,
}

/// A send work request.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SendWr {
    /// A number of the consumer's choice, returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// The local data: gathered for a SEND or WRITE, and scattered to for a READ or an atomic.
    pub data: Data,
    /// The flags.
    pub flags: SendFlags,
    /// The destination, on a UD queue pair.
    pub ud: Option<UdDestination>,
}

impl SendWr {
    /// Creates a signalled request.
    pub fn new(wr_id: u64, op: SendOp, data: Data) -> SendWr {
        SendWr { wr_id, op, data, flags: SendFlags::SIGNALED, ud: None }
    }

    /// Returns the request with these flags.
    pub fn with_flags(mut self, flags: SendFlags) -> SendWr {
        self.flags = flags;
        self
    }

    /// Returns the request with this UD destination.
    pub fn to(mut self, destination: UdDestination) -> SendWr {
        self.ud = Some(destination);
        self
    }
}

impl fmt::Debug for SendWr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SendWr({} {:?} {} B {:?})", self.wr_id, self.op, self.data.len(), self.flags)
    }
}

/// A receive work request.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RecvWr {
    /// The consumer's own name for it.
    pub wr_id: u64,
    /// The memory that the message is scattered to.
    pub sges: SgeList,
}

impl RecvWr {
    /// Creates a receive with one entry.
    pub fn new(wr_id: u64, sge: Sge) -> RecvWr {
        RecvWr { wr_id, sges: SgeList::from_slice(&[sge]) }
    }
}
