use core::fmt;
use smallvec::SmallVec;

use crate::{AhId, Key, Qpn, Srqn, WcOpcode, WindowBind};

/// A scatter/gather entry: a range of registered local memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sge {
    /// The address of the first byte, counted from the same origin as
    /// [`Mr::addr`](crate::Mr::addr).
    pub addr: u64,
    /// The length in bytes.
    pub len: u32,
    /// The local key.
    pub key: Key,
}

/// A scatter/gather list. Up to two entries need no allocation.
pub type SgeList = SmallVec<[Sge; 2]>;

/// A payload that the work request itself contains (`IBV_SEND_INLINE`), so that no memory has to be
/// registered for it. Up to 32 bytes need no allocation.
pub type InlineData = SmallVec<[u8; 32]>;

/// The address and the key of remote memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteAddr {
    /// The address of the first byte, counted from the same origin as the
    /// [`Mr::addr`](crate::Mr::addr) of the peer's region.
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
    /// RDMA READ into the local memory that the scatter/gather list describes.
    Read(RemoteAddr),
    /// Atomic compare-and-swap of the 8-byte word at the remote address, in the responder's byte
    /// order. The old value is written to the only scatter/gather entry, which has 8 bytes.
    CompareSwap {
        /// The word. Its address must be a multiple of 8.
        remote: RemoteAddr,
        /// The value that the word must have for the swap.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Atomic fetch-and-add on the 8-byte word at the remote address, in the responder's byte
    /// order. The old value is written to the only scatter/gather entry, which has 8 bytes.
    FetchAdd {
        /// The word. Its address must be a multiple of 8.
        remote: RemoteAddr,
        /// The addend. The addition wraps around.
        add: u64,
    },
    /// Binds a memory window. The operation sends no packet.
    BindWindow(WindowBind),
    /// Invalidates a local key. The operation sends no packet.
    LocalInvalidate(Key),
}

impl SendOp {
    /// Returns the remote memory that the operation accesses, if any.
    pub fn remote(&self) -> Option<RemoteAddr> {
        match *self {
            SendOp::Write(r) | SendOp::WriteWithImm(r, _) | SendOp::Read(r) => Some(r),
            SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. } => Some(remote),
            _ => None,
        }
    }

    /// Returns the key of the peer that the operation names, if any: the key of the memory that the
    /// operation accesses, or the key to invalidate.
    #[inline]
    pub fn remote_key(&self) -> Option<Key> {
        match *self {
            SendOp::SendWithInvalidate(key) => Some(key),
            _ => self.remote().map(|remote| remote.rkey),
        }
    }

    /// Whether the requester's NIC executes the operation itself, without a packet: the bind of a
    /// window, or a local invalidation.
    pub fn is_local(&self) -> bool {
        matches!(self, SendOp::BindWindow(_) | SendOp::LocalInvalidate(_))
    }

    /// Whether the operation is a READ or an atomic. `max_rd_atomic` limits the number of such
    /// operations that are outstanding.
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

    /// Whether the operation can be sent as a datagram.
    pub fn is_datagram(&self) -> bool {
        matches!(self, SendOp::Send | SendOp::SendWithImm(_))
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
    #[inline]
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
    /// The flags of a send work request (`enum ibv_send_flags`). [`Data::Inline`] takes the place
    /// of the flag INLINE.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct SendFlags: u8 {
        /// Starts the request only after all earlier READs and atomics of this queue pair have
        /// completed.
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
    /// The Q_Key. If its top bit is set, the sender's queue pair uses its own Q_Key instead (IBTA
    /// volume 1, 10.2.5).
    pub qkey: u32,
}

/// A send work request.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SendWr {
    /// A number that the program chooses. The completion contains it.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// The local data: the source of a SEND or WRITE, and the destination of a READ or an atomic.
    pub data: Data,
    /// The flags.
    pub flags: SendFlags,
    /// The destination. Only sends on a UD queue pair have one.
    pub ud: Option<UdDestination>,
    /// The peer's shared receive queue, for a request on an [`XrcSend`](crate::QpType::XrcSend)
    /// queue pair. 0 for any other request.
    pub remote_srq: Srqn,
}

impl SendWr {
    /// Returns whether the request is an atomic whose local memory is shorter than the 8 bytes of
    /// its result.
    pub fn is_short_atomic(&self) -> bool {
        self.op.is_atomic() && self.data.len() < 8
    }

    /// Creates a signalled request.
    pub fn new(wr_id: u64, op: SendOp, data: Data) -> SendWr {
        SendWr { wr_id, op, data, flags: SendFlags::SIGNALED, ud: None, remote_srq: Srqn::new(0) }
    }

    /// Returns the request with these flags.
    pub fn with_flags(mut self, flags: SendFlags) -> SendWr {
        self.flags = flags;
        self
    }

    /// Returns the request with this shared receive queue of the peer.
    pub fn to_srq(mut self, remote_srq: Srqn) -> SendWr {
        self.remote_srq = remote_srq;
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
    /// A number that the program chooses. The completion contains it.
    pub wr_id: u64,
    /// The memory to which the message is written.
    pub sges: SgeList,
}

impl RecvWr {
    /// Creates a receive with one entry.
    pub fn new(wr_id: u64, sge: Sge) -> RecvWr {
        RecvWr { wr_id, sges: SgeList::from_slice(&[sge]) }
    }
}
