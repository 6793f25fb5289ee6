use core::fmt;
use smallvec::SmallVec;

use crate::{AhId, Key, Qpn, WcOpcode, WindowBind};

/// A scatter/gather entry: local memory by address and key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sge {
    /// First byte, as in the region's addresses.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// Local key.
    pub key: Key,
}

/// A scatter/gather list; up to two entries need no allocation.
pub type SgeList = SmallVec<[Sge; 2]>;

/// Payload carried in the work request itself: copied at posting, so its memory needs no key and may be
/// reused at once (`IBV_SEND_INLINE`). Up to 32 bytes need no allocation.
pub type InlineData = SmallVec<[u8; 32]>;

/// Remote memory by address and key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteAddr {
    /// First byte, as in the peer region's addresses.
    pub addr: u64,
    /// The peer's remote key.
    pub rkey: Key,
}

/// What to do (IBTA volume 1, 11.4.1.1).
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
        /// Swapped in if the word equals this.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// Atomic fetch-and-add on the 8-byte word at the remote address; the old value goes to the one 8-byte local entry.
    FetchAdd {
        /// The word; 8-byte aligned.
        remote: RemoteAddr,
        /// Added, wrapping.
        add: u64,
    },
    /// Bind a type-2 memory window; local.
    BindWindow(WindowBind),
    /// Invalidate a local key; local.
    LocalInvalidate(Key),
}

impl SendOp {
    /// The remote memory it names, if it does.
    pub fn remote(&self) -> Option<RemoteAddr> {
        match *self {
            SendOp::Write(r) | SendOp::WriteWithImm(r, _) | SendOp::Read(r) => Some(r),
            SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. } => Some(remote),
            _ => None,
        }
    }

    /// Whether it returns data from the peer (READ, CAS, FAA), and so counts against `max_rd_atomic`.
    pub fn is_read_or_atomic(&self) -> bool {
        matches!(self, SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }

    /// The opcode of its completion.
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

    /// Whether it is CAS or FAA.
    pub fn is_atomic(&self) -> bool {
        matches!(self, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }
}

/// Where the local bytes of a request are.
#[derive(PartialEq, Eq, Hash, Debug)]
pub enum Data {
    /// In registered memory.
    Sges(SgeList),
    /// In the request.
    Inline(InlineData),
}

impl Clone for Data {
    fn clone(&self) -> Data {
        // `SmallVec::clone` goes element by element; this copies.
        match self {
            Data::Sges(list) => Data::Sges(SgeList::from_slice(list)),
            Data::Inline(bytes) => Data::Inline(InlineData::from_slice(bytes)),
        }
    }
}

impl Data {
    /// No bytes.
    pub fn empty() -> Data {
        Data::Sges(SgeList::new())
    }

    /// One entry of registered memory.
    pub fn sge(sge: Sge) -> Data {
        Data::Sges(SgeList::from_slice(&[sge]))
    }

    /// Bytes to carry along.
    pub fn inline(bytes: &[u8]) -> Data {
        Data::Inline(InlineData::from_slice(bytes))
    }

    /// Bytes in all.
    pub fn len(&self) -> u64 {
        match self {
            Data::Sges(list) => list.iter().map(|s| u64::from(s.len)).sum(),
            Data::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

bitflags::bitflags! {
    /// `enum ibv_send_flags`, without INLINE, which [`Data::Inline`] says.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct SendFlags: u8 {
        /// Start only after all earlier READs and atomics of this queue have completed.
        const FENCE = 1;
        /// Complete in the CQ even on success.
        const SIGNALED = 1 << 1;
        /// Raise the peer's solicited event.
        const SOLICITED = 1 << 2;
    }
}

/// Where a UD SEND goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UdDestination {
    /// Address handle.
    pub ah: AhId,
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// The peer's Q_Key; with its top bit set, the sending queue pair's own is used (IBTA volume 1, 10.2.5).
    pub qkey: u32,
}

/// A send work request.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SendWr {
    /// The consumer's own name for it, returned in its completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// The local bytes: gathered for SEND and WRITE, scattered into for READ and atomics.
    pub data: Data,
    /// How.
    pub flags: SendFlags,
    /// The destination, on UD.
    pub ud: Option<UdDestination>,
}

impl SendWr {
    /// A signalled request.
    pub fn new(wr_id: u64, op: SendOp, data: Data) -> SendWr {
        SendWr { wr_id, op, data, flags: SendFlags::SIGNALED, ud: None }
    }

    /// The same with these flags instead.
    pub fn with_flags(mut self, flags: SendFlags) -> SendWr {
        self.flags = flags;
        self
    }

    /// The same, to this UD destination.
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
    /// Where to scatter to.
    pub sges: SgeList,
}

impl RecvWr {
    /// A receive into one entry.
    pub fn new(wr_id: u64, sge: Sge) -> RecvWr {
        RecvWr { wr_id, sges: SgeList::from_slice(&[sge]) }
    }
}
