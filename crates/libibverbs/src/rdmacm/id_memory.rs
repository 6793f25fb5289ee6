//! The memory that the program holds: `struct rdma_cm_id` and `struct rdma_event_channel`.

use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;

use super::caller_ptr::CallerPtr;
use super::cm_event::{CmEventQueue, IdHandle};
use super::identifier::{Addresses, Identifier, ServiceRequest};
use super::manager::Manager;
use super::protocol::message::ConnectionParams;
use super::qp_attributes::path_record;
use super::rdma_port::errno_of;
use super::sockaddr::to_sockaddr_storage;
use crate::common::event_queue::is_nonblocking;
use mitra_verbs_abi::*;

/// # Errors
/// The error of creating the channel's descriptor.
pub fn create_channel(manager: &Manager) -> Result<*mut rdma_event_channel, Errno> {
    let channel = CmEventQueue::with_blocking_fd(usize::MAX).map_err(errno_of)?;
    let memory = Box::into_raw(Box::new(rdma_event_channel { fd: channel.as_fd().as_raw_fd() }));
    manager.lock().add_channel(CallerPtr(memory), channel);
    Ok(memory)
}

/// Does nothing if the channel is unknown.
///
/// Some programs, such as rping, destroy a channel while a thread waits on the channel. With the
/// kernel's connection manager, the thread waits forever if the wait begins before the close, and
/// otherwise the thread's call fails. With Mitra, the thread waits forever in both cases.
pub fn destroy_channel(manager: &Manager, channel: *mut rdma_event_channel) {
    let mut state = manager.lock();
    if let Some(destroyed) = state.channels.remove(&CallerPtr(channel)) {
        if is_nonblocking(&destroyed.events) == Ok(false) {
            state.destroyed_channels.insert(CallerPtr(channel));
        }
        drop(state);
        // SAFETY: `create_channel` made the memory by `Box::into_raw`. This call has removed the
        // entry in `channels`, so no other call frees the memory.
        drop(unsafe { Box::from_raw(channel) });
    }
}

pub fn allocate_id(identifier: &Identifier) -> *mut rdma_cm_id {
    // SAFETY: `rdma_cm_id` consists of integers and pointers, for which zeros are valid.
    let zeroed: rdma_cm_id = unsafe { std::mem::zeroed() };
    Box::into_raw(Box::new(rdma_cm_id {
        channel: identifier.channel.0,
        context: identifier.context.0,
        ps: identifier.program_space,
        qp_type: identifier.qp_type,
        ..zeroed
    }))
}

/// # Safety
/// `id` comes from [`allocate_id`], its identifier was removed from the state, and neither the
/// program nor another call uses it.
pub unsafe fn free_id(id: *mut rdma_cm_id) {
    // SAFETY: by the contract this is the only owner of the allocation. `set_path` made the path
    // record by `Box::into_raw`.
    unsafe {
        if !(*id).route.path_rec.is_null() {
            drop(Box::from_raw((*id).route.path_rec));
        }
        drop(Box::from_raw(id));
    }
}

pub enum RequestParams {
    Connection(ConnectionParams),
    Service(ServiceRequest),
}

/// Allocates the memory of a request's identifier. The request to a synchronous listener gets a
/// channel of its own.
///
/// # Errors
/// `EINVAL` if the identifier was removed, or the error of opening the device or creating the
/// channel.
pub fn allocate_request_id(
    manager: &Manager,
    request: IdHandle,
) -> Result<(*mut rdma_cm_id, RequestParams), Errno> {
    let device = manager.device()?;
    if manager.lock().get(request)?.is_synchronous {
        let channel = create_channel(manager)?;
        manager.lock().migrate(request, CallerPtr(channel), true);
    }
    let mut state = manager.lock();
    let identifier = state.get(request)?;
    let (params, dgid) = match (&identifier.params.peer, &identifier.service_request) {
        (Some(params), _) => (RequestParams::Connection(params.clone()), params.gid),
        (None, Some(request)) => (RequestParams::Service(request.clone()), request.gid),
        (None, None) => return Err(Errno::EINVAL),
    };
    let (addresses, traffic_class) = (identifier.addresses, identifier.options.traffic_class);
    let memory = allocate_id(identifier);
    state.set_memory(request, CallerPtr(memory));
    drop(state);
    // SAFETY: `allocate_id` has allocated the memory, which the program does not know yet.
    unsafe {
        device.bind(memory);
        set_addresses(memory, addresses);
        (*memory).route.addr.addr.ibaddr.dgid.raw = dgid;
        set_path(memory, path_record(&device, dgid, traffic_class));
    }
    Ok((memory, params))
}

/// # Safety
/// `id` is the memory of a live identifier, and no other thread accesses its addresses.
pub unsafe fn set_addresses(id: *mut rdma_cm_id, (source, destination): Addresses) {
    // SAFETY: by the contract `id` is writable.
    unsafe {
        if let Some(source) = source {
            (*id).route.addr.src = to_sockaddr_storage(source);
        }
        if let Some(destination) = destination {
            (*id).route.addr.dst = to_sockaddr_storage(destination);
        }
    }
}

/// # Safety
/// `id` is the memory of a live identifier, and no other thread accesses its path record.
pub unsafe fn set_path(id: *mut rdma_cm_id, path: ibv_sa_path_rec) {
    // SAFETY: by the contract `id` is writable. A path record that is not null was allocated by an
    // earlier call.
    unsafe {
        match (*id).route.path_rec.as_mut() {
            Some(old) => *old = path,
            None => (*id).route.path_rec = Box::into_raw(Box::new(path)),
        }
        (*id).route.num_paths = 1;
    }
}
