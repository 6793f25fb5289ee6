//! Identifiers and event channels: making, moving, destroying, options.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::ptr;
use std::time::Instant;

use nix::errno::Errno;

use super::attributes::path_record;
use super::channel::Channel;
use super::event::{Asked, give_back};
use super::manager::{Manager, manager};
use super::message::{Answer, sidr};
use super::socket::Space;
use super::state::{Addresses, Endpoint, Handle, Identifier, State, Theirs};
use super::{address, answer};
use crate::abi::*;

/// `rdma_create_event_channel`.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    manager().and_then(create_channel).unwrap_or_else(|errno| {
        errno.set();
        ptr::null_mut()
    })
}

/// `rdma_destroy_event_channel`.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    if let Ok(manager) = manager() {
        destroy_channel(manager, channel);
    }
}

fn create_channel(manager: &Manager) -> Result<*mut rdma_event_channel, Errno> {
    let channel = Channel::new()?;
    let memory = Box::into_raw(Box::new(rdma_event_channel { fd: channel.fd() }));
    let mut state = manager.lock();
    state.closed.remove(&Theirs(memory));
    state.channels.insert(Theirs(memory), channel);
    Ok(memory)
}

/// Programs leave a thread behind that waits on the channel (rping does); on a real one it waits for ever, unless it comes
/// so late that it finds the descriptor closed. Here it waits for ever however late it comes.
fn destroy_channel(manager: &Manager, channel: *mut rdma_event_channel) {
    let mut state = manager.lock();
    if let Some(destroyed) = state.channels.remove(&Theirs(channel)) {
        if destroyed.is_blocking() {
            state.closed.insert(Theirs(channel));
        }
        drop(state);
        // SAFETY: made by `create_channel`, and known until now.
        drop(unsafe { Box::from_raw(channel) });
    }
}

/// `rdma_create_id`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    let qp_type = if ps == RDMA_PS_UDP { IBV_QPT_UD } else { IBV_QPT_RC };
    answer(create(channel, context, ps, qp_type).map(|created| {
        // SAFETY: the program's place for the answer.
        unsafe { *id = created };
    }))
}

/// Makes an identifier, a synchronous one without a channel.
pub fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
) -> Result<*mut rdma_cm_id, Errno> {
    let manager = manager()?;
    let space = match ps {
        RDMA_PS_TCP => Space::Tcp,
        RDMA_PS_UDP => Space::Udp,
        // InfiniBand's own addresses, and IP over InfiniBand.
        _ => return Err(Errno::EPROTONOSUPPORT),
    };
    // As with librdmacm, without a device there is nothing to identify.
    manager.device()?;
    let is_synchronous = channel.is_null();
    let channel = if is_synchronous { create_channel(manager)? } else { channel };
    let mut state = manager.lock();
    if !state.channels.contains_key(&Theirs(channel)) {
        return Err(Errno::EINVAL);
    }
    let identifier = Identifier::new(Theirs(channel), is_synchronous, Theirs(context), space, qp_type);
    let memory = allocate(&identifier);
    let handle = state.insert(identifier);
    state.give_memory(handle, Theirs(memory));
    Ok(memory)
}

/// The program's memory for an identifier.
fn allocate(identifier: &Identifier) -> *mut rdma_cm_id {
    // SAFETY: integers and pointers, for which zeros are valid.
    let zeroed: rdma_cm_id = unsafe { std::mem::zeroed() };
    Box::into_raw(Box::new(rdma_cm_id {
        channel: identifier.channel.0,
        context: identifier.context.0,
        ps: if identifier.space == Space::Tcp { RDMA_PS_TCP } else { RDMA_PS_UDP },
        qp_type: identifier.qp_type,
        ..zeroed
    }))
}

/// Memory for a request's identifier, with its own channel if the listener had its own.
pub fn allocate_for_child(manager: &Manager, child: Handle) -> Result<(*mut rdma_cm_id, Asked), Errno> {
    let device = manager.device()?;
    if manager.lock().get(child)?.is_synchronous {
        let own = create_channel(manager)?;
        manager.lock().migrate(child, Theirs(own), true);
    }
    let mut state = manager.lock();
    // Nobody else knows it: it is still there, or was not from the beginning.
    let identifier = state.get(child)?;
    let (asked, dgid) = match (&identifier.terms.peer, &identifier.inquiry) {
        (Some(offer), _) => (Asked::Connection(offer.clone()), offer.gid),
        (None, Some(inquiry)) => (Asked::Service(inquiry.clone()), inquiry.gid),
        (None, None) => return Err(Errno::EINVAL),
    };
    let (addresses, traffic_class) = (identifier.addresses, identifier.options.traffic_class);
    let memory = allocate(identifier);
    state.give_memory(child, Theirs(memory));
    drop(state);
    // SAFETY: just made.
    unsafe {
        device.bind(memory);
        set_addresses(memory, addresses);
        (*memory).route.addr.addr.ibaddr.dgid.raw = dgid;
        set_path(memory, path_record(&device, dgid, traffic_class));
    }
    Ok((memory, asked))
}

/// Shows the program its addresses.
///
/// # Safety
/// `id` is an identifier's memory.
pub unsafe fn set_addresses(id: *mut rdma_cm_id, (source, destination): Addresses) {
    // SAFETY: by the contract.
    unsafe {
        if let Some(source) = source {
            (*id).route.addr.src = address::stored(source);
        }
        if let Some(destination) = destination {
            (*id).route.addr.dst = address::stored(destination);
        }
    }
}

/// Shows the program its path.
///
/// # Safety
/// `id` is an identifier's memory.
pub unsafe fn set_path(id: *mut rdma_cm_id, path: ibv_sa_path_rec) {
    // SAFETY: by the contract; a path that is there came from here.
    unsafe {
        match (*id).route.path_rec.as_mut() {
            Some(old) => *old = path,
            None => (*id).route.path_rec = Box::into_raw(Box::new(path)),
        }
        (*id).route.num_paths = 1;
    }
}

/// `rdma_destroy_id`: waits until the program has acknowledged what it was told.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    answer(manager().and_then(|manager| destroy(manager, id)))
}

/// Destroys an identifier.
pub fn destroy(manager: &Manager, id: *mut rdma_cm_id) -> Result<(), Errno> {
    let mut state = manager.lock();
    let handle = state.handle(id)?;
    state.hang_up(handle);
    state.take_reports(handle);
    drop(state);
    // SAFETY: `handle` knew it.
    unsafe { give_back(manager, id) };
    let mut state = manager.lock();
    while state.get(handle)?.unacknowledged > 0 {
        state = manager.wait_for_acknowledgement(state);
    }
    let identifier = state.remove(handle).ok_or(Errno::EINVAL)?;
    drop(state);
    if identifier.is_synchronous {
        destroy_channel(manager, identifier.channel.0);
    }
    // SAFETY: made by `allocate` and `set_path`, and known until now.
    unsafe {
        if !(*id).route.path_rec.is_null() {
            drop(Box::from_raw((*id).route.path_rec));
        }
        drop(Box::from_raw(id));
    }
    Ok(())
}

impl State {
    /// Ends what an identifier does on the network, and tells its peer.
    pub fn hang_up(&mut self, handle: Handle) {
        let Ok(identifier) = self.get(handle) else { return };
        match std::mem::replace(&mut identifier.endpoint, Endpoint::Ended) {
            Endpoint::Connected(mut stream) => {
                stream.connection.abandon();
                stream.write();
            }
            Endpoint::Listening(_) => {
                // Those whom the program never heard of.
                let orphans: Vec<Handle> = self
                    .identifiers()
                    .filter(|(_, other)| other.memory.is_none() && other.listener() == Some(handle))
                    .map(|(handle, _)| handle)
                    .collect();
                for orphan in orphans {
                    self.hang_up(orphan);
                    self.remove(orphan);
                }
            }
            Endpoint::Asked { listener, key } => {
                self.answer(listener, key, Answer::refusal(key.1, Vec::new()), Instant::now());
            }
            Endpoint::Unbound | Endpoint::Bound(_) | Endpoint::Asking(..) | Endpoint::Ended => {}
        }
    }
}

impl Answer {
    /// The program said no.
    pub fn refusal(request_id: u64, private_data: Vec<u8>) -> Self {
        Self { request_id, status: sidr::REJECTED, qpn: 0, qkey: 0, gid: [0; 16], private_data }
    }
}

/// `rdma_migrate_id`: to another channel, or without one to its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    answer(manager().and_then(|manager| migrate(manager, id, channel)))
}

fn migrate(manager: &Manager, id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> Result<(), Errno> {
    let (was_synchronous, before) = {
        let mut state = manager.lock();
        let is_known = channel.is_null() || state.channels.contains_key(&Theirs(channel));
        let (_, identifier) = state.find(id)?;
        if !is_known || (identifier.is_synchronous && channel.is_null()) {
            return Err(Errno::EINVAL);
        }
        (identifier.is_synchronous, identifier.channel)
    };
    let to = if channel.is_null() { create_channel(manager)? } else { channel };
    // SAFETY: `find` knew it.
    unsafe { give_back(manager, id) };
    let mut state = manager.lock();
    let handle = state.handle(id)?;
    state.migrate(handle, Theirs(to), channel.is_null());
    // SAFETY: as above.
    unsafe { (*id).channel = to };
    while state.get(handle)?.unacknowledged > 0 {
        state = manager.wait_for_acknowledgement(state);
    }
    drop(state);
    if was_synchronous {
        destroy_channel(manager, before.0);
    }
    Ok(())
}

/// `rdma_set_option`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: usize,
) -> c_int {
    let set = || -> Result<(), Errno> {
        let mut state = manager()?.lock();
        let (_, identifier) = state.find(id)?;
        let options = &mut identifier.options;
        if optval.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: `optval` points to `optlen` bytes, and each arm reads as many as it has compared.
        unsafe {
            match (level, optname, optlen) {
                (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, 1) => options.traffic_class = *optval.cast(),
                (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, 4) => {
                    options.reuse_address = optval.cast::<c_int>().read_unaligned() != 0;
                }
                (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, 4) => {
                    options.v6_only = optval.cast::<c_int>().read_unaligned() != 0;
                }
                // Five bits (IBTA, local ACK timeout).
                (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, 1) if *optval.cast::<u8>() < 32 => {
                    options.ack_timeout = Some(*optval.cast());
                }
                // Paths are for those who have a subnet administrator.
                (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, _) => return Err(Errno::EOPNOTSUPP),
                (RDMA_OPTION_ID, ..) => return Err(Errno::EINVAL),
                _ => return Err(Errno::ENOSYS),
            }
        }
        Ok(())
    };
    answer(set())
}

/// `rdma_get_src_port`, in network order; 0 where there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    port(id, |(source, _)| source)
}

/// `rdma_get_dst_port`, in network order; 0 where there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    port(id, |(_, destination)| destination)
}

fn port(id: *mut rdma_cm_id, which: impl FnOnce(Addresses) -> Option<SocketAddr>) -> u16 {
    let addresses = manager().and_then(|manager| Ok(manager.lock().find(id)?.1.addresses));
    addresses.ok().and_then(which).map_or(0, |address| address.port().to_be())
}
