//! Completion queues.

use std::ffi::{c_int, c_void};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use mitra_verbs::{Error, Gid, Result, Wc, WcOpcode, WcStatus};

use super::abi_object::{AbiHeader, AbiObject, abi_object};
use super::channel::Channel;
use super::context::{Context, destroy_with_context};
use super::pd::PdMember;
use crate::common::errno::{pointer, status};
use crate::common::lock::lock;
use crate::common::poller_lock::PollerLock;
use crate::common::refusal;
use crate::common::unacknowledged_events::UnacknowledgedEvents;
use crate::rails::device::CompletionQueue;
use mitra_verbs_abi::*;

/// A completion queue. Programs cast between `ibv_cq` and `ibv_cq_ex`, so every queue begins with
/// the larger structure.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) header: AbiHeader<ibv_cq_ex>,
    pub(crate) queue: Arc<dyn CompletionQueue>,
    /// See [`datagram_sl`].
    pub(crate) datagram_sl: u8,
    pub(crate) comp_events: UnacknowledgedEvents,
    pub(crate) async_events: UnacknowledgedEvents,
    pub(crate) polled: Mutex<Polled>,
    /// Held from `ibv_start_poll` to `ibv_end_poll`, and by `ibv_poll_cq`.
    pub(crate) poller: PollerLock,
    /// The parent domain of a queue that was created with one.
    _parent: Option<PdMember>,
}

/// Completions that were taken from the device's queue. The program may have received only a part
/// of them.
#[derive(Default)]
pub(crate) struct Polled {
    pub(crate) batch: Vec<Wc>,
    /// The index in `batch` of the first completion that the program has not received.
    pub(crate) next: usize,
}

abi_object!(Cq: ibv_cq, "completion queue", handle, context);

impl Cq {
    /// If the program has received the whole batch, replaces it by up to `max` new completions.
    /// Returns whether the batch contains a completion that the program has not received.
    ///
    /// # Errors
    /// The errors of [`CompletionQueue::poll`].
    pub(crate) fn refill(&self, polled: &mut Polled, max: usize) -> Result<bool> {
        if polled.next < polled.batch.len() {
            return Ok(true);
        }
        polled.next = 0;
        polled.batch.clear();
        self.queue.poll(max, &mut polled.batch)?;
        Ok(!polled.batch.is_empty())
    }
}

/// Creates a completion queue without the function pointers of `ibv_cq_ex`, which
/// `ibv_create_cq_ex` sets afterwards. `is_shared` says whether several threads poll the queue.
///
/// # Errors
/// `Invalid` without entries or for a completion vector other than 0, or the errors of
/// [`Device::create_cq`](crate::rails::device::Device::create_cq).
///
/// # Safety
/// `context` is an open device, and `attr.channel` is null or a channel of this device.
pub(crate) unsafe fn create(
    context: *mut ibv_context,
    attr: &ibv_cq_init_attr_ex,
    parent: Option<PdMember>,
    is_shared: bool,
) -> Result<*mut ibv_cq_ex> {
    let channel = attr.channel;
    // SAFETY: the caller passes an open device, and null or a channel of this device.
    let (ctx, channel_object) = unsafe {
        let channel = if channel.is_null() { None } else { Some(Channel::find(channel)?) };
        (Context::find_raw(context)?, channel)
    };
    if attr.cqe == 0 || attr.comp_vector != 0 {
        return Err(Error::Invalid("a completion queue needs at least one entry, and vector 0"));
    }
    let queue = ctx.rails.device.create_cq(attr.cqe, channel_object.map(|channel| &channel.events))?;
    let id = queue.id();
    let header = ibv_cq_ex {
        context,
        channel,
        cq_context: attr.cq_context,
        handle: id.0,
        cqe: c_int::try_from(attr.cqe).unwrap_or(c_int::MAX),
        ..ibv_cq_ex::zeroed()
    };
    let cq = Cq {
        header: AbiHeader::new(header),
        queue,
        datagram_sl: datagram_sl(ctx.rails.device.gid()?),
        comp_events: UnacknowledgedEvents::default(),
        async_events: UnacknowledgedEvents::default(),
        polled: Mutex::default(),
        poller: PollerLock::new(is_shared),
        _parent: parent,
    }
    .into_raw();
    let mut objects = ctx.rails.objects();
    if !channel.is_null() {
        // SAFETY: the caller passes an existing channel. This thread holds the lock of the object
        // table, under which every write of `refcnt` is made.
        unsafe { (*channel).refcnt += 1 };
    }
    objects.cqs.insert(id, ctx.object_entry(cq as usize));
    Ok(cq.cast())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let attr = ibv_cq_init_attr_ex {
        cqe: u32::try_from(cqe).unwrap_or(0),
        cq_context,
        channel,
        comp_vector: comp_vector as u32,
        ..ibv_cq_init_attr_ex::zeroed()
    };
    // SAFETY: rule *objects* (module `calls`).
    pointer("ibv_create_cq", unsafe { create(context, &attr, None, true) }).cast()
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: rule *objects* (module `calls`): no other verb uses `cq` now.
    unsafe {
        destroy_with_context::<Cq>("ibv_destroy_cq", cq, |object, context| {
            end(object, context, cq, (*cq).channel)
        })
    }
}

/// Ends the use of a queue. Afterwards no other thread finds its address.
///
/// # Safety
/// `cq` is the queue, and `channel` is its channel or null.
unsafe fn end(object: &Cq, context: &Context, cq: *mut ibv_cq, channel: *mut ibv_comp_channel) -> Result<()> {
    object.queue.destroy()?;
    context.remove_object(cq as usize, |objects| objects.cqs.remove(&object.queue.id()));
    object.async_events.wait_for_all();
    object.comp_events.wait_for_all();
    if !channel.is_null() {
        let _objects = context.rails.objects();
        // SAFETY: the channel exists, because its `refcnt` still counts this queue. This thread
        // holds the lock of the object table, under which every write of `refcnt` is made.
        unsafe { (*channel).refcnt -= 1 };
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: rule *objects* (module `calls`): `cq` is not destroyed during the call.
    let resized =
        unsafe { Cq::find(cq) }.and_then(|object| object.queue.resize(u32::try_from(cqe).unwrap_or(0)));
    if resized.is_ok() {
        // SAFETY: the queue exists, and by rule *exclusivity* (module `calls`) no other thread
        // accesses the field.
        unsafe { (*cq).cqe = cqe };
    }
    status("ibv_resize_cq", resized)
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: rule *objects* (module `calls`): `cq` is not destroyed during the call.
    status("ibv_req_notify_cq", unsafe { Cq::find(cq) }.and_then(|cq| cq.queue.arm(solicited_only != 0)))
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: rule *objects* (module `calls`): `cq` is not destroyed during the call.
    let found = unsafe { Cq::find(cq) };
    let filled = found.and_then(|cq| {
        let max = usize::try_from(num_entries)
            .map_err(|_| Error::Invalid("num_entries is negative; pass the number of entries in `wc`"))?;
        let poller = cq.poller.guard();
        let mut polled = lock(&cq.polled);
        cq.refill(&mut polled, max)?;
        Ok((cq, polled, poller, max))
    });
    let (cq, mut polled, _poller, max) = match filled {
        Ok(filled) => filled,
        Err(error) => {
            refusal::explain("ibv_poll_cq", &error);
            return -1;
        }
    };
    let from = polled.next;
    let n = max.min(polled.batch.len() - from);
    for (i, completed) in polled.batch[from..from + n].iter().enumerate() {
        // SAFETY: rule *structures* (module `calls`): `wc` has `num_entries` entries, and `i` is
        // less than `n`, which is at most `num_entries`.
        unsafe { wc.add(i).write(completion(completed, cq.datagram_sl)) };
    }
    polled.next = from + n;
    n as c_int
}

/// Returns the service level in completions of datagrams that arrive at the port with this GID.
/// RoCE has no service levels. ConnectX NICs report the kind of the IP header in this field instead
/// (mlx5 programmer's manual, CQE: 8 for UDP, plus 2 for IPv4 or 1 for IPv6). UCX up to version
/// 1.13 finds the destination address in the header by this value, and drops datagrams with another
/// destination.
fn datagram_sl(gid: Gid) -> u8 {
    8 | if IpAddr::from(gid).is_ipv4() { 2 } else { 1 }
}

fn completion(wc: &Wc, datagram_sl: u8) -> ibv_wc {
    ibv_wc {
        wr_id: wc.wr_id,
        status: status_code(wc.status),
        opcode: opcode(wc.opcode),
        vendor_err: wc.vendor_err,
        byte_len: wc.byte_len,
        imm_data: imm_or_key(wc),
        qp_num: wc.qpn.value(),
        src_qp: wc.src_qp.value(),
        wc_flags: flags(wc),
        pkey_index: 0,
        slid: 0,
        sl: if is_datagram(wc) { datagram_sl } else { 0 },
        dlid_path_bits: 0,
    }
}

/// Returns the immediate in network byte order, or the invalidated rkey in host byte order, or 0.
pub(crate) fn imm_or_key(wc: &Wc) -> u32 {
    match (wc.imm, wc.invalidated) {
        (Some(imm), _) => imm.to_be(),
        (None, Some(key)) => key.0,
        (None, None) => 0,
    }
}

pub(crate) fn flags(wc: &Wc) -> ibv_wc_flags {
    let mut flags = 0;
    if wc.imm.is_some() {
        flags |= IBV_WC_WITH_IMM;
    }
    if wc.invalidated.is_some() {
        flags |= IBV_WC_WITH_INV;
    }
    // As on soft-RoCE (drivers/infiniband/sw/rxe/rxe_resp.c, `do_complete`), a receive of a
    // connection also has the flag, although `ibv_poll_cq(3)` defines the flag for datagrams only.
    let is_receive = matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvWithImm);
    if is_receive && wc.status == WcStatus::Success {
        flags |= IBV_WC_GRH;
    }
    flags
}

/// Only the completion of a received datagram has a source queue pair.
pub(crate) fn is_datagram(wc: &Wc) -> bool {
    wc.src_qp.value() != 0
}

pub(crate) fn status_code(status: WcStatus) -> ibv_wc_status {
    match status {
        WcStatus::Success => IBV_WC_SUCCESS,
        WcStatus::LocalLength => IBV_WC_LOC_LEN_ERR,
        WcStatus::LocalQpOperation => IBV_WC_LOC_QP_OP_ERR,
        WcStatus::LocalProtection => IBV_WC_LOC_PROT_ERR,
        WcStatus::Flushed => IBV_WC_WR_FLUSH_ERR,
        WcStatus::WindowBind => IBV_WC_MW_BIND_ERR,
        WcStatus::BadResponse => IBV_WC_BAD_RESP_ERR,
        WcStatus::LocalAccess => IBV_WC_LOC_ACCESS_ERR,
        WcStatus::RemoteInvalidRequest => IBV_WC_REM_INV_REQ_ERR,
        WcStatus::RemoteAccess => IBV_WC_REM_ACCESS_ERR,
        WcStatus::RemoteOperation => IBV_WC_REM_OP_ERR,
        WcStatus::RetryExceeded => IBV_WC_RETRY_EXC_ERR,
        WcStatus::RnrRetryExceeded => IBV_WC_RNR_RETRY_EXC_ERR,
        _ => IBV_WC_GENERAL_ERR,
    }
}

pub(crate) fn opcode(opcode: WcOpcode) -> ibv_wc_opcode {
    match opcode {
        WcOpcode::Write => IBV_WC_RDMA_WRITE,
        WcOpcode::Read => IBV_WC_RDMA_READ,
        WcOpcode::CompareSwap => IBV_WC_COMP_SWAP,
        WcOpcode::FetchAdd => IBV_WC_FETCH_ADD,
        WcOpcode::BindWindow => IBV_WC_BIND_MW,
        WcOpcode::LocalInvalidate => IBV_WC_LOCAL_INV,
        WcOpcode::Recv => IBV_WC_RECV,
        WcOpcode::RecvWithImm => IBV_WC_RECV_RDMA_WITH_IMM,
        _ => IBV_WC_SEND,
    }
}
