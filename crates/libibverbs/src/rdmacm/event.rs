//! Events: how a report becomes one, with its effects on the identifier, and how the program gives it back.

use std::ffi::{CStr, c_char, c_int};
use std::os::fd::AsFd;
use std::ptr;

use nix::errno::Errno;

use super::attributes::path_to;
use super::connection::Happening;
use super::identifier::allocate_for_child;
use super::manager::{Manager, manager};
use super::message::{Answer, Inquiry, Offer, Rejection};
use super::multicast;
use super::queue_pair;
use super::state::{Delivered, Handle, Identifier, Report, Theirs};
use super::{answer, channel};
use crate::abi::*;

/// `rdma_get_cm_event`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if event.is_null() {
        return answer(Err(Errno::EINVAL));
    }
    answer(manager().and_then(|manager| next(manager, Theirs(channel))).map(|next| {
        // SAFETY: the program's place for the answer.
        unsafe { *event = next };
    }))
}

/// `rdma_ack_cm_event`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    answer(manager().and_then(|manager| acknowledge(manager, event)))
}

/// Takes an event back; one that is not the program's (any more) is refused.
pub fn acknowledge(manager: &Manager, event: *mut rdma_cm_event) -> Result<(), Errno> {
    let mut state = manager.lock();
    let delivered = state.delivered.remove(&Theirs(event)).ok_or(Errno::EINVAL)?;
    if let Ok(owner) = state.get(delivered.owner) {
        owner.unacknowledged -= 1;
    }
    drop(state);
    manager.acknowledged();
    // SAFETY: made by `hand_out`, and just removed from what the program has.
    drop(unsafe { Box::from_raw(event) });
    Ok(())
}

/// Of a synchronous identifier, waits for the event that ends what was begun and leaves it in `id.event`; of another, nothing.
///
/// # Safety
/// `id` is an identifier's memory.
pub unsafe fn complete(manager: &Manager, id: *mut rdma_cm_id) -> Result<(), Errno> {
    let (is_synchronous, channel) = {
        let mut state = manager.lock();
        let (_, identifier) = state.find(id)?;
        (identifier.is_synchronous, identifier.channel)
    };
    if !is_synchronous {
        return Ok(());
    }
    // SAFETY: by the contract; the event is ours until it is acknowledged, which the next call on the identifier does.
    unsafe {
        give_back(manager, id);
        (*id).event = next(manager, channel)?;
        let event = *(*id).event;
        match (event.event, event.status) {
            (_, 0) => Ok(()),
            (RDMA_CM_EVENT_REJECTED, _) => Err(Errno::ECONNREFUSED),
            (_, status) => Err(Errno::from_raw(status.abs())),
        }
    }
}

/// Acknowledges the event that a synchronous identifier holds.
///
/// # Safety
/// `id` is an identifier's memory.
pub unsafe fn give_back(manager: &Manager, id: *mut rdma_cm_id) {
    // SAFETY: by the contract.
    let held = unsafe { std::mem::replace(&mut (*id).event, ptr::null_mut()) };
    if !held.is_null() {
        // One that the program acknowledged itself is unknown by now.
        let _ = acknowledge(manager, held);
    }
}

/// The next event of a channel, when there is one.
pub fn next(manager: &Manager, channel: Theirs<rdma_event_channel>) -> Result<*mut rdma_cm_event, Errno> {
    loop {
        let waiter = {
            let state = manager.lock();
            match state.channels.get(&channel) {
                Some(channel) => channel.waiter()?,
                None if state.closed.contains(&channel) => {
                    drop(state);
                    nix::unistd::pause();
                    return Err(Errno::EINTR);
                }
                None => return Err(Errno::EINVAL),
            }
        };
        channel::wait(waiter.as_fd())?;
        let mut state = manager.lock();
        let Some((owner, report)) = state.channels.get_mut(&channel).and_then(|channel| channel.pop()) else {
            continue;
        };
        let Ok(identifier) = state.get(owner) else { continue };
        let Some(memory) = identifier.memory else { continue };
        // From here on nobody can destroy it.
        identifier.unacknowledged += 1;
        drop(state);
        match Event::of(manager, owner, memory, report) {
            Ok(event) => return Ok(event.hand_out(manager, owner)),
            // Nothing left to tell of.
            Err(_) => {
                if let Ok(identifier) = manager.lock().get(owner) {
                    identifier.unacknowledged -= 1;
                }
                manager.acknowledged();
            }
        }
    }
}

/// An event in the making.
struct Event {
    event: rdma_cm_event,
    private_data: Vec<u8>,
}

impl Event {
    /// What a report means, with its effects. An error says that it means nothing any more.
    fn of(
        manager: &Manager,
        handle: Handle,
        memory: Theirs<rdma_cm_id>,
        report: Report,
    ) -> Result<Self, Errno> {
        let new = |kind, status| Self::new(memory.0, kind, status);
        Ok(match report {
            Report::AddressResolved => new(RDMA_CM_EVENT_ADDR_RESOLVED, 0),
            Report::AddressError(errno) => new(RDMA_CM_EVENT_ADDR_ERROR, -(errno as i32)),
            Report::RouteResolved => new(RDMA_CM_EVENT_ROUTE_RESOLVED, 0),
            Report::Requested { child } => {
                let (child, asked) = allocate_for_child(manager, child).inspect_err(|_| {
                    let mut state = manager.lock();
                    state.hang_up(child);
                    state.remove(child);
                })?;
                let event = Self::new(child, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
                let event = Self { event: rdma_cm_event { listen_id: memory.0, ..event.event }, ..event };
                match asked {
                    Asked::Connection(offer) => event.with_offer(offer),
                    Asked::Service(inquiry) => event.with_inquiry(inquiry),
                }
            }
            Report::Connection(happening) => match happening {
                Happening::Requested(_) => return Err(Errno::EINVAL),
                Happening::Replied(offer) => {
                    let (kind, status) = replied(manager, handle, memory.0, &offer);
                    new(kind, status).with_offer(offer)
                }
                Happening::Established => new(RDMA_CM_EVENT_ESTABLISHED, 0),
                Happening::Rejected(Rejection { reason, private_data }) => {
                    // What was posted is flushed, though nobody ever connected. A QP that cannot be is the program's.
                    // SAFETY: `memory` is an identifier's, which `next` keeps from being destroyed.
                    let _ = unsafe { queue_pair::to_error(memory.0) };
                    Self { private_data, ..new(RDMA_CM_EVENT_REJECTED, reason.into()) }.with_conn(|_| {})
                }
                Happening::Unreachable(errno) => new(RDMA_CM_EVENT_UNREACHABLE, -(errno as i32)),
                Happening::Disconnected => new(RDMA_CM_EVENT_DISCONNECTED, 0),
            },
            Report::Found(answer) => new(RDMA_CM_EVENT_ESTABLISHED, 0).with_answer(answer),
            Report::NotFound(status) => new(RDMA_CM_EVENT_UNREACHABLE, status),
            Report::Joined(number) => {
                // SAFETY: `memory` is an identifier's, which `next` keeps from being destroyed.
                let (group, attached) = unsafe { multicast::enter(manager, handle, memory.0, number)? };
                let event = match attached {
                    Ok(()) => new(RDMA_CM_EVENT_MULTICAST_JOIN, 0),
                    Err(errno) => new(RDMA_CM_EVENT_MULTICAST_ERROR, -(errno as i32)),
                };
                event.with_ud(|ud| {
                    ud.private_data = group.context.0;
                    // SAFETY: sixteen bytes.
                    ud.ah_attr = path_to(unsafe { group.gid().raw }, 0);
                    (ud.qp_num, ud.qkey) = (multicast::MULTICAST_QPN, RDMA_UDP_QKEY);
                })
            }
        })
    }

    fn new(id: *mut rdma_cm_id, event: rdma_cm_event_type, status: c_int) -> Self {
        // SAFETY: integers and pointers, for which zeros are valid.
        let zeroed: rdma_cm_event = unsafe { std::mem::zeroed() };
        Self { event: rdma_cm_event { id, event, status, ..zeroed }, private_data: Vec::new() }
    }

    fn with_conn(mut self, fill: impl FnOnce(&mut rdma_conn_param)) -> Self {
        // SAFETY: integers and pointers, for which zeros are valid.
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
        // SAFETY: integers and pointers, for which zeros are valid.
        let mut ud: rdma_ud_param = unsafe { std::mem::zeroed() };
        fill(&mut ud);
        if !self.private_data.is_empty() {
            ud.private_data = self.private_data.as_ptr().cast();
            ud.private_data_len = self.private_data.len() as u8;
        }
        self.event.param.ud = ud;
        self
    }

    fn with_offer(mut self, offer: Offer) -> Self {
        self.private_data = offer.private_data;
        self.with_conn(|conn| {
            // One side's depth is the other's resources (`man rdma_get_cm_event`).
            conn.responder_resources = offer.initiator_depth;
            conn.initiator_depth = offer.responder_resources;
            conn.flow_control = offer.flow_control.into();
            conn.retry_count = offer.retry_count;
            conn.rnr_retry_count = offer.rnr_retry_count;
            conn.srq = offer.srq.into();
            conn.qp_num = offer.qpn;
        })
    }

    fn with_inquiry(mut self, inquiry: Inquiry) -> Self {
        self.private_data = inquiry.private_data;
        self.with_ud(|ud| ud.ah_attr = path_to(inquiry.gid, 0))
    }

    fn with_answer(mut self, answer: Answer) -> Self {
        self.private_data = answer.private_data;
        self.with_ud(|ud| {
            ud.ah_attr = path_to(answer.gid, 0);
            ud.qp_num = answer.qpn;
            ud.qkey = answer.qkey;
        })
    }

    /// Gives it to the program.
    fn hand_out(self, manager: &Manager, owner: Handle) -> *mut rdma_cm_event {
        let event = Box::into_raw(Box::new(self.event));
        // The bytes that the event points to stay where they are while the vector moves.
        let delivered = Delivered { owner, _private_data: self.private_data };
        manager.lock().delivered.insert(Theirs(event), delivered);
        event
    }
}

/// What a request asks for.
pub enum Asked {
    /// A connection.
    Connection(Offer),
    /// The place of a datagram service.
    Service(Inquiry),
}

/// A REP came. With a QP on the identifier the connection is made right here; without one the program makes it and calls
/// `rdma_establish`. What kind of event that is, and its status.
fn replied(
    manager: &Manager,
    handle: Handle,
    memory: *mut rdma_cm_id,
    offer: &Offer,
) -> (rdma_cm_event_type, c_int) {
    let established = || -> Result<rdma_cm_event_type, Errno> {
        let mut state = manager.lock();
        let identifier = state.get(handle)?;
        identifier.agree(offer);
        drop(state);
        // SAFETY: `memory` is an identifier's, which `next` keeps from being destroyed.
        unsafe {
            (*memory).route.addr.addr.ibaddr.dgid.raw = offer.gid;
            if let Some(path) = (*memory).route.path_rec.as_mut() {
                path.dgid.raw = offer.gid;
            }
            if (*memory).qp.is_null() {
                return Ok(RDMA_CM_EVENT_CONNECT_RESPONSE);
            }
            queue_pair::connect(manager, handle, memory)?;
        }
        manager.lock().establish(handle)?;
        Ok(RDMA_CM_EVENT_ESTABLISHED)
    };
    established().map_or_else(
        |errno| {
            // SAFETY: as above. A QP that cannot be moved is the program's to destroy.
            let _ = unsafe { queue_pair::to_error(memory) };
            manager.lock().hang_up(handle);
            (RDMA_CM_EVENT_CONNECT_ERROR, -(errno as i32))
        },
        |kind| (kind, 0),
    )
}

impl Identifier {
    /// Takes over what the passive side agreed to.
    fn agree(&mut self, offer: &Offer) {
        // One side's depth is the other's resources; how often to retry RNR NAKs, the other side says.
        self.terms.responder_resources = offer.initiator_depth;
        self.terms.initiator_depth = offer.responder_resources;
        self.terms.rnr_retry_count = offer.rnr_retry_count;
        self.terms.peer = Some(offer.clone());
    }
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
