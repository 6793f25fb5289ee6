//! `ibv_create_qp_ex`, and the verbs that build work requests with one call for each request
//! (`ibv_wr_start(3)`).

use std::ffi::{c_int, c_uint, c_void};

use mitra_verbs::{Data, Error, Key, RemoteAddr, Result, SendOp, SendWr, Srqn};

use super::abi_object::AbiObject;
use super::post;
use super::qp::{self, Qp};
use super::xrc_recv_qp;
use crate::common::errno::{pointer, status};
use mitra_verbs_abi::*;

/// The operations that a program may request at creation.
const OPERATIONS: u32 = IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_SEND
    | IBV_QP_EX_WITH_SEND_WITH_IMM
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | IBV_QP_EX_WITH_LOCAL_INV
    | IBV_QP_EX_WITH_BIND_MW
    | IBV_QP_EX_WITH_SEND_WITH_INV;

pub(crate) unsafe extern "C" fn create_qp_ex(
    _context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: rule *structures* (module `calls`): the pointer is valid.
    pointer("ibv_create_qp_ex", unsafe { create_ex(&mut *init) }).cast()
}

/// # Safety
/// The rules of [`super`] for `ibv_create_qp_ex`.
unsafe fn create_ex(init: &mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp_ex> {
    let known = IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_XRCD
        | IBV_QP_INIT_ATTR_CREATE_FLAGS
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    if init.comp_mask & !known != 0 {
        return Err(Error::Unsupported("TSO, work queues or hashing; leave their bits out of comp_mask"));
    }
    if init.qp_type == IBV_QPT_XRC_RECV {
        if init.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 {
            return Err(Error::Invalid(
                "an XRC receive queue pair needs an XRC domain; set xrcd, and its bit in comp_mask",
            ));
        }
        // SAFETY: `IBV_QP_INIT_ATTR_XRCD` is set, so the caller guarantees that the domain is null
        // or an object.
        return unsafe { xrc_recv_qp::create(init) };
    }
    if init.comp_mask & IBV_QP_INIT_ATTR_PD == 0 {
        return Err(Error::Invalid(
            "a queue pair needs a protection domain; set pd, and its bit in comp_mask",
        ));
    }
    let flags = if init.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS == 0 { 0 } else { init.create_flags };
    if flags & !IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0 {
        return Err(Error::Unsupported(
            "creation flags other than IBV_QP_CREATE_BLOCK_SELF_MCAST_LB; leave them out",
        ));
    }
    let has_send_ops = init.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
    if has_send_ops && init.send_ops_flags & !u64::from(OPERATIONS) != 0 {
        return Err(Error::Unsupported("TSO or atomic writes; leave their bits out of send_ops_flags"));
    }
    let mcast_loopback = flags & IBV_QP_CREATE_BLOCK_SELF_MCAST_LB == 0;
    let prefix = std::ptr::from_mut(init).cast::<ibv_qp_init_attr>();
    // SAFETY: `ibv_qp_init_attr` is a prefix of `ibv_qp_init_attr_ex` (their layouts are asserted
    // in `abi::qp`). The caller guarantees that the objects in it are valid.
    let qp = unsafe { qp::create(init.pd, &mut *prefix, mcast_loopback)? };
    if has_send_ops {
        // SAFETY: the program does not know the new object yet, and the object table does not
        // dereference its address, so the reference is exclusive.
        fill_send_ops(unsafe { &mut *qp });
    }
    Ok(qp)
}

fn fill_send_ops(qp: &mut ibv_qp_ex) {
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    qp.wr_bind_mw = Some(wr_bind_mw);
    qp.wr_local_inv = Some(wr_local_inv);
    qp.wr_rdma_read = Some(wr_rdma_read);
    qp.wr_rdma_write = Some(wr_rdma_write);
    qp.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    qp.wr_send = Some(wr_send);
    qp.wr_send_imm = Some(wr_send_imm);
    qp.wr_send_inv = Some(wr_send_inv);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
}

/// Returns the extended structure of a queue pair that was created with
/// `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`, or null for any other queue pair.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    let extended: *mut ibv_qp_ex = qp.cast();
    // SAFETY: rule *objects* (module `calls`): `qp` is a queue pair, and every queue pair is
    // created with an `ibv_qp_ex`.
    if unsafe { (*extended).wr_start }.is_none() { std::ptr::null_mut() } else { extended }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: rule *objects* (module `calls`): `qp` is not destroyed during the call.
    if let Ok(qp) = unsafe { Qp::find(qp) } {
        qp.wr_builder.start();
    }
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: rule *objects* (module `calls`): `qp` is not destroyed during the call.
    let qp = match unsafe { Qp::find(qp) } {
        Ok(qp) => qp,
        Err(error) => return status("ibv_wr_complete", Err(error)),
    };
    let mut list = qp.wr_builder.list();
    let posted = match list.error.take() {
        Some(error) => Err(error),
        // Either all requests are posted, or none (`ibv_wr_post(3)`).
        None => {
            list.wrs.iter_mut().for_each(post::limit_to_one_word);
            qp.object.post_send_all(&list.wrs).map_err(|refused| refused.error)
        }
    };
    list.wrs.clear();
    drop(list);
    qp.wr_builder.end();
    status("ibv_wr_complete", posted)
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: rule *objects* (module `calls`): `qp` is not destroyed during the call.
    let Ok(Qp { wr_builder: builder, .. }) = (unsafe { Qp::find(qp) }) else { return };
    let mut list = builder.list();
    list.wrs.clear();
    list.error = None;
    drop(list);
    builder.end();
}

/// Appends a request without data to the list. An error is kept for `ibv_wr_complete`.
///
/// # Safety
/// `qp` is a queue pair, and the calling thread is between `ibv_wr_start` and `ibv_wr_complete`.
unsafe fn begin_request(qp: *mut ibv_qp_ex, op: impl FnOnce(&Qp) -> Result<SendOp>) {
    // SAFETY: the caller passes a queue pair. The program sets `wr_id` and `wr_flags` in the same
    // thread (`ibv_wr_start(3)`).
    let (wr_id, flags): (u64, c_uint) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    let Ok(object) = (unsafe { Qp::find(qp) }) else { return };
    let request = op(object)
        .and_then(|op| Ok(SendWr::new(wr_id, op, Data::empty()).with_flags(post::send_flags(flags)?)));
    let mut list = object.wr_builder.list();
    match request {
        Ok(wr) => list.wrs.push(wr),
        Err(error) => {
            list.error.get_or_insert(error);
        }
    }
}

/// Changes the last request of the list. An error is kept for `ibv_wr_complete`.
///
/// # Safety
/// The requirements of [`begin_request`].
unsafe fn modify_last(qp: *mut ibv_qp_ex, change: impl FnOnce(&mut SendWr) -> Result<()>) {
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    let Ok(object) = (unsafe { Qp::find(qp) }) else { return };
    let mut list = object.wr_builder.list();
    let changed = match list.wrs.last_mut() {
        Some(wr) => change(wr),
        None => Err(Error::Invalid("data without an operation; call ibv_wr_send or another operation first")),
    };
    if let Err(error) = changed {
        list.error.get_or_insert(error);
    }
}

fn remote(addr: u64, rkey: u32) -> RemoteAddr {
    RemoteAddr { addr, rkey: Key(rkey) }
}

/// Defines slots that call `$call` with the queue pair and a closure.
macro_rules! slots {
    ($call:ident; $($name:ident($($arg:ident: $type:ty),*) => |$object:pat_param| $result:expr;)*) => {$(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex, $($arg: $type),*) {
            // SAFETY: rules *objects* and *structures* (module `calls`).
            unsafe { $call(qp, |$object| Ok($result)) }
        }
    )*};
}

slots! {
    begin_request;
    wr_send() => |_| SendOp::Send;
    wr_send_imm(imm: u32) => |_| SendOp::SendWithImm(u32::from_be(imm));
    wr_send_inv(rkey: u32) => |_| SendOp::SendWithInvalidate(Key(rkey));
    wr_local_inv(rkey: u32) => |_| SendOp::LocalInvalidate(Key(rkey));
    wr_rdma_read(rkey: u32, addr: u64) => |_| SendOp::Read(remote(addr, rkey));
    wr_rdma_write(rkey: u32, addr: u64) => |_| SendOp::Write(remote(addr, rkey));
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32) =>
        |_| SendOp::WriteWithImm(remote(addr, rkey), u32::from_be(imm));
    wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) =>
        |_| SendOp::CompareSwap { remote: remote(addr, rkey), compare, swap };
    wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) =>
        |_| SendOp::FetchAdd { remote: remote(addr, rkey), add };
    wr_bind_mw(mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) =>
        |qp| post::bind_operation(mw, rkey, &*info, qp.qp_type)?;
}

slots! {
    modify_last;
    wr_set_ud_addr(ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) =>
        |wr| wr.ud = Some(post::ud_destination(ah, remote_qpn, remote_qkey)?);
    wr_set_xrc_srqn(remote_srqn: u32) => |wr| wr.remote_srq = Srqn::new(remote_srqn);
    wr_set_sge(lkey: u32, addr: u64, length: u32) =>
        |wr| wr.data = Data::sge(post::sge_from_c(ibv_sge { addr, length, lkey }));
    wr_set_sge_list(num_sge: usize, list: *const ibv_sge) =>
        |wr| wr.data = Data::Sges(post::list_from_c(list, num_sge)?.map(post::sge_from_c).collect());
    wr_set_inline_data(addr: *mut c_void, length: usize) =>
        |wr| wr.data = post::inline([(addr.cast_const().cast(), length)].into_iter())?;
    wr_set_inline_data_list(num_buf: usize, list: *const ibv_data_buf) =>
        |wr| wr.data = post::inline(
            post::list_from_c(list, num_buf)?.map(|buf| (buf.addr.cast_const().cast(), buf.length)),
        )?;
}
