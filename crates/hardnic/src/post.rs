//! Posts of requests.

use std::ffi::{c_int, c_uint};
use std::sync::PoisonError;

use mitra_verbs::{
    Data, DeviceAttr, Error, PostError, QpAttr, QpState, QpType, RecvWr, Result, SendFlags, SendOp, SendWr,
    check_recv_state, check_send, check_send_state,
};
use mitra_verbs_abi::*;
use nix::errno::Errno;
use smallvec::SmallVec;

use crate::address_handle::AddressHandle;
use crate::hard_nic::Objects;
use crate::objects::{Region, Srq, Window};
use crate::qp::Qp;
use crate::qp_attributes::access_to;
use crate::table::Slots;
use crate::work_ids::WorkId;
use std::sync::Arc;

/// The number of requests that are passed to the device in one call.
const BATCH: usize = 16;

/// The tables that sends refer to, locked as long as the sends are being posted.
struct Referred<'a> {
    ahs: Option<std::sync::RwLockReadGuard<'a, Slots<Arc<AddressHandle>>>>,
    mws: Option<std::sync::RwLockReadGuard<'a, Slots<Arc<Window>>>>,
    mrs: Option<std::sync::RwLockReadGuard<'a, Slots<Arc<Region>>>>,
}

impl<'a> Referred<'a> {
    fn lock(objects: &'a Objects, wrs: &[SendWr]) -> Referred<'a> {
        let binds = wrs.iter().any(|wr| matches!(wr.op, SendOp::BindWindow(_)));
        Referred {
            ahs: wrs.iter().any(|wr| wr.ud.is_some()).then(|| objects.ahs.read()),
            mws: binds.then(|| objects.mws.read()),
            mrs: binds.then(|| objects.mrs.read()),
        }
    }
}

/// Posts sends in order. If `all` is set, none is posted unless all can be.
pub(crate) fn post_sends(
    objects: &Objects,
    device: &DeviceAttr,
    qp: &Qp,
    wrs: &[SendWr],
    all: bool,
) -> Result<(), PostError> {
    let refuse = |index| move |error| PostError { index, error };
    check_send_state(qp.qpn, qp.state()).map_err(refuse(0))?;
    let referred = Referred::lock(objects, wrs);
    let mut posting = qp.sends.lock();
    let muted = if qp.init.qp_type == QpType::Ud { qp.pd.context.link.sent_qkey() } else { None };
    let free = posting.free() as usize;
    let depth = qp.sends.depth;
    let full = || Error::QueueFull { queue: "send queue", qpn: qp.qpn, depth };
    let check = |wr: &SendWr| check_send(&qp.init, &device.limits, &device.capabilities, wr);
    if all {
        for (index, wr) in wrs.iter().enumerate() {
            check(wr)
                .and_then(|()| if index < free { Ok(()) } else { Err(full()) })
                .map_err(refuse(index))?;
        }
    }
    let mut posted = 0;
    while posted < wrs.len() {
        let batch = &wrs[posted..wrs.len().min(posted + BATCH)];
        let mut sges: SmallVec<[ibv_sge; 2 * BATCH]> = SmallVec::new();
        let mut sends: SmallVec<[ibv_send_wr; BATCH]> = SmallVec::new();
        let (mut refusal, mut bound) = (None, None);
        for (n, wr) in batch.iter().enumerate() {
            let send = check(wr)
                .and_then(|()| if posted + n < free { Ok(()) } else { Err(full()) })
                .and_then(|()| send_to(wr, &referred, objects, &mut sges, muted));
            match send {
                Ok(send) => {
                    sends.push(ibv_send_wr { wr_id: posting.id(n, wr.wr_id), ..send });
                    if matches!(wr.op, SendOp::BindWindow(_)) {
                        bound = Some(send.bind_mw);
                        break;
                    }
                }
                Err(error) => {
                    refusal = Some(PostError { index: posted + n, error });
                    break;
                }
            }
        }
        link(&mut sends, &mut sges);
        if !sends.is_empty() {
            let first = sends.as_mut_ptr();
            let mut bad = std::ptr::null_mut();
            // SAFETY: the queue pair exists. The list and its entries live until the call returns;
            // inline data and the objects that the requests refer to do, too.
            let result = unsafe {
                match (*(*qp.raw).context).ops.post_send {
                    Some(post) => post(qp.raw, first, &raw mut bad),
                    None => Errno::EOPNOTSUPP as c_int,
                }
            };
            let taken = if result == 0 { sends.len() } else { index_of(first, bad, sends.len()) };
            posting.advance(taken);
            if result != 0 {
                let index = posted + taken;
                let errno = qp.pd.context.lib.errno_of(result);
                if all && index > 0 {
                    // Some of the list was posted, and none of it may take effect twice.
                    let _ = qp.modify(&QpAttr::to(QpState::Err), || Err(Error::DeviceFatal));
                }
                let error = match errno {
                    Errno::ENOMEM => full(),
                    Errno::EINVAL => Error::Invalid("the NIC refused the request (EINVAL)"),
                    errno => qp.pd.context.error("posting a send", errno),
                };
                return Err(PostError { index, error });
            }
        }
        if let Some(bind) = bound {
            // The driver reads the window's key of before from the window, so the next bind needs
            // this one's there. A bind therefore ends a list.
            // SAFETY: the window exists as long as the table is locked.
            unsafe { (*bind.mw).rkey = bind.rkey };
        }
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        posted += sends.len();
    }
    Ok(())
}

/// Returns how many requests precede `bad` in a list of `len` requests that begins at `first`.
fn index_of<T>(first: *const T, bad: *const T, len: usize) -> usize {
    let index = bad.addr().wrapping_sub(first.addr()) / size_of::<T>();
    if index < len { index } else { 0 }
}

/// Links the requests to a list, and sets their scatter/gather lists, whose place is now final.
fn link(sends: &mut [ibv_send_wr], sges: &mut [ibv_sge]) {
    let mut sge = sges.as_mut_ptr();
    let base = sends.as_mut_ptr();
    for n in 0..sends.len() {
        let last = n + 1 == sends.len();
        let send = &mut sends[n];
        send.sg_list = sge;
        sge = sge.wrapping_add(send.num_sge as usize);
        send.next = if last { std::ptr::null_mut() } else { base.wrapping_add(n + 1) };
    }
}

/// Translates a send. A datagram has the Q_Key `muted`, if there is one.
fn send_to(
    wr: &SendWr,
    referred: &Referred<'_>,
    objects: &Objects,
    sges: &mut SmallVec<[ibv_sge; 2 * BATCH]>,
    muted: Option<u32>,
) -> Result<ibv_send_wr> {
    let mut send = ibv_send_wr::zeroed();
    for (flag, bit) in [
        (SendFlags::FENCE, IBV_SEND_FENCE),
        (SendFlags::SIGNALED, IBV_SEND_SIGNALED),
        (SendFlags::SOLICITED, IBV_SEND_SOLICITED),
    ] {
        send.send_flags |= if wr.flags.contains(flag) { bit } else { 0 };
    }
    let rdma = |to: mitra_verbs::RemoteAddr| ibv_send_wr_wr {
        rdma: ibv_send_wr_rdma { remote_addr: to.addr, rkey: to.rkey.0 },
    };
    let atomic = |to: mitra_verbs::RemoteAddr, compare_add, swap| ibv_send_wr_wr {
        atomic: ibv_send_wr_atomic { remote_addr: to.addr, compare_add, swap, rkey: to.rkey.0 },
    };
    send.opcode = match wr.op {
        SendOp::Send => IBV_WR_SEND,
        SendOp::SendWithImm(imm) => {
            send.imm_data = imm.to_be();
            IBV_WR_SEND_WITH_IMM
        }
        SendOp::SendWithInvalidate(key) => {
            send.imm_data = key.0;
            IBV_WR_SEND_WITH_INV
        }
        SendOp::Write(to) => {
            send.wr = rdma(to);
            IBV_WR_RDMA_WRITE
        }
        SendOp::WriteWithImm(to, imm) => {
            send.wr = rdma(to);
            send.imm_data = imm.to_be();
            IBV_WR_RDMA_WRITE_WITH_IMM
        }
        SendOp::Read(from) => {
            send.wr = rdma(from);
            IBV_WR_RDMA_READ
        }
        SendOp::CompareSwap { remote, compare, swap } => {
            send.wr = atomic(remote, compare, swap);
            IBV_WR_ATOMIC_CMP_AND_SWP
        }
        SendOp::FetchAdd { remote, add } => {
            send.wr = atomic(remote, add, 0);
            IBV_WR_ATOMIC_FETCH_AND_ADD
        }
        SendOp::LocalInvalidate(key) => {
            send.imm_data = key.0;
            IBV_WR_LOCAL_INV
        }
        SendOp::BindWindow(bind) => {
            let window = referred.mws.as_ref().and_then(|mws| mws.get(bind.mw.0));
            let window = window.ok_or_else(|| objects.mws.no_such_object(bind.mw.0))?;
            let region = referred.mrs.as_ref().and_then(|mrs| mrs.get(bind.mr.0));
            let region = region.ok_or_else(|| objects.mrs.no_such_object(bind.mr.0))?;
            if bind.zero_based {
                return Err(Error::Unsupported("windows with zero-based addresses"));
            }
            // SAFETY: the window is in the table, so it exists.
            let rkey = mitra_verbs::Key(unsafe { (*window.raw).rkey });
            send.bind_mw = ibv_send_wr_bind_mw {
                mw: window.raw,
                rkey: rkey.with_consumer_bits(bind.rkey.0 as u8).0,
                bind_info: ibv_mw_bind_info {
                    mr: region.raw,
                    addr: bind.addr,
                    length: bind.len,
                    mw_access_flags: access_to(bind.access),
                },
            };
            IBV_WR_BIND_MW
        }
    };
    if let Some(to) = wr.ud {
        let ah = referred.ahs.as_ref().and_then(|ahs| ahs.get(to.ah.0));
        let ah = ah.ok_or_else(|| objects.ahs.no_such_object(to.ah.0))?;
        let remote_qkey = muted.unwrap_or(to.qkey);
        send.wr =
            ibv_send_wr_wr { ud: ibv_send_wr_ud { ah: ah.raw()?, remote_qpn: to.qpn.value(), remote_qkey } };
    }
    let before = sges.len();
    match &wr.data {
        Data::Sges(list) => sges.extend(list.iter().map(sge_to)),
        Data::Inline(bytes) => {
            send.send_flags |= IBV_SEND_INLINE;
            let (addr, length) = (bytes.as_ptr().addr() as u64, bytes.len() as u32);
            sges.extend((length > 0).then_some(ibv_sge { addr, length, lkey: 0 }));
        }
    }
    send.num_sge = (sges.len() - before) as c_int;
    Ok(send)
}

fn sge_to(sge: &mitra_verbs::Sge) -> ibv_sge {
    ibv_sge { addr: sge.addr, length: sge.len, lkey: sge.key.0 }
}

/// The receives of one call to the device.
struct Receives {
    sges: SmallVec<[ibv_sge; 2 * BATCH]>,
    recvs: SmallVec<[ibv_recv_wr; BATCH]>,
}

impl Receives {
    fn new(batch: &[RecvWr], mut id: impl FnMut(usize, &RecvWr) -> u64) -> Receives {
        let mut sges: SmallVec<[ibv_sge; 2 * BATCH]> = SmallVec::new();
        let mut recvs: SmallVec<[ibv_recv_wr; BATCH]> = SmallVec::new();
        for (n, wr) in batch.iter().enumerate() {
            sges.extend(wr.sges.iter().map(sge_to));
            let (next, sg_list) = (std::ptr::null_mut(), std::ptr::null_mut());
            recvs.push(ibv_recv_wr { wr_id: id(n, wr), next, sg_list, num_sge: wr.sges.len() as c_int });
        }
        Receives { sges, recvs }
    }

    /// Links the receives to a list and returns its first entry. The list is valid as long as
    /// `self` does not move.
    fn link(&mut self) -> *mut ibv_recv_wr {
        let mut sge = self.sges.as_mut_ptr();
        let base = self.recvs.as_mut_ptr();
        let len = self.recvs.len();
        for (n, recv) in self.recvs.iter_mut().enumerate() {
            recv.sg_list = sge;
            sge = sge.wrapping_add(recv.num_sge as usize);
            recv.next = if n + 1 == len { std::ptr::null_mut() } else { base.wrapping_add(n + 1) };
        }
        base
    }
}

fn check_receive(wr: &RecvWr, limit: u32) -> Result<()> {
    let requested = wr.sges.len() as u64;
    if requested > limit.into() {
        return Err(Error::Limit {
            attribute: "scatter entries of a receive",
            requested,
            limit: limit.into(),
        });
    }
    Ok(())
}

/// Posts receives in order.
pub(crate) fn post_receives(qp: &Qp, wrs: &[RecvWr]) -> Result<(), PostError> {
    let refuse = |index| move |error| PostError { index, error };
    check_recv_state(qp.qpn, qp.state()).map_err(refuse(0))?;
    if qp.srq.is_some() {
        let error = "this queue pair has no receive queue of its own; post to a shared one";
        return Err(PostError { index: 0, error: Error::Invalid(error) });
    }
    let mut posting = qp.recvs.lock();
    let depth = qp.recvs.depth;
    let full = || Error::QueueFull { queue: "receive queue", qpn: qp.qpn, depth };
    let free = posting.free() as usize;
    let limit = qp.init.cap.recv_sges;
    let refused = wrs.iter().enumerate().find_map(|(index, wr)| {
        let checked = check_receive(wr, limit).and_then(|()| if index < free { Ok(()) } else { Err(full()) });
        checked.err().map(refuse(index))
    });
    let accepted = refused.as_ref().map_or(wrs.len(), |refused| refused.index);
    let mut posted = 0;
    for batch in wrs[..accepted].chunks(BATCH) {
        let mut receives = Receives::new(batch, |n, wr| posting.id(n, wr.wr_id));
        let first = receives.link();
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair exists, and the list lives until the call returns.
        let result = unsafe {
            match (*(*qp.raw).context).ops.post_recv {
                Some(post) => post(qp.raw, first, &raw mut bad),
                None => Errno::EOPNOTSUPP as c_int,
            }
        };
        let taken = if result == 0 { batch.len() } else { index_of(first, bad, batch.len()) };
        posting.advance(taken);
        posted += taken;
        if result != 0 {
            let error = match qp.pd.context.lib.errno_of(result) {
                Errno::ENOMEM => full(),
                errno => qp.pd.context.error("posting a receive", errno),
            };
            return Err(PostError { index: posted, error });
        }
    }
    drop(posting);
    if qp.state() == QpState::Err {
        // A driver's post of a receive is a write to memory of the process. soft-RoCE flushes what
        // is posted in ERR only at the next change to it.
        let _ = qp.modify(&QpAttr::to(QpState::Err), || Err(Error::DeviceFatal));
    }
    refused.map_or(Ok(()), Err)
}

/// Posts receives to a shared receive queue, in order. `limit` is the number of scatter entries.
pub(crate) fn post_shared_receives(srq: &Srq, wrs: &[RecvWr], limit: u32) -> Result<(), PostError> {
    let mut ids = srq.posted.lock().unwrap_or_else(PoisonError::into_inner);
    let depth = ids.depth;
    let refused = wrs
        .iter()
        .enumerate()
        .find_map(|(index, wr)| check_receive(wr, limit).err().map(|error| PostError { index, error }));
    let accepted = refused.as_ref().map_or(wrs.len(), |refused| refused.index);
    let mut posted = 0;
    for batch in wrs[..accepted].chunks(BATCH) {
        let mut receives = Receives::new(batch, |_, wr| ids.add(wr.wr_id).encode());
        let first = receives.link();
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue exists, and the list lives until the call returns.
        let result = unsafe {
            match (*(*srq.raw).context).ops.post_srq_recv {
                Some(post) => post(srq.raw, first, &raw mut bad),
                None => Errno::EOPNOTSUPP as c_int,
            }
        };
        let taken = if result == 0 { batch.len() } else { index_of(first, bad, batch.len()) };
        posted += taken;
        for refused in &receives.recvs[taken..] {
            WorkId::decode(refused.wr_id).and_then(|id| ids.remove(id));
        }
        if result != 0 {
            let error = match srq.pd.context.lib.errno_of(result) {
                Errno::ENOMEM => Error::SrqFull { depth },
                errno => srq.pd.context.error("posting a receive", errno),
            };
            return Err(PostError { index: posted, error });
        }
    }
    refused.map_or(Ok(()), Err)
}

const _: () = assert!(size_of::<c_uint>() == 4, "flags have 32 bits");
