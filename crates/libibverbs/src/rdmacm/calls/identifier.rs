//! Calls that create, migrate and destroy identifiers, and that set and read their options and
//! ports.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;

use nix::errno::Errno;

use super::with_manager;
use crate::rdmacm::acknowledgement::acknowledge_held_event;
use crate::rdmacm::caller_ptr::CallerPtr;
use crate::rdmacm::cm_event::IdHandle;
use crate::rdmacm::id_memory::{allocate_id, create_channel, destroy_channel, free_id};
use crate::rdmacm::identifier::{Addresses, Identifier};
use crate::rdmacm::manager::{Manager, manager};
use crate::rdmacm::rdma_port::PortSpace;
use mitra_verbs_abi::*;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    let qp_type = if ps == RDMA_PS_UDP { IBV_QPT_UD } else { IBV_QPT_RC };
    with_manager("rdma_create_id", |manager| {
        create(manager, channel, context, ps, qp_type).map(|created| {
            // SAFETY: `rdma_create_id` requires a valid pointer for the new identifier.
            unsafe { *id = created };
        })
    })
}

/// Without a channel the identifier is synchronous and gets a channel of its own.
///
/// # Errors
/// `EPROTONOSUPPORT` for the port space of IP over InfiniBand, `EINVAL` for an unknown channel, or
/// the error of opening the device.
pub fn create(
    manager: &Manager,
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
) -> Result<*mut rdma_cm_id, Errno> {
    let space = match ps {
        RDMA_PS_TCP => PortSpace::Tcp,
        RDMA_PS_UDP => PortSpace::Udp,
        // In the kernel, RDMA_PS_IB has its own port numbers and allows every type of queue pair.
        RDMA_PS_IB if qp_type == IBV_QPT_UD => PortSpace::Udp,
        RDMA_PS_IB => PortSpace::Tcp,
        _ => return Err(Errno::EPROTONOSUPPORT),
    };
    // librdmacm creates no identifier without an RDMA device either.
    manager.device()?;
    let is_synchronous = channel.is_null();
    let channel = if is_synchronous { create_channel(manager)? } else { channel };
    let mut state = manager.lock();
    if !state.channels.contains_key(&CallerPtr(channel)) {
        return Err(Errno::EINVAL);
    }
    let (channel, context, program_space) = (CallerPtr(channel), CallerPtr(context), ps);
    let identifier =
        Identifier { channel, is_synchronous, context, space, program_space, qp_type, ..Default::default() };
    let memory = allocate_id(&identifier);
    let handle = state.insert(identifier);
    state.set_memory(handle, CallerPtr(memory));
    Ok(memory)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    with_manager("rdma_destroy_id", |manager| destroy(manager, id))
}

/// Destroys an identifier. First waits until the program has acknowledged each event of the
/// identifier that it has read.
///
/// # Errors
/// `EINVAL` if the identifier is unknown.
pub fn destroy(manager: &Manager, id: *mut rdma_cm_id) -> Result<(), Errno> {
    let mut state = manager.lock();
    let handle = state.handle(id)?;
    state.close(handle);
    state.take_events(handle);
    drop(state);
    // SAFETY: `handle` found the memory, so the identifier is live. No other thread uses the
    // identifier, as `man rdma_destroy_id` requires.
    unsafe { acknowledge_held_event(manager, id) };
    let identifier = loop {
        wait_for_acknowledgements(manager, handle)?;
        let mut state = manager.lock();
        // A reader of the channel may have taken an event, such as the removal of the device, since
        // the wait ended.
        if state.get(handle)?.unacknowledged.is_zero() {
            break state.remove(handle).ok_or(Errno::EINVAL)?;
        }
    };
    if identifier.is_synchronous {
        destroy_channel(manager, identifier.channel.0);
    }
    // SAFETY: `handle` found the memory, so `allocate_id` made the memory. Only one call gets the
    // identifier from `remove`, so no other call frees the memory.
    unsafe { free_id(id) };
    Ok(())
}

/// Does not hold the manager's lock while it waits.
fn wait_for_acknowledgements(manager: &Manager, handle: IdHandle) -> Result<(), Errno> {
    let unacknowledged = manager.lock().get(handle)?.unacknowledged.clone();
    unacknowledged.wait_for_all();
    Ok(())
}

/// Null stands for a new channel, and makes the identifier synchronous.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    with_manager("rdma_migrate_id", |manager| migrate(manager, id, channel))
}

fn migrate(manager: &Manager, id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> Result<(), Errno> {
    let (was_synchronous, old_channel) = {
        let mut state = manager.lock();
        let is_known = channel.is_null() || state.channels.contains_key(&CallerPtr(channel));
        let (_, identifier) = state.find(id)?;
        if !is_known || (identifier.is_synchronous && channel.is_null()) {
            return Err(Errno::EINVAL);
        }
        (identifier.is_synchronous, identifier.channel)
    };
    let new_channel = if channel.is_null() { create_channel(manager)? } else { channel };
    // SAFETY: `find` found the memory, so the identifier is live.
    unsafe { acknowledge_held_event(manager, id) };
    let mut state = manager.lock();
    let handle = state.handle(id)?;
    state.migrate(handle, CallerPtr(new_channel), channel.is_null());
    // SAFETY: `handle` found the memory under the lock that is still held.
    unsafe { (*id).channel = new_channel };
    drop(state);
    wait_for_acknowledgements(manager, handle)?;
    if was_synchronous {
        destroy_channel(manager, old_channel.0);
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: usize,
) -> c_int {
    with_manager("rdma_set_option", |manager| {
        let mut state = manager.lock();
        let options = &mut state.find(id)?.1.options;
        if optval.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: `optval` points to `optlen` bytes, and each arm reads the length in its pattern.
        unsafe {
            match (level, optname, optlen) {
                (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, 1) => options.traffic_class = *optval.cast(),
                (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, 4) => {
                    options.reuse_address = optval.cast::<c_int>().read_unaligned() != 0;
                }
                (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, 4) => {
                    options.v6_only = optval.cast::<c_int>().read_unaligned() != 0;
                }
                // The local ACK timeout has five bits (IBTA volume 1, local ACK timeout).
                (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, 1) if *optval.cast::<u8>() < 32 => {
                    options.ack_timeout = Some(*optval.cast());
                }
                // Only a subnet administrator provides path records, and RoCE has none.
                (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, _) => return Err(Errno::EOPNOTSUPP),
                (RDMA_OPTION_ID, ..) => return Err(Errno::EINVAL),
                _ => return Err(Errno::ENOSYS),
            }
        }
        Ok(())
    })
}

/// The port is in network order, and 0 before the bind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    port_in_network_order(id, |(source, _)| source)
}

/// The port is in network order, and 0 while the peer is unknown.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    port_in_network_order(id, |(_, destination)| destination)
}

fn port_in_network_order(id: *mut rdma_cm_id, select: impl FnOnce(Addresses) -> Option<SocketAddr>) -> u16 {
    let addresses = manager().and_then(|manager| Ok(manager.lock().find(id)?.1.addresses));
    addresses.ok().and_then(select).map_or(0, |address| address.port().to_be())
}
