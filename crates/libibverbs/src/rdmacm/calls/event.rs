//! Events: `rdma_get_cm_event` reads an event from a channel, applies its effects to the identifier
//! and the identifier's queue pair, and allocates an `rdma_cm_event` for it. `rdma_ack_cm_event`
//! frees the `rdma_cm_event`.

use std::ffi::{CStr, c_char, c_int};
use std::ops::ControlFlow;

use nix::errno::Errno;

use super::queue_pair;
use crate::abi::*;
use crate::common::cancellation;
use crate::common::event_queue::{take_or_sleep, wait_for_event};
use crate::rdmacm::acknowledgement::{acknowledge, acknowledge_held_event};
use crate::rdmacm::caller_ptr::CallerPtr;
use crate::rdmacm::cm_event::{CmEvent, CmEventQueue, IdHandle};
use crate::rdmacm::id_memory::{RequestParams, allocate_request_id};
use crate::rdmacm::manager::{Manager, manager};
use crate::rdmacm::manager_state::DeliveredEvent;
use crate::rdmacm::membership::MULTICAST_QPN;
use crate::rdmacm::protocol::connection::{Connection, ConnectionEvent};
use crate::rdmacm::protocol::message::*;
use crate::rdmacm::qp_attributes::path_to;
use crate::rdmacm::return_code::return_code;

/// `rdma_get_cm_event`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if event.is_null() {
        return return_code("rdma_get_cm_event", || Err(Errno::EINVAL));
    }
    return_code("rdma_get_cm_event", || {
        manager().and_then(|manager| next_event(manager, CallerPtr(channel))).map(|next| {
            // SAFETY: the pointer is not null, and `rdma_get_cm_event` requires it to be valid.
            unsafe { *event = next };
        })
    })
}

/// `rdma_ack_cm_event`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    return_code("rdma_ack_cm_event", || manager().and_then(|manager| acknowledge(manager, event)))
}

/// If the identifier is synchronous, acknowledges the event in `id.event`, waits for the next
/// event, and stores it in `id.event`. The next event is the result of the operation that the
/// caller has started. Returns at once if the identifier is not synchronous.
///
/// # Errors
/// `EINVAL` if `id` is not a live identifier, `ECONNREFUSED` if the peer rejected the connection,
/// the status of another event that reports a failure, or the errors of [`next_event`].
///
/// # Safety
/// `id` points to the `rdma_cm_id` of a live identifier, and no other thread accesses its `event`
/// or acknowledges that event.
pub unsafe fn wait_if_synchronous(manager: &Manager, id: *mut rdma_cm_id) -> Result<(), Errno> {
    let (is_synchronous, channel) = {
        let mut state = manager.lock();
        let (_, identifier) = state.find(id)?;
        (identifier.is_synchronous, identifier.channel)
    };
    if !is_synchronous {
        return Ok(());
    }
    // SAFETY: by the contract, `id` is writable and no other thread acknowledges the event. The new
    // event therefore lives until a later call for this identifier acknowledges it.
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

/// Takes the next event from a channel's queue, applies its effects and returns it. If the queue is
/// empty, the function waits, unless the program made the channel's descriptor non-blocking.
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
        // Until the event is acknowledged, `destroy` waits and the memory stays allocated.
        identifier.unacknowledged += 1;
        drop(state);
        match EventBuilder::from_cm_event(manager, owner, memory, event) {
            Ok(builder) => return Ok(builder.deliver(manager, owner)),
            // The event is obsolete and is dropped.
            Err(_) => {
                if let Ok(identifier) = manager.lock().get(owner) {
                    identifier.unacknowledged -= 1;
                }
                manager.notify_acknowledged();
            }
        }
    }
}

/// Waits until the channel with this number has an event, which another thread may take before the
/// caller. A cancellation point.
///
/// # Errors
/// `EINVAL`, `EAGAIN` and `EINTR` as for [`next_event`].
fn wait(manager: &Manager, channel: CallerPtr<rdma_event_channel>, number: Option<u64>) -> Result<(), Errno> {
    wait_for_event(|| {
        let state = manager.lock();
        match state.events_of(channel, number) {
            // The futex ends with the queue if another thread destroys the channel. This thread
            // then sleeps on, or comes back here.
            Some(events) => take_or_sleep(events, || Ok((!events.is_empty()).then_some(()))),
            None if number.is_some() || state.destroyed_channels.contains(&channel) => {
                Ok(ControlFlow::Continue(cancellation::NEVER_WOKEN))
            }
            None => Err(Errno::EINVAL),
        }
    })
}

/// An `rdma_cm_event` under construction, and the private data that it will point to.
struct EventBuilder {
    event: rdma_cm_event,
    private_data: Vec<u8>,
}

impl EventBuilder {
    /// Applies the effects of `event` and creates an `rdma_cm_event` from it. The caller keeps the
    /// identifier with this `memory` from being destroyed.
    ///
    /// # Errors
    /// If the event is obsolete, for example because the program left the multicast group.
    fn from_cm_event(
        manager: &Manager,
        handle: IdHandle,
        memory: CallerPtr<rdma_cm_id>,
        event: CmEvent,
    ) -> Result<Self, Errno> {
        let new = |kind, status| Self::new(memory.0, kind, status);
        // Flushes the posted work requests, although the queue pair was never connected.
        let flush = || {
            // A failure is ignored: the program destroys the queue pair anyway.
            // SAFETY: `next_event` keeps the identifier from being destroyed.
            let _ = unsafe { queue_pair::to_error(memory.0) };
        };
        Ok(match event {
            CmEvent::AddressResolved => new(RDMA_CM_EVENT_ADDR_RESOLVED, 0),
            CmEvent::AddressError(errno) => new(RDMA_CM_EVENT_ADDR_ERROR, -(errno as i32)),
            CmEvent::RouteResolved => new(RDMA_CM_EVENT_ROUTE_RESOLVED, 0),
            CmEvent::Requested { child } => {
                let (request, params) = allocate_request_id(manager, child).inspect_err(|_| {
                    let mut state = manager.lock();
                    state.close(child);
                    state.remove(child);
                })?;
                let event = Self::new(request, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
                let event = Self { event: rdma_cm_event { listen_id: memory.0, ..event.event }, ..event };
                match params {
                    RequestParams::Connection(params) => {
                        event.with_connection_params(params, REQ_PRIVATE_DATA_LEN)
                    }
                    RequestParams::Service(request) => event.with_sidr_request(request),
                }
            }
            CmEvent::Connection(event) => match event {
                // Reported to the listener as `CmEvent::Requested`.
                ConnectionEvent::Requested(_) => return Err(Errno::EINVAL),
                ConnectionEvent::Replied(reply) => {
                    let (kind, status) = apply_reply(manager, handle, memory.0, &reply);
                    new(kind, status).with_connection_params(reply, REP_PRIVATE_DATA_LEN)
                }
                ConnectionEvent::Established => new(RDMA_CM_EVENT_ESTABLISHED, 0),
                ConnectionEvent::Rejected(Rejection { reason, private_data }) => {
                    flush();
                    new(RDMA_CM_EVENT_REJECTED, reason.into())
                        .with_private_data(private_data, REJ_PRIVATE_DATA_LEN)
                        .with_conn(|_| {})
                }
                ConnectionEvent::Unreachable(errno) => {
                    flush();
                    new(RDMA_CM_EVENT_UNREACHABLE, -(errno as i32))
                }
                ConnectionEvent::Disconnected => new(RDMA_CM_EVENT_DISCONNECTED, 0),
                ConnectionEvent::TimeWaitExit => new(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0),
            },
            CmEvent::ServiceReplied(reply) if reply.status == sidr_status::VALID => {
                new(RDMA_CM_EVENT_ESTABLISHED, 0).with_sidr_reply(reply)
            }
            CmEvent::ServiceReplied(SidrReply { status, private_data, .. }) => {
                new(RDMA_CM_EVENT_UNREACHABLE, status.into())
                    .with_private_data(private_data, SIDR_REP_PRIVATE_DATA_LEN)
                    .with_ud(|_| {})
            }
            CmEvent::LookupFailed(errno) => new(RDMA_CM_EVENT_UNREACHABLE, -(errno as i32)),
            CmEvent::DeviceRemoved => new(RDMA_CM_EVENT_DEVICE_REMOVAL, 0),
            CmEvent::Joined(number) => {
                let membership = manager.lock().get(handle)?.membership(number).ok_or(Errno::EINVAL)?;
                // As with librdmacm, the queue pair is attached when the program reads the event.
                // SAFETY: `next_event` keeps the identifier from being destroyed. Its queue pair is
                // null or live, because the program destroys it by `rdma_destroy_qp`, which sets
                // the field to null.
                let event = match unsafe { membership.attach(memory.0) } {
                    Ok(()) => new(RDMA_CM_EVENT_MULTICAST_JOIN, 0),
                    Err(errno) => new(RDMA_CM_EVENT_MULTICAST_ERROR, -(errno as i32)),
                };
                event.with_ud(|ud| {
                    ud.private_data = membership.context.0;
                    // SAFETY: every field of the union `ibv_gid` has sixteen bytes, for which all
                    // values are valid.
                    ud.ah_attr = path_to(unsafe { membership.gid().raw }, 0);
                    (ud.qp_num, ud.qkey) = (MULTICAST_QPN, RDMA_UDP_QKEY);
                })
            }
        })
    }

    fn new(id: *mut rdma_cm_id, event: rdma_cm_event_type, status: c_int) -> Self {
        // SAFETY: `rdma_cm_event` consists of integers and pointers, for which zeros are valid.
        let zeroed: rdma_cm_event = unsafe { std::mem::zeroed() };
        Self { event: rdma_cm_event { id, event, status, ..zeroed }, private_data: Vec::new() }
    }

    /// Adds private data of a message. Its length is the message's limit, as with the kernel's
    /// connection manager: what the peer's program sent, then zeros.
    fn with_private_data(mut self, private_data: Vec<u8>, limit: usize) -> Self {
        self.private_data = private_data;
        self.private_data.resize(limit, 0);
        self
    }

    fn with_conn(mut self, fill: impl FnOnce(&mut rdma_conn_param)) -> Self {
        // SAFETY: `rdma_conn_param` consists of integers and pointers, for which zeros are valid.
        let mut conn: rdma_conn_param = unsafe { std::mem::zeroed() };
        fill(&mut conn);
        if !self.private_data.is_empty() {
            conn.private_data = self.private_data.as_ptr().cast();
            conn.private_data_len = self.private_data.len() as u8;
        }
        self.event.param.conn = conn;
        self
    }

    fn with_ud(mut self, fill: impl FnOnce(&mut rdma_ud_param)) -> Self {
        // SAFETY: `rdma_ud_param` consists of integers and pointers, for which zeros are valid.
        let mut ud: rdma_ud_param = unsafe { std::mem::zeroed() };
        fill(&mut ud);
        if !self.private_data.is_empty() {
            ud.private_data = self.private_data.as_ptr().cast();
            ud.private_data_len = self.private_data.len() as u8;
        }
        self.event.param.ud = ud;
        self
    }

    fn with_connection_params(self, params: ConnectionParams, limit: usize) -> Self {
        self.with_private_data(params.private_data, limit).with_conn(|conn| {
            // One side's initiator depth is the other side's responder resources
            // (`man rdma_get_cm_event`).
            conn.responder_resources = params.initiator_depth;
            conn.initiator_depth = params.responder_resources;
            conn.flow_control = params.flow_control.into();
            conn.retry_count = params.retry_count;
            conn.rnr_retry_count = params.rnr_retry_count;
            conn.srq = params.srq.into();
            conn.qp_num = params.qpn;
        })
    }

    fn with_sidr_request(self, request: SidrRequest) -> Self {
        self.with_private_data(request.private_data, SIDR_REQ_PRIVATE_DATA_LEN)
            .with_ud(|ud| ud.ah_attr = path_to(request.gid, 0))
    }

    fn with_sidr_reply(self, reply: SidrReply) -> Self {
        self.with_private_data(reply.private_data, SIDR_REP_PRIVATE_DATA_LEN).with_ud(|ud| {
            ud.ah_attr = path_to(reply.gid, 0);
            ud.qp_num = reply.qpn;
            ud.qkey = reply.qkey;
        })
    }

    /// Allocates the event for the program and enters it in the delivered events.
    fn deliver(self, manager: &Manager, owner: IdHandle) -> *mut rdma_cm_event {
        let event = Box::into_raw(Box::new(self.event));
        // The event points to the heap buffer of the vector, which stays in place when the vector
        // is moved.
        let delivered = DeliveredEvent { owner, _private_data: self.private_data };
        manager.lock().delivered.insert(CallerPtr(event), delivered);
        event
    }
}

/// Applies a REP: connects the identifier's queue pair, if it has one, and establishes the
/// connection. Without a queue pair the program connects its own queue pair and calls
/// `rdma_establish`. Returns the event type and its status.
fn apply_reply(
    manager: &Manager,
    handle: IdHandle,
    memory: *mut rdma_cm_id,
    reply: &ConnectionParams,
) -> (rdma_cm_event_type, c_int) {
    let apply = || -> Result<rdma_cm_event_type, Errno> {
        let mut state = manager.lock();
        state.get(handle)?.params.apply_reply(reply);
        drop(state);
        // SAFETY: `next_event` keeps the identifier from being destroyed. Its path record is null
        // or was allocated by `set_path`, and its queue pair is null or live.
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
    apply().map_or_else(
        |errno| {
            // A failure to enter ERR is ignored: the program destroys the queue pair anyway.
            // SAFETY: `next_event` keeps the identifier from being destroyed.
            let _ = unsafe { queue_pair::to_error(memory) };
            manager.lock().close(handle);
            (RDMA_CM_EVENT_CONNECT_ERROR, -(errno as i32))
        },
        |kind| (kind, 0),
    )
}

/// `rdma_event_str`.
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
