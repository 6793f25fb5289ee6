//! Work requests, from C to the NIC.

use std::ffi::c_int;
use std::{ptr, slice};

use mitra_verbs::{
    Data, Error, InlineData, Key, PostError, Provider, QpType, Qpn, RecvWr, RemoteAddr, Result, SendFlags,
    SendOp, SendWr, Sge, UdDestination, WindowBind,
};
use smallvec::SmallVec;

use super::abi_object::AbiObject;
use super::ah::Ah;
use super::context::Context;
use super::mr::{self, Mr};
use super::mw::Mw;
use super::qp::Qp;
use super::srq::Srq;
use crate::abi::*;
use crate::common::errno::{errno_of, log_failure};
use crate::common::lock::lock;

/// Requests that are posted at once; a longer list goes in pieces.
const PIECE: usize = 16;

/// A request of C with a successor.
trait Linked: Sized {
    fn next(&self) -> *mut Self;
}

impl Linked for ibv_send_wr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

impl Linked for ibv_recv_wr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

/// Posts a list. The first request that is refused is left in `bad`.
///
/// # Safety
/// `first` is a list of requests that `translate` may read, and `bad` a variable of the caller's.
unsafe fn post<C: Linked, R>(
    call: &str,
    first: *mut C,
    bad: *mut *mut C,
    mut translate: impl FnMut(&C) -> Result<R>,
    mut post: impl FnMut(&[R]) -> Result<(), PostError>,
) -> c_int {
    let mut piece: SmallVec<[R; PIECE]> = SmallVec::new();
    let (mut from, mut at) = (first, first);
    loop {
        let mut refused = None;
        // SAFETY: the caller's list.
        if let Some(wr) = unsafe { at.as_ref() } {
            match translate(wr) {
                Ok(wr) => piece.push(wr),
                Err(error) => refused = Some(error),
            }
            if refused.is_none() {
                at = wr.next();
                if !at.is_null() && piece.len() < PIECE {
                    continue;
                }
            }
        }
        if !piece.is_empty()
            && let Err(error) = post(&piece)
        {
            for _ in 0..error.index {
                // SAFETY: so many were read from here on.
                from = unsafe { (*from).next() };
            }
            at = from;
            refused = Some(error.error);
        }
        if let Some(error) = refused {
            log_failure(call, &error);
            // SAFETY: the caller's variable.
            unsafe { *bad = at };
            return errno_of(&error);
        }
        if at.is_null() {
            return 0;
        }
        piece.clear();
        from = at;
    }
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: a queue pair.
    let qp = unsafe { Qp::plain(qp) };
    let translate = |wr: &ibv_send_wr| {
        // SAFETY: a request of the program's for this service.
        unsafe { send_request(wr, qp.qp_type) }
    };
    // SAFETY: the caller's list and variable.
    unsafe { post("ibv_post_send", wr, bad_wr, translate, |wrs| qp.post_send(wrs)) }
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a queue pair.
    let qp = unsafe { Qp::plain(qp) };
    // SAFETY: the caller's list and variable.
    unsafe { post("ibv_post_recv", wr, bad_wr, recv_request, |wrs| qp.post_recv(wrs)) }
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a shared receive queue and its device.
    let (srq, nic) = unsafe { (Srq::of(srq), Context::of((*srq).context).nic()) };
    let post_to = |wrs: &[RecvWr]| match &srq.virtual_srq {
        None => nic.post_srq_recv(srq.id, wrs),
        Some(virtual_srq) => virtual_srq.post(wrs),
    };
    // SAFETY: the caller's list and variable.
    unsafe { post("ibv_post_srq_recv", wr, bad_wr, recv_request, post_to) }
}

fn recv_request(wr: &ibv_recv_wr) -> Result<RecvWr> {
    // SAFETY: a request of the program's.
    let sges = unsafe { entries(wr.sg_list, wr.num_sge) }?;
    Ok(RecvWr { wr_id: wr.wr_id, sges: sges.iter().map(entry).collect() })
}

/// More entries of a list than any device takes: none is read before that is checked.
const ENTRIES_AT_MOST: usize = 1 << 8;

/// A list of the program's.
///
/// # Errors
/// It is longer than any device takes, or there is none.
///
/// # Safety
/// The list has as many entries as `n` says.
pub(crate) unsafe fn list<'a, T>(first: *const T, n: usize) -> Result<&'a [T]> {
    match n {
        0 => Ok(&[]),
        n if n > ENTRIES_AT_MOST => Err(Error::Limit {
            attribute: "scatter/gather entries",
            requested: n as u64,
            limit: ENTRIES_AT_MOST as u64,
        }),
        _ if first.is_null() => Err(Error::Invalid("there is no list of so many entries")),
        // SAFETY: the caller's promise.
        n => Ok(unsafe { slice::from_raw_parts(first, n) }),
    }
}

/// The scatter/gather list of a request.
///
/// # Safety
/// The list has as many entries as `n` says.
unsafe fn entries<'a>(first: *const ibv_sge, n: c_int) -> Result<&'a [ibv_sge]> {
    let n = usize::try_from(n).map_err(|_| Error::Invalid("num_sge is negative"))?;
    // SAFETY: the caller's promise.
    unsafe { list(first, n) }
}

pub(crate) fn entry(sge: &ibv_sge) -> Sge {
    Sge { addr: sge.addr, len: sge.length, key: Key(sge.lkey) }
}

/// More inline bytes than any device takes: nothing is copied before that is checked.
const INLINE_AT_MOST: usize = 1 << 12;

/// Refuses inline data that no device takes, before it is copied.
pub(crate) fn inline_room(bytes: usize) -> Result<()> {
    if bytes > INLINE_AT_MOST {
        return Err(Error::Limit {
            attribute: "inline bytes",
            requested: bytes as u64,
            limit: INLINE_AT_MOST as u64,
        });
    }
    Ok(())
}

/// The bytes of a list, copied now.
///
/// # Safety
/// The list's memory is there to be read.
unsafe fn inline(list: &[ibv_sge]) -> Result<InlineData> {
    let total = list.iter().map(|sge| sge.length as usize).sum();
    inline_room(total)?;
    let mut bytes = InlineData::with_capacity(total);
    for sge in list.iter().filter(|sge| sge.length > 0) {
        // SAFETY: the caller's promise.
        bytes.extend_from_slice(unsafe {
            slice::from_raw_parts(ptr::with_exposed_provenance(sge.addr as usize), sge.length as usize)
        });
    }
    Ok(bytes)
}

/// `IBV_SEND_*` without the one that says where the bytes are.
///
/// # Errors
/// A flag that the device does not know.
pub(crate) fn flags(flags: u32) -> Result<SendFlags> {
    const FLAGS: [(u32, SendFlags); 3] = [
        (IBV_SEND_FENCE, SendFlags::FENCE),
        (IBV_SEND_SIGNALED, SendFlags::SIGNALED),
        (IBV_SEND_SOLICITED, SendFlags::SOLICITED),
    ];
    let known = FLAGS.iter().fold(IBV_SEND_INLINE, |all, (bit, _)| all | bit);
    if flags & !known != 0 {
        return Err(Error::Unsupported("check sums of raw packets, or a flag that is unknown"));
    }
    Ok(FLAGS.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, flag)| *flag).collect())
}

/// # Safety
/// The members that the opcode and the service name are set, and what they point to is there.
unsafe fn send_request(wr: &ibv_send_wr, qp_type: QpType) -> Result<SendWr> {
    let flags = flags(wr.send_flags)?;
    // SAFETY: the caller's promise.
    let op = unsafe { operation(wr)? };
    // SAFETY: the caller's promise.
    let sges = unsafe { entries(wr.sg_list, wr.num_sge)? };
    let data = if wr.send_flags & IBV_SEND_INLINE != 0 && !sges.is_empty() {
        // SAFETY: the caller's promise.
        Data::Inline(unsafe { inline(sges)? })
    } else {
        Data::Sges(sges.iter().map(entry).collect())
    };
    let ud = if qp_type == QpType::Ud {
        // SAFETY: set on this service.
        let ud = unsafe { wr.wr.ud };
        // SAFETY: an address handle of the program's.
        Some(unsafe { datagram(ud.ah, ud.remote_qpn, ud.remote_qkey)? })
    } else {
        None
    };
    Ok(SendWr { wr_id: wr.wr_id, op, data, flags, ud })
}

/// Where a datagram goes.
///
/// # Safety
/// `ah` is an address handle or null.
pub(crate) unsafe fn datagram(ah: *mut ibv_ah, qpn: u32, qkey: u32) -> Result<UdDestination> {
    if ah.is_null() {
        return Err(Error::Invalid("a datagram needs an address handle"));
    }
    // SAFETY: the caller's promise.
    Ok(UdDestination { ah: unsafe { Ah::of(ah) }.id, qpn: Qpn::new(qpn), qkey })
}

/// # Safety
/// As for [`send_request`].
unsafe fn operation(wr: &ibv_send_wr) -> Result<SendOp> {
    // SAFETY: members are read that the opcode names; all are integers.
    unsafe {
        let rdma = || RemoteAddr { addr: wr.wr.rdma.remote_addr, rkey: Key(wr.wr.rdma.rkey) };
        let atomic = || RemoteAddr { addr: wr.wr.atomic.remote_addr, rkey: Key(wr.wr.atomic.rkey) };
        Ok(match wr.opcode {
            IBV_WR_SEND => SendOp::Send,
            IBV_WR_SEND_WITH_IMM => SendOp::SendWithImm(u32::from_be(wr.imm_data)),
            IBV_WR_SEND_WITH_INV => SendOp::SendWithInvalidate(Key(wr.imm_data)),
            IBV_WR_RDMA_WRITE => SendOp::Write(rdma()),
            IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::WriteWithImm(rdma(), u32::from_be(wr.imm_data)),
            IBV_WR_RDMA_READ => SendOp::Read(rdma()),
            IBV_WR_ATOMIC_CMP_AND_SWP => SendOp::CompareSwap {
                remote: atomic(),
                compare: wr.wr.atomic.compare_add,
                swap: wr.wr.atomic.swap,
            },
            IBV_WR_ATOMIC_FETCH_AND_ADD => {
                SendOp::FetchAdd { remote: atomic(), add: wr.wr.atomic.compare_add }
            }
            IBV_WR_LOCAL_INV => SendOp::LocalInvalidate(Key(wr.imm_data)),
            IBV_WR_BIND_MW => bind(wr.bind_mw.mw, wr.bind_mw.rkey, &wr.bind_mw.bind_info)?,
            _ => return Err(Error::Unsupported("this opcode")),
        })
    }
}

/// A bind request.
///
/// # Safety
/// The window and the region are the program's, or null.
pub(crate) unsafe fn bind(mw: *mut ibv_mw, rkey: u32, info: &ibv_mw_bind_info) -> Result<SendOp> {
    if mw.is_null() || info.mr.is_null() {
        return Err(Error::Invalid("a bind needs a window and a region"));
    }
    // SAFETY: the caller's promise.
    let (window, region) = unsafe { (Mw::of(mw), lock(&Mr::of(info.mr).registered).primary().id) };
    Ok(SendOp::BindWindow(WindowBind {
        mw: window.id,
        rkey: Key(rkey),
        mr: region,
        addr: info.addr,
        len: info.length,
        access: mr::access(info.mw_access_flags)?,
    }))
}
