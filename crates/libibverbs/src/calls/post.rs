//! Posting work requests: conversion from C structures, and posting to the queue pair of the
//! device.

use std::ffi::c_int;
use std::{ptr, slice};

use mitra_verbs::{
    Access, Data, Error, InlineData, Key, MrId, PostError, QpType, Qpn, RecvWr, RemoteAddr, Result,
    SendFlags, SendOp, SendWr, Sge, Srqn, UdDestination, WindowBind,
};
use smallvec::SmallVec;

use super::abi_object::AbiObject;
use super::ah::Ah;
use super::mr::{self, Mr};
use super::mw::Mw;
use super::qp::Qp;
use super::srq::Srq;
use crate::common::errno::status;
use crate::common::limit::check_limit;
use crate::common::lock::lock;
use mitra_verbs_abi::*;

/// The maximum number of requests that one call posts. A longer list takes several calls.
const BATCH: usize = 16;

/// A request in C, which is an element of a linked list that ends in null.
trait LinkedRequest: Copy {
    fn next(&self) -> *mut Self;
}

impl LinkedRequest for ibv_send_wr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

impl LinkedRequest for ibv_recv_wr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

/// Posts a list of requests to a queue in batches. Returns 0 if all requests are posted. Otherwise
/// stores the address of the first request that is refused in `bad`, and sets and returns `errno`.
/// The requests before the refused one are posted.
///
/// # Safety
/// `first` is the first element of a list that ends in null, or null. All elements are valid for
/// reading, also by `translate`. `bad` is valid for writing.
unsafe fn post<Q, C: LinkedRequest, R>(
    call: &str,
    queue: Result<Q>,
    (first, bad): (*mut C, *mut *mut C),
    translate: impl Fn(&Q, &C) -> Result<R>,
    post: impl Fn(&Q, &[R]) -> Result<(), PostError>,
) -> c_int {
    let refuse = |request, error| {
        // SAFETY: the caller guarantees that `bad` is valid for writing.
        unsafe { *bad = request };
        status(call, Err(error))
    };
    let queue = match queue {
        Ok(queue) => queue,
        Err(error) => return refuse(first, error),
    };
    let mut batch: SmallVec<[R; BATCH]> = SmallVec::new();
    // The first request of the batch, and the next request to convert.
    let (mut batch_start, mut next) = (first, first);
    loop {
        let mut refused = None;
        if !next.is_null() {
            // SAFETY: the caller passes a list that ends in null, and `next` is one of its
            // elements, perhaps in a packed structure.
            let wr = unsafe { next.read_unaligned() };
            match translate(&queue, &wr) {
                Ok(wr) => batch.push(wr),
                Err(error) => refused = Some(error),
            }
            if refused.is_none() {
                next = wr.next();
                if !next.is_null() && batch.len() < BATCH {
                    continue;
                }
            }
        }
        if !batch.is_empty()
            && let Err(error) = post(&queue, &batch)
        {
            for _ in 0..error.index {
                // SAFETY: `error.index` is less than the length of the batch, so `batch_start` is
                // an element of the list here.
                batch_start = unsafe { batch_start.read_unaligned() }.next();
            }
            next = batch_start;
            refused = Some(error.error);
        }
        if let Some(error) = refused {
            return refuse(next, error);
        }
        if next.is_null() {
            return 0;
        }
        batch.clear();
        batch_start = next;
    }
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: rules *objects* and *structures* (module `calls`). The program has set the members of
    // a request that the opcode and the queue pair's type select.
    unsafe {
        let translate = |qp: &&Qp, wr: &ibv_send_wr| send_request(wr, qp.qp_type);
        post("ibv_post_send", Qp::find_ibv_qp(qp), (wr, bad_wr), translate, |qp, wrs| {
            qp.object.post_send(wrs)
        })
    }
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: rules *objects* and *structures* (module `calls`).
    unsafe {
        let translate = |_: &&Qp, wr: &ibv_recv_wr| recv_request(wr);
        post("ibv_post_recv", Qp::find_ibv_qp(qp), (wr, bad_wr), translate, |qp, wrs| {
            qp.object.post_recv(wrs)
        })
    }
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let translate = |srq: &&Srq, wr: &ibv_recv_wr| {
        let entries = u32::try_from(wr.num_sge).unwrap_or(0); // `recv_request` refuses a negative number
        check_limit("scatter entries of a receive", entries, srq.sges).and_then(|()| recv_request(wr))
    };
    // SAFETY: rules *objects* and *structures* (module `calls`).
    unsafe {
        post("ibv_post_srq_recv", Srq::find(srq), (wr, bad_wr), translate, |srq, wrs| srq.queue.post(wrs))
    }
}

fn recv_request(wr: &ibv_recv_wr) -> Result<RecvWr> {
    // SAFETY: rule *structures* (module `calls`): the list of the request has `num_sge` entries.
    let sges = unsafe { sge_list(wr.sg_list, wr.num_sge) }?;
    Ok(RecvWr { wr_id: wr.wr_id, sges: sges.map(sge_from_c).collect() })
}

/// The length of a list of scatter/gather entries or buffers above which the list is refused before
/// it is read. The device's own limits are lower.
const MAX_LIST_LEN: usize = 1 << 8;

/// The list of the program may have any alignment, because libiscsi has lists in packed structures.
///
/// # Errors
/// `Limit` if the list is longer than [`MAX_LIST_LEN`], or `Invalid` if it is null and not empty.
///
/// # Safety
/// `first` is valid for reading `n` elements while the result is used, or null.
pub(crate) unsafe fn list_from_c<T: Copy>(
    first: *const T,
    n: usize,
) -> Result<impl ExactSizeIterator<Item = T> + Clone> {
    if n > MAX_LIST_LEN {
        let (requested, limit) = (n as u64, MAX_LIST_LEN as u64);
        return Err(Error::Limit { attribute: "scatter/gather entries", requested, limit });
    }
    if n > 0 && first.is_null() {
        return Err(Error::Invalid(
            "the scatter/gather list is null and num_sge is not 0; pass a list, or 0",
        ));
    }
    // SAFETY: the index is less than `n`, and the caller guarantees that `n` elements are readable.
    Ok((0..n).map(move |index| unsafe { first.add(index).read_unaligned() }))
}

/// # Errors
/// The errors of [`list_from_c`], or `Invalid` if the length is negative.
///
/// # Safety
/// `first` is valid for reading `n` elements while the result is used, or null.
unsafe fn sge_list(
    first: *const ibv_sge,
    n: c_int,
) -> Result<impl ExactSizeIterator<Item = ibv_sge> + Clone> {
    let n = usize::try_from(n)
        .map_err(|_| Error::Invalid("num_sge is negative; pass the number of entries in the list"))?;
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    unsafe { list_from_c(first, n) }
}

pub(crate) fn sge_from_c(sge: ibv_sge) -> Sge {
    Sge { addr: sge.addr, len: sge.length, key: Key(sge.lkey) }
}

/// The length of inline data, in bytes, above which the data is refused before it is copied. The
/// device's own limit is lower.
const MAX_INLINE_BYTES: usize = 1 << 12;

/// Returns a copy of the buffers of a list. An element of the list is the address and the length of
/// a buffer, in bytes.
///
/// # Errors
/// `Limit` if the buffers together are longer than [`MAX_INLINE_BYTES`].
///
/// # Safety
/// The buffers are valid for reading.
pub(crate) unsafe fn inline(list: impl Iterator<Item = (*const u8, usize)> + Clone) -> Result<Data> {
    let total = list.clone().fold(0, |sum: usize, (_, len)| sum.saturating_add(len));
    if total > MAX_INLINE_BYTES {
        let (requested, limit) = (total as u64, MAX_INLINE_BYTES as u64);
        return Err(Error::Limit { attribute: "inline bytes", requested, limit });
    }
    let mut bytes = InlineData::with_capacity(total);
    for (addr, len) in list.filter(|(_, len)| *len > 0) {
        // SAFETY: the caller upholds the same requirement (`# Safety` above).
        bytes.extend_from_slice(unsafe { slice::from_raw_parts(addr, len) });
    }
    Ok(Data::Inline(bytes))
}

/// `IBV_SEND_INLINE` has no counterpart in the result, because [`Data::Inline`] expresses it.
///
/// # Errors
/// `Unsupported` for a flag that the device does not know.
pub(crate) fn send_flags(flags: u32) -> Result<SendFlags> {
    const FLAGS: [(u32, SendFlags); 3] = [
        (IBV_SEND_FENCE, SendFlags::FENCE),
        (IBV_SEND_SIGNALED, SendFlags::SIGNALED),
        (IBV_SEND_SOLICITED, SendFlags::SOLICITED),
    ];
    let known = FLAGS.iter().fold(IBV_SEND_INLINE, |all, (bit, _)| all | bit);
    if flags & !known != 0 {
        return Err(Error::Unsupported("IBV_SEND_IP_CSUM, or an unknown send flag; leave it out"));
    }
    Ok(FLAGS.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, flag)| *flag).collect())
}

/// # Errors
/// `Unsupported` for an opcode or a flag that the device does not have, `Invalid` for a missing
/// object or a malformed list, or `Limit` for a list or inline data that is too long.
///
/// # Safety
/// The members that the opcode and the queue pair's type select are set, and their pointers are
/// valid or null. The scatter/gather list has `num_sge` entries, and for inline data the entries'
/// memory is valid for reading.
unsafe fn send_request(wr: &ibv_send_wr, qp_type: QpType) -> Result<SendWr> {
    let flags = send_flags(wr.send_flags)?;
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    let op = unsafe { operation(wr, qp_type)? };
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    let sges = unsafe { sge_list(wr.sg_list, wr.num_sge)? };
    let data = if wr.send_flags & IBV_SEND_INLINE != 0 && sges.len() > 0 {
        let buffer = |sge: ibv_sge| (ptr::with_exposed_provenance(sge.addr as usize), sge.length as usize);
        // SAFETY: the caller upholds the same requirement (`# Safety` above).
        unsafe { inline(sges.map(buffer))? }
    } else {
        Data::Sges(sges.map(sge_from_c).collect())
    };
    // UD has no other operation. A request for another operation sets a different member of the
    // union.
    let ud = if qp_type == QpType::Ud && matches!(op, SendOp::Send | SendOp::SendWithImm(_)) {
        // SAFETY: for type UD, the caller guarantees that `wr.ud` is set, and that its address
        // handle is valid or null.
        Some(unsafe { ud_destination(wr.wr.ud.ah, wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey)? })
    } else {
        None
    };
    let remote_srq = if qp_type == QpType::XrcSend {
        // SAFETY: for this type, the caller guarantees that `qp_type.xrc` is set.
        Srqn::new(unsafe { wr.qp_type.xrc }.remote_srqn)
    } else {
        Srqn::default()
    };
    let mut request = SendWr { wr_id: wr.wr_id, op, data, flags, ud, remote_srq };
    limit_to_one_word(&mut request);
    Ok(request)
}

/// Shortens the local memory of an atomic to the 8 bytes that the NIC writes. Programs may pass
/// more, as on soft-RoCE.
pub(crate) fn limit_to_one_word(wr: &mut SendWr) {
    if wr.op.is_atomic()
        && let Data::Sges(list) = &mut wr.data
    {
        let mut rest = 8;
        for sge in list.iter_mut() {
            sge.len = sge.len.min(rest);
            rest -= sge.len;
        }
        list.retain(|sge| sge.len > 0);
    }
}

/// # Errors
/// `Invalid` if `ah` is null.
///
/// # Safety
/// `ah` is an address handle or null.
pub(crate) unsafe fn ud_destination(ah: *mut ibv_ah, qpn: u32, qkey: u32) -> Result<UdDestination> {
    if ah.is_null() {
        return Err(Error::Invalid("a datagram needs an address handle; set wr.ud.ah"));
    }
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    Ok(UdDestination { ah: unsafe { Ah::find(ah)? }.id, qpn: Qpn::new(qpn), qkey })
}

/// # Errors
/// `Unsupported` for an opcode that the device does not know, or the errors of [`bind_operation`].
///
/// # Safety
/// The requirements of [`send_request`].
unsafe fn operation(wr: &ibv_send_wr, qp_type: QpType) -> Result<SendOp> {
    // SAFETY: only the members that the opcode selects are read. The caller guarantees that these
    // are set, and that the window and the region of a bind are objects or null.
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
            IBV_WR_BIND_MW => bind_operation(wr.bind_mw.mw, wr.bind_mw.rkey, &wr.bind_mw.bind_info, qp_type)?,
            _ => {
                return Err(Error::Unsupported(
                    "this send opcode; use SEND, WRITE, READ, an atomic, or an operation on a window",
                ));
            }
        })
    }
}

/// # Errors
/// `Invalid` if the window is null, or the region is null and the length is not 0. `Unsupported`
/// for an access flag that the device does not know. Otherwise the errors of [`AbiObject::find`]
/// and [`Device::prepare_bind`](crate::rails::device::Device::prepare_bind).
///
/// # Safety
/// The window and the region are objects of the program, or null.
pub(crate) unsafe fn bind_operation(
    mw: *mut ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
    qp_type: QpType,
) -> Result<SendOp> {
    if info.mr.is_null() && info.length > 0 {
        return Err(Error::Invalid(
            "the bind of a window to memory needs a region; set bind_info.mr, or bind 0 bytes",
        ));
    }
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    let (window, region) =
        unsafe { (Mw::find(mw)?, if info.mr.is_null() { None } else { Some(Mr::find(info.mr)?) }) };
    let access = mr::access(info.mw_access_flags & !IBV_ACCESS_ZERO_BASED)?;
    window.rails.device.prepare_bind(qp_type, if region.is_some() { access } else { Access::empty() })?;
    // A NIC ignores the region in a bind of 0 bytes.
    let mr = region.map_or(MrId(0), |region| lock(&region.registration).id);
    Ok(SendOp::BindWindow(WindowBind {
        mw: window.window.id,
        rkey: Key(rkey),
        mr,
        addr: info.addr,
        len: info.length,
        access,
        zero_based: info.mw_access_flags & IBV_ACCESS_ZERO_BASED != 0,
    }))
}
