//! Events: `rdma_get_cm_event` takes an event from a channel, and applies its effects to the
//! identifier and the queue pair.

use std::ffi::{CStr, c_char, c_int};
use std::ops::ControlFlow;
use std::sync::Arc;

use nix::errno::Errno;

use super::{queue_pair, with_manager};
use crate::common::cancellation;
use crate::common::event_queue::{take_or_sleep, wait_for_event};
use crate::common::unacknowledged_events::UnacknowledgedEvents;
use crate::rdmacm::acknowledgement::{acknowledge, acknowledge_held_event};
use crate::rdmacm::caller_ptr::CallerPtr;
use crate::rdmacm::cm_event::{CmEvent, CmEventQueue, IdHandle};
use crate::rdmacm::id_memory::{RequestParams, allocate_request_id};
use crate::rdmacm::identifier::{Identifier, ServiceRequest};
use crate::rdmacm::manager::Manager;
use crate::rdmacm::manager_state::DeliveredEvent;
use crate::rdmacm::membership::MULTICAST_QPN;
use crate::rdmacm::protocol::connection::{Connection, ConnectionEvent};
use crate::rdmacm::protocol::message::*;
use crate::rdmacm::qp_attributes::path_to;
use mitra_verbs_abi::*;

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    with_manager("rdma_get_cm_event", |manager| {
        if event.is_null() {
            return Err(Errno::EINVAL);
        }
        let next = next_event(manager, CallerPtr(channel))?;
        // SAFETY: `rdma_get_cm_event` requires a valid pointer for the event.
        unsafe { *event = next };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    with_manager("rdma_ack_cm_event", |manager| acknowledge(manager, event))
}

/// If the identifier is synchronous, acknowledges the event in `id.event`, and stores the next
/// event there: the result of the operation that the caller has started.
///
/// # Errors
/// `EINVAL` if `id` is not a live identifier, `ECONNREFUSED` if the peer rejected the connection,
/// the event's status for any other failure, or the errors of [`next_event`].
///
/// # Safety
/// `id` points to the `rdma_cm_id` of a live identifier, and no other thread accesses its `event`
/// or acknowledges that event.
pub unsafe fn wait_if_synchronous(manager: &Manager, id: *mut rdma_cm_id) -> Result<(), Errno> {
    let find = |(_, identifier): (_, &mut Identifier)| (identifier.is_synchronous, identifier.channel);
    let (true, channel) = manager.lock().find(id).map(find)? else { return Ok(()) };
    // SAFETY: by the contract, `id` is writable. The new event lives until a later call for this
    // identifier acknowledges the event, because no other thread does.
    unsafe {
        acknowledge_held_event(manager, id);
        (*id).event = next_event(manager, channel)?;
        let event = *(*id).event;
        match (event.event, event.status) {
            (_, 0) => Ok(()),
            (RDMA_CM_EVENT_REJECTED, _) => Err(Errno::ECONNREFUSED),
            (_, status) => Err(Errno::from_raw(status.abs())),
        }
    }
}

/// Takes the next event from a channel's queue, and applies its effects. With an empty queue, the
/// call waits if the channel's descriptor is blocking.
///
/// # Errors
/// `EINVAL` for an unknown channel, `EAGAIN` if the descriptor is non-blocking and the queue is
/// empty, `EINTR` if a signal ended the wait.
pub fn next_event(
    manager: &Manager,
    channel: CallerPtr<rdma_event_channel>,
) -> Result<*mut rdma_cm_event, Errno> {
    let number = manager.lock().channels.get(&channel).map(|channel| channel.number);
    loop {
        wait(manager, channel, number)?;
        let mut state = manager.lock();
        let Some((owner, event)) = state.events_of(channel, number).and_then(CmEventQueue::pop) else {
            continue;
        };
        let Ok(identifier) = state.get(owner) else { continue };
        let Some(memory) = identifier.memory else { continue };
        let unacknowledged = identifier.unacknowledged.clone();
        // Until the event is acknowledged, `destroy` waits and the memory stays allocated.
        unacknowledged.add_one();
        drop(state);
        match EventBuilder::from_cm_event(manager, owner, memory, event) {
            Ok(builder) => return Ok(builder.deliver(manager, unacknowledged)),
            // The event is obsolete.
            Err(_) => unacknowledged.acknowledge(1),
        }
    }
}

/// Waits until the channel with this number has an event. Another thread may take the event before
/// the caller. A cancellation point.
///
/// # Errors
/// `EINVAL`, `EAGAIN` and `EINTR` as for [`next_event`].
fn wait(manager: &Manager, channel: CallerPtr<rdma_event_channel>, number: Option<u64>) -> Result<(), Errno> {
    wait_for_event(|| {
        let state = manager.lock();
        match state.events_of(channel, number) {
            // If another thread destroys the channel, the futex is freed. This thread then keeps
            // sleeping or looks for the channel again.
            Some(events) => take_or_sleep(events, || Ok((!events.is_empty()).then_some(()))),
            None if number.is_some() || state.destroyed_channels.contains(&channel) => {
                Ok(ControlFlow::Continue(cancellation::NEVER_WOKEN))
            }
            None => Err(Errno::EINVAL),
        }
    })
}

struct EventBuilder {
    event: rdma_cm_event,
    /// The event will point to this data.
    private_data: Vec<u8>,
}

impl EventBuilder {
    /// Applies the effects of `event` and creates an `rdma_cm_event`. The caller ensures that the
    /// identifier with this `memory` is not destroyed.
    ///
    /// # Errors
    /// An error for an obsolete event, for example after the program left the multicast group.
    fn from_cm_event(
        manager: &Manager,
        handle: IdHandle,
        memory: CallerPtr<rdma_cm_id>,
        event: CmEvent,
    ) -> Result<Self, Errno> {
        let new = |kind, status| Self::new(memory.0, kind, status);
        let failed = |kind, errno: Errno| new(kind, -(errno as i32));
        // The program may have posted work requests, even if the queue pair was never connected.
        // SAFETY: `next_event` keeps the identifier from being destroyed.
        let flush = || unsafe { queue_pair::flush(memory.0) };
        Ok(match event {
            CmEvent::Plain(kind) => new(kind, 0),
            CmEvent::Failed(kind, errno) => failed(kind, errno),
            CmEvent::Requested { child } => {
                let (request, params) = allocate_request_id(manager, child).inspect_err(|_| {
                    let mut state = manager.lock();
                    state.close(child);
                    state.remove(child);
                })?;
                let mut event = Self::new(request, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
                event.event.listen_id = memory.0;
                match params {
                    RequestParams::Connection(params) => {
                        event.with_connection_params(params, REQ_PRIVATE_DATA_LEN)
                    }
                    RequestParams::Service(ServiceRequest { gid, private_data }) => {
                        event.with_private_data(private_data, SIDR_REQ_PRIVATE_DATA_LEN).with_peer(gid, 0, 0)
                    }
                }
            }
            CmEvent::Connection(event) => match event {
                ConnectionEvent::Replied(reply) => {
                    let (kind, status) = apply_reply(manager, handle, memory.0, &reply);
                    new(kind, status).with_connection_params(reply, REP_PRIVATE_DATA_LEN)
                }
                ConnectionEvent::Established => new(RDMA_CM_EVENT_ESTABLISHED, 0),
                ConnectionEvent::Rejected(Rejection { reason, private_data, .. }) => {
                    flush();
                    let event = new(RDMA_CM_EVENT_REJECTED, reason.into());
                    event.with_private_data(private_data, REJ_PRIVATE_DATA_LEN)
                }
                ConnectionEvent::Unreachable(errno) => {
                    flush();
                    failed(RDMA_CM_EVENT_UNREACHABLE, errno)
                }
                ConnectionEvent::Disconnected => new(RDMA_CM_EVENT_DISCONNECTED, 0),
                ConnectionEvent::TimeWaitExit => new(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0),
            },
            CmEvent::ServiceReplied(SidrReply { status, qpn, qkey, private_data, .. }, gid) => {
                let is_valid = status == sidr_status::VALID;
                let kind = if is_valid { RDMA_CM_EVENT_ESTABLISHED } else { RDMA_CM_EVENT_UNREACHABLE };
                let event =
                    new(kind, status.into()).with_private_data(private_data, SIDR_REP_PRIVATE_DATA_LEN);
                if is_valid { event.with_peer(gid, qpn, qkey) } else { event }
            }
            CmEvent::Joined(number) => {
                let membership = manager.lock().get(handle)?.membership(number).ok_or(Errno::EINVAL)?;
                // As with librdmacm, the queue pair is attached when the program reads the event.
                // SAFETY: `next_event` keeps the identifier from being destroyed. The queue pair is
                // null or live, because `rdma_destroy_qp` sets the field to null.
                let event = match unsafe { membership.attach(memory.0) } {
                    Ok(()) => new(RDMA_CM_EVENT_MULTICAST_JOIN, 0),
                    Err(errno) => failed(RDMA_CM_EVENT_MULTICAST_ERROR, errno),
                };
                // SAFETY: every field of the union `ibv_gid` has sixteen bytes, for which all
                // values are valid.
                let gid = unsafe { membership.gid().raw };
                let mut event = event.with_peer(gid, MULTICAST_QPN, RDMA_UDP_QKEY);
                event.event.param.ud.private_data = membership.context.0;
                event
            }
        })
    }

    fn new(id: *mut rdma_cm_id, event: rdma_cm_event_type, status: c_int) -> Self {
        // SAFETY: `rdma_cm_event` consists of integers and pointers, for which zeros are valid.
        let zeroed: rdma_cm_event = unsafe { std::mem::zeroed() };
        Self { event: rdma_cm_event { id, event, status, ..zeroed }, private_data: Vec::new() }
    }

    /// Adds private data, padded with zeros to the message's limit as in the kernel's connection
    /// manager.
    fn with_private_data(mut self, private_data: Vec<u8>, limit: usize) -> Self {
        self.private_data = private_data;
        self.private_data.resize(limit, 0);
        // `ud` begins with the same fields as `conn`.
        self.event.param.conn.private_data = self.private_data.as_ptr().cast();
        self.event.param.conn.private_data_len = limit as u8;
        self
    }

    /// Adds the address of a datagram queue pair.
    fn with_peer(mut self, gid: [u8; 16], qpn: u32, qkey: u32) -> Self {
        let param = &mut self.event.param;
        param.ud.ah_attr = path_to(gid, 0);
        (param.ud.qp_num, param.ud.qkey) = (qpn, qkey);
        self
    }

    fn with_connection_params(self, params: ConnectionParams, limit: usize) -> Self {
        let mut event = self.with_private_data(params.private_data, limit);
        // SAFETY: `with_private_data` has set `conn`, and its other fields are zeros.
        let conn = unsafe { &mut event.event.param.conn };
        // One side's initiator depth is the other side's responder resources
        // (`man rdma_get_cm_event`).
        conn.responder_resources = params.initiator_depth;
        conn.initiator_depth = params.responder_resources;
        conn.flow_control = params.flags.flow_control.into();
        conn.retry_count = params.retry_count;
        conn.rnr_retry_count = params.rnr_retry_count;
        conn.srq = params.flags.srq.into();
        conn.qp_num = params.qpn;
        event
    }

    /// Allocates the event for the program and enters the event in `delivered`.
    fn deliver(self, manager: &Manager, unacknowledged: Arc<UnacknowledgedEvents>) -> *mut rdma_cm_event {
        let event = Box::into_raw(Box::new(self.event));
        // The event points to the vector's heap buffer, which stays in place when the vector is
        // moved.
        let delivered = DeliveredEvent { unacknowledged, _private_data: self.private_data };
        manager.lock().delivered.insert(CallerPtr(event), delivered);
        event
    }
}

/// Connects the identifier's queue pair and establishes the connection. If the identifier has no
/// queue pair, the program does both. Returns the event type and the status.
fn apply_reply(
    manager: &Manager,
    handle: IdHandle,
    memory: *mut rdma_cm_id,
    reply: &ConnectionParams,
) -> (rdma_cm_event_type, c_int) {
    let apply = || -> Result<rdma_cm_event_type, Errno> {
        manager.lock().get(handle)?.params.apply_reply(reply);
        // SAFETY: `next_event` keeps the identifier from being destroyed. The path record is null
        // or memory of `set_path`, and the queue pair is null or live.
        unsafe {
            (*memory).route.addr.addr.ibaddr.dgid.raw = reply.gid;
            if let Some(path) = (*memory).route.path_rec.as_mut() {
                path.dgid.raw = reply.gid;
            }
            if (*memory).qp.is_null() {
                return Ok(RDMA_CM_EVENT_CONNECT_RESPONSE);
            }
            queue_pair::connect(manager, handle, memory)?;
        }
        manager.lock().update_connection(handle, Connection::establish)?;
        Ok(RDMA_CM_EVENT_ESTABLISHED)
    };
    match apply() {
        Ok(kind) => (kind, 0),
        Err(errno) => {
            // SAFETY: `next_event` keeps the identifier from being destroyed.
            unsafe { queue_pair::flush(memory) };
            manager.lock().close(handle);
            (RDMA_CM_EVENT_CONNECT_ERROR, -(errno as i32))
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char {
    const NAMES: [&CStr; 16] = [
        c"RDMA_CM_EVENT_ADDR_RESOLVED",
        c"RDMA_CM_EVENT_ADDR_ERROR",
        c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c"RDMA_CM_EVENT_ROUTE_ERROR",
        c"RDMA_CM_EVENT_CONNECT_REQUEST",
        c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        c"RDMA_CM_EVENT_CONNECT_ERROR",
        c"RDMA_CM_EVENT_UNREACHABLE",
        c"RDMA_CM_EVENT_REJECTED",
        c"RDMA_CM_EVENT_ESTABLISHED",
        c"RDMA_CM_EVENT_DISCONNECTED",
        c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c"RDMA_CM_EVENT_MULTICAST_JOIN",
        c"RDMA_CM_EVENT_MULTICAST_ERROR",
        c"RDMA_CM_EVENT_ADDR_CHANGE",
        c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
    ];
    NAMES.get(event as usize).unwrap_or(&c"UNKNOWN EVENT").as_ptr()
}
