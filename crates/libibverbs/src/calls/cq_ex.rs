//! Completion queues that programs read field by field (`ibv_start_poll(3)`).

use std::ffi::{c_int, c_uint};

use mitra_verbs::{Result, Wc};

use super::abi_object::AbiObject;
use super::cq::{self, Cq};
use super::pd::{Pd, PdMember};
use crate::common::errno::{pointer, refuse, status};
use crate::common::lock::lock;
use mitra_verbs_abi::*;

/// The number of completions that one poll takes from the NIC. With a greater number, completions
/// could remain in the batch when the program stops polling. A request for an event ignores
/// completions in the batch, so the program could wait for an event that never comes.
const BATCH: usize = 1;

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: rule *structures* (module `calls`): the pointer is valid.
    let attr = unsafe { &*attr };
    // SAFETY: rules *objects* and *structures* (module `calls`).
    pointer("ibv_create_cq_ex", unsafe { create(context, attr) })
}

/// # Safety
/// The rules of [`super`] for `ibv_create_cq_ex`.
unsafe fn create(context: *mut ibv_context, attr: &ibv_cq_init_attr_ex) -> Result<*mut ibv_cq_ex> {
    use mitra_verbs::Error::{Invalid, Unsupported};
    if attr.wc_flags & !u64::from(IBV_WC_STANDARD_FLAGS) != 0 {
        return Err(Unsupported(
            "time stamps, VLANs, flow tags or matched tags in completions; request IBV_WC_STANDARD_FLAGS only",
        ));
    }
    let known = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    let flags = if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { attr.flags } else { 0 };
    if attr.comp_mask & !known != 0 || flags & !IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0 {
        return Err(Unsupported(
            "completion queues that ignore overruns, or an unknown attribute of one; leave both out",
        ));
    }
    let parent = if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD == 0 {
        None
    } else {
        // SAFETY: `IBV_CQ_INIT_ATTR_MASK_PD` is set, so by rule *objects* (module `calls`) the
        // field is a parent domain or null.
        let parent = unsafe { Pd::find(attr.parent_domain)? };
        if parent.parent_of.is_none() {
            return Err(Invalid(
                "the parent_domain of a completion queue must be a parent domain; create one with ibv_alloc_parent_domain",
            ));
        }
        Some(PdMember::clone(&parent.member))
    };
    let is_shared = flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED == 0;
    // SAFETY: the caller upholds the same requirement (`# Safety` above).
    let cq = unsafe { cq::create(context, attr, parent, is_shared)? };
    // SAFETY: the queue was created in this function, so no other thread accesses its structure.
    let header = unsafe { &mut *cq };
    header.start_poll = Some(start_poll);
    header.next_poll = Some(next_poll);
    header.end_poll = Some(end_poll);
    header.read_opcode = Some(read_opcode);
    header.read_vendor_err = Some(read_vendor_err);
    header.read_byte_len = Some(read_byte_len);
    header.read_imm_data = Some(read_imm_data);
    header.read_qp_num = Some(read_qp_num);
    header.read_src_qp = Some(read_src_qp);
    header.read_wc_flags = Some(read_wc_flags);
    header.read_slid = Some(read_slid);
    header.read_sl = Some(read_sl);
    header.read_dlid_path_bits = Some(read_dlid_path_bits);
    Ok(cq)
}

/// Advances to the next completion, for the verb `call`. Returns 0 if there is one, `ENOENT` if
/// there is none, or another `errno` value after an error.
///
/// # Safety
/// `cq` is a completion queue of the program that is not destroyed during the call. No other thread
/// polls the queue or reads its fields: this thread holds the lock of the poller, or the queue was
/// created with `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`.
unsafe fn advance(call: &str, cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: rule *objects* (module `calls`): `cq` is not destroyed during the call.
    let filled = unsafe { Cq::find(cq.cast()) }.and_then(|object| {
        let mut polled = lock(&object.polled);
        let any = object.refill(&mut polled, BATCH)?;
        Ok((any, polled))
    });
    match filled {
        Ok((true, mut polled)) => {
            let wc = polled.batch[polled.next];
            polled.next += 1;
            // SAFETY: the caller upholds the same requirement (`# Safety` above).
            unsafe {
                (*cq).wr_id = wc.wr_id;
                (*cq).status = cq::status_code(wc.status);
            }
            0
        }
        Ok((false, _)) => libc::ENOENT,
        Err(error) => status(call, Err(error)),
    }
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: rule *structures* (module `calls`): the pointer is valid.
    if unsafe { (*attr).comp_mask } != 0 {
        return refuse("ibv_start_poll", libc::EINVAL, "ibv_poll_cq_attr has no options; set comp_mask to 0");
    }
    // SAFETY: rule *objects* (module `calls`): `cq` is not destroyed during the call.
    let poller = match unsafe { Cq::find(cq.cast()) } {
        Ok(object) => &object.poller,
        Err(error) => return status("ibv_start_poll", Err(error)),
    };
    poller.lock();
    // SAFETY: rules *objects* and *structures* (module `calls`). This thread holds the lock of the
    // poller.
    let found = unsafe { advance("ibv_start_poll", cq) };
    if found != 0 {
        poller.unlock(); // `ibv_end_poll` is not called
    }
    found
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: rules *objects* and *structures* (module `calls`).
    unsafe { advance("ibv_next_poll", cq) }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: rule *objects* (module `calls`): `cq` is not destroyed during the call.
    if let Ok(object) = unsafe { Cq::find(cq.cast()) } {
        object.poller.unlock();
    }
}

/// Returns the completion that the last poll advanced to.
///
/// # Safety
/// The requirements of [`advance`].
unsafe fn current(cq: *mut ibv_cq_ex) -> Option<Wc> {
    // SAFETY: rule *objects* (module `calls`): `cq` is not destroyed during the call.
    let polled = lock(&unsafe { Cq::find(cq.cast()) }.ok()?.polled);
    polled.next.checked_sub(1).and_then(|at| polled.batch.get(at).copied())
}

macro_rules! readers {
    ($($name:ident -> $type:ty: $read:expr;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: between two polls, only the thread that polls reads fields
            // (`ibv_start_poll(3)`).
            unsafe { current(cq) }.map($read).unwrap_or_default()
        }
    )*};
}

readers! {
    read_opcode -> ibv_wc_opcode: |wc| cq::opcode(wc.opcode);
    read_vendor_err -> u32: |wc| wc.vendor_err;
    read_byte_len -> u32: |wc| wc.byte_len;
    read_imm_data -> u32: |wc| cq::imm_or_key(&wc);
    read_qp_num -> u32: |wc| wc.qpn.value();
    read_src_qp -> u32: |wc| wc.src_qp.value();
    read_wc_flags -> c_uint: |wc| cq::flags(&wc);
}

unsafe extern "C" fn read_sl(cq: *mut ibv_cq_ex) -> u8 {
    // SAFETY: between two polls, only the thread that polls reads fields (`ibv_start_poll(3)`).
    unsafe {
        let datagram = current(cq).is_some_and(|wc| cq::is_datagram(&wc));
        if datagram { Cq::borrow_raw(cq.cast()).datagram_sl } else { 0 }
    }
}

/// Returns 0, because RoCE has no LIDs.
unsafe extern "C" fn read_slid(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

/// Returns 0, because RoCE has no LIDs and therefore no path bits of a LID.
unsafe extern "C" fn read_dlid_path_bits(_cq: *mut ibv_cq_ex) -> u8 {
    0
}
