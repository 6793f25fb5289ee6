//! Calls that listen, connect, accept, reject and disconnect. For datagram identifiers the calls
//! look up a service.

use std::ffi::{c_int, c_void};
use std::net::{Ipv4Addr, SocketAddr};
use std::ptr;
use std::time::Instant;

use mitra_os_util::random::random_u64;
use mitra_verbs::Psn;
use nix::errno::Errno;

use super::event::wait_if_synchronous;
use super::{queue_pair, with_manager};
use crate::rdmacm::acknowledgement::acknowledge_held_event;
use crate::rdmacm::device::Device;
use crate::rdmacm::id_memory::set_addresses;
use crate::rdmacm::identifier::{Listener, NegotiatedParams, NetworkState};
use crate::rdmacm::manager::Manager;
use crate::rdmacm::protocol::connection::Connection;
use crate::rdmacm::protocol::message::*;
use crate::rdmacm::qp_attributes::ACK_TIMEOUT;
use crate::rdmacm::rdma_port::errno_of;
use mitra_verbs_abi::*;

/// The maximum backlog of a listener, in requests. A backlog that is not positive or exceeds the
/// maximum stands for the maximum.
const MAX_BACKLOG: usize = 1024;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    with_manager("rdma_listen", |manager| listen(manager, id, backlog))
}

fn listen(manager: &'static Manager, id: *mut rdma_cm_id, backlog: c_int) -> Result<(), Errno> {
    let backlog = usize::try_from(backlog).ok().filter(|backlog| (1..MAX_BACKLOG).contains(backlog));
    let mut state = manager.lock();
    let (handle, identifier) = state.find(id)?;
    if !matches!(identifier.network, NetworkState::Idle) {
        return Err(Errno::EINVAL);
    }
    if identifier.port.is_none() {
        let bound = state.bind(handle, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
        // SAFETY: `find` found the memory under the lock that is still held.
        unsafe { set_addresses(id, (Some(bound), None)) };
    }
    let identifier = state.get(handle)?;
    identifier.port.as_mut().ok_or(Errno::EINVAL)?.listen(MAX_BACKLOG as c_int)?;
    let backlog = backlog.unwrap_or(MAX_BACKLOG);
    state.watch(handle)?;
    state.get(handle)?.network = NetworkState::Listening(Listener { backlog, paused_until: None });
    drop(state);
    manager.wake_thread()
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int {
    // SAFETY: `rdma_connect` requires parameters that are null or valid, and that no other thread
    // uses the identifier.
    with_manager("rdma_connect", |manager| unsafe { connect(manager, id, conn_param) })
}

/// # Safety
/// `param` is null or valid, and no other thread uses the identifier.
unsafe fn connect(
    manager: &'static Manager,
    id: *mut rdma_cm_id,
    param: *const rdma_conn_param,
) -> Result<(), Errno> {
    let device = manager.device()?;
    let now = Instant::now();
    let mut state = manager.lock();
    let guid = state.guid();
    let (handle, identifier) = state.find(id)?;
    if !identifier.is_route_resolved || !matches!(identifier.network, NetworkState::Idle) {
        return Err(Errno::EINVAL);
    }
    // SAFETY: `find` found the memory under the lock that is still held. The rest is by the
    // contract.
    let param = unsafe { CallerParams::read(id, param, &device)? };
    let private_data = [&*identifier.connect_data, &*param.private_data].concat();
    let (Some(source), Some(destination)) = identifier.addresses else { return Err(Errno::EINVAL) };
    let service = Service { space: identifier.space, source, destination };
    match identifier.space {
        PortSpace::Tcp => {
            check_len(&private_data, REQ_PRIVATE_DATA_LEN)?;
            let params = &mut identifier.params;
            params.starting_psn = Psn::new(random_u64().map_err(errno_of)? as u32).value();
            params.responder_resources = param.responder_resources.unwrap_or(device.max_responder_resources);
            params.initiator_depth = param.initiator_depth.unwrap_or(device.max_initiator_depth);
            params.retry_count = param.retry_count;
            let request = Request {
                // Set when the request is sent.
                sender: 0,
                remote_gid: [0; 16],
                service,
                transport: transport_of(identifier.qp_type),
                ack_timeout: identifier.options.ack_timeout.unwrap_or(ACK_TIMEOUT),
                traffic_class: identifier.options.traffic_class,
                params: param.to_connection_params(&identifier.params, &device, guid, private_data)?,
            };
            state.connect(handle, request, now)?;
        }
        PortSpace::Udp => {
            check_len(&private_data, SIDR_REQ_PRIVATE_DATA_LEN)?;
            state.look_up(handle, service, private_data, now)?;
        }
    }
    drop((state, param));
    manager.wake_thread()?;
    // SAFETY: `find` found the memory, and by the contract no other thread uses the identifier.
    unsafe { wait_if_synchronous(manager, id) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int {
    // SAFETY: `rdma_accept` requires parameters that are null or valid, and that no other thread
    // uses the identifier.
    with_manager("rdma_accept", |manager| unsafe { accept(manager, id, conn_param) })
}

/// # Safety
/// As for [`connect`].
unsafe fn accept(
    manager: &'static Manager,
    id: *mut rdma_cm_id,
    param: *const rdma_conn_param,
) -> Result<(), Errno> {
    let device = manager.device()?;
    let mut state = manager.lock();
    let (handle, identifier) = state.find(id)?;
    // SAFETY: `find` found the memory under the lock that is still held. The rest is by the
    // contract.
    let param = unsafe { CallerParams::read(id, param, &device)? };
    let private_data = param.private_data.clone();
    if let NetworkState::ServiceRequested(origin) = identifier.network {
        check_len(&private_data, SIDR_REP_PRIVATE_DATA_LEN)?;
        let (status, qpn, qkey) = (sidr_status::VALID, param.qpn, RDMA_UDP_QKEY);
        let reply = SidrReply { request_id: origin.key.1, status, qpn, qkey, private_data };
        state.answer_service_request(handle, origin, reply)?;
        drop(state);
        // SAFETY: `find` found the memory, and by the contract no other thread uses the identifier.
        unsafe { acknowledge_held_event(manager, id) };
        return Ok(());
    }
    if !state.awaits_answer(handle)? {
        return Err(Errno::EINVAL);
    }
    check_len(&private_data, REP_PRIVATE_DATA_LEN).inspect_err(|_| {
        // As with the kernel, the peer learns that the program cannot accept it.
        let rejection = Rejection::new(Answered::Req, reject_reason::CONSUMER_DEFINED);
        let _ = state.update_connection(handle, |connection| connection.reject(rejection, Instant::now()));
    })?;
    let guid = state.guid();
    let params = &mut state.get(handle)?.params;
    // The default is the peer's value, limited to the device's maximum.
    let (resources, depth) = (params.responder_resources, params.initiator_depth);
    params.responder_resources =
        param.responder_resources.unwrap_or(resources.min(device.max_responder_resources));
    params.initiator_depth = param.initiator_depth.unwrap_or(depth.min(device.max_initiator_depth));
    let reply = param.to_connection_params(params, &device, guid, private_data)?;
    drop((state, param));
    // SAFETY: `find` found the memory, and a queue pair that is not null is live.
    let connected =
        unsafe { if (*id).qp.is_null() { Ok(()) } else { queue_pair::connect(manager, handle, id) } };
    let mut state = manager.lock();
    // If the peer has given up meanwhile, an error in `connected` only says that the peer's queue
    // pair is gone. The call of `accept` below then returns the error.
    if state.awaits_answer(handle)? {
        connected?;
    }
    let accepted = state.update_connection(handle, |connection| connection.accept(reply, Instant::now()));
    drop(state);
    // SAFETY: `find` found the memory, and by the contract no other thread uses the identifier.
    unsafe {
        if let Err(errno) = accepted {
            // The peer has closed the connection.
            queue_pair::flush(id);
            return Err(errno);
        }
        manager.wake_thread()?;
        wait_if_synchronous(manager, id)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    // SAFETY: the call requires private data of this length, or null.
    unsafe { reject("rdma_reject", id, reject_reason::CONSUMER_DEFINED, private_data, private_data_len) }
}

/// Rejects the vendor enhancements that the request asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    let reason = reject_reason::VENDOR_OPTION_NOT_SUPPORTED;
    // SAFETY: the call requires private data of this length, or null.
    unsafe { reject("rdma_reject_ece", id, reason, private_data, private_data_len) }
}

/// # Safety
/// `data` is null or points to `length` bytes.
unsafe fn reject(call: &str, id: *mut rdma_cm_id, reason: u16, data: *const c_void, length: u8) -> c_int {
    with_manager(call, |manager| {
        // SAFETY: by the contract.
        let private_data = unsafe { copy_private_data(data, length) };
        let mut state = manager.lock();
        let (handle, identifier) = state.find(id)?;
        if let NetworkState::ServiceRequested(origin) = identifier.network {
            check_len(&private_data, SIDR_REP_PRIVATE_DATA_LEN)?;
            let reply = SidrReply::refusal(origin.key.1, sidr_status::REJECTED, private_data);
            return state.answer_service_request(handle, origin, reply);
        }
        check_len(&private_data, REJ_PRIVATE_DATA_LEN)?;
        let rejection = Rejection { private_data, ..Rejection::new(Answered::Req, reason) };
        state.update_connection(handle, |connection| connection.reject(rejection, Instant::now()))
    })
}

/// For a program that has connected its queue pair itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    with_manager("rdma_establish", |manager| {
        let mut state = manager.lock();
        let handle = state.handle(id)?;
        // SAFETY: `handle` found the memory under the lock that is still held.
        if unsafe { !(*id).qp.is_null() } {
            return Err(Errno::EINVAL);
        }
        state.update_connection(handle, Connection::establish)
    })
}

/// The program received data before the peer's RTU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int {
    with_manager("rdma_notify", |manager| {
        let mut state = manager.lock();
        let handle = state.handle(id)?;
        if event != IBV_EVENT_COMM_EST {
            return Err(Errno::EINVAL);
        }
        state.update_connection(handle, Connection::notify)
    })
}

/// Flushes the posted work requests and ends the connection.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: `rdma_disconnect` requires that no other thread uses the identifier.
    with_manager("rdma_disconnect", |manager| unsafe { disconnect(manager, id) })
}

/// # Safety
/// No other thread uses the identifier.
unsafe fn disconnect(manager: &'static Manager, id: *mut rdma_cm_id) -> Result<(), Errno> {
    let handle = manager.lock().handle(id)?;
    // SAFETY: `handle` found the memory, and a queue pair that is not null is live.
    unsafe { queue_pair::flush(id) };
    let mut state = manager.lock();
    let awaits_drep = match state.get(handle)?.network {
        // The peer has disconnected first, or the identifier was a service lookup.
        NetworkState::Closed => false,
        _ => state.update_connection(handle, |connection| {
            connection.disconnect(Instant::now()).map(|()| connection.awaits_drep())
        })?,
    };
    let expects_event = awaits_drep || state.unread_events(handle).is_some_and(|unread| unread > 0);
    drop(state);
    manager.wake_thread()?;
    // SAFETY: `handle` found the memory, and by the contract no other thread uses the identifier.
    if expects_event { unsafe { wait_if_synchronous(manager, id) } } else { Ok(()) }
}

/// The program's `rdma_conn_param`, checked.
struct CallerParams {
    private_data: Vec<u8>,
    /// `None` (RDMA_MAX_RESP_RES) stands for the device's maximum. In `accept` it stands for the
    /// peer's value, or for the device's maximum if the peer's value is greater.
    responder_resources: Option<u8>,
    /// As `responder_resources` (RDMA_MAX_INIT_DEPTH).
    initiator_depth: Option<u8>,
    retry_count: u8,
    rnr_retry_count: u8,
    /// The number of the identifier's queue pair or, without a queue pair, the number in the
    /// program's parameters.
    qpn: u32,
    flags: ConnectionFlags,
}

impl CallerParams {
    /// Null parameters stand for the defaults.
    ///
    /// # Errors
    /// `EINVAL` if a value exceeds the device's limit, or if there are neither parameters nor a
    /// queue pair.
    ///
    /// # Safety
    /// `id` is the memory of a live identifier; `param` is null or valid.
    unsafe fn read(
        id: *const rdma_cm_id,
        param: *const rdma_conn_param,
        device: &Device,
    ) -> Result<Self, Errno> {
        // Retry counts have three bits (`man rdma_connect`). The greatest value is also the
        // default.
        const MAX_RETRIES: u8 = 7;
        const DEFAULTS: rdma_conn_param = rdma_conn_param {
            private_data: ptr::null(),
            private_data_len: 0,
            responder_resources: RDMA_MAX_RESP_RES,
            initiator_depth: RDMA_MAX_INIT_DEPTH,
            flow_control: 0,
            retry_count: MAX_RETRIES,
            rnr_retry_count: MAX_RETRIES,
            srq: 0,
            qp_num: 0,
        };
        // SAFETY: by the contract; a queue pair that is not null is live.
        let (param, qp) = unsafe { (param.as_ref(), (*id).qp.as_ref()) };
        let (qpn, srq) = match (qp, param) {
            (Some(qp), _) => (qp.qp_num, !qp.srq.is_null()),
            (None, Some(param)) => (param.qp_num, param.srq != 0),
            (None, None) => return Err(Errno::EINVAL),
        };
        let param = param.unwrap_or(&DEFAULTS);
        let check = |value: u8, limit: u8, use_limit: u8| match value {
            value if value == use_limit => Ok(None),
            value if value > limit => Err(Errno::EINVAL),
            value => Ok(Some(value)),
        };
        let (resources, depth) = (device.max_responder_resources, device.max_initiator_depth);
        Ok(Self {
            // SAFETY: by the contract.
            private_data: unsafe { copy_private_data(param.private_data, param.private_data_len) },
            responder_resources: check(param.responder_resources, resources, RDMA_MAX_RESP_RES)?,
            initiator_depth: check(param.initiator_depth, depth, RDMA_MAX_INIT_DEPTH)?,
            retry_count: param.retry_count.min(MAX_RETRIES),
            rnr_retry_count: param.rnr_retry_count.min(MAX_RETRIES),
            qpn,
            flags: ConnectionFlags { flow_control: param.flow_control != 0, srq },
        })
    }

    /// Returns the body of this side's REQ or REP.
    ///
    /// # Errors
    /// `EINVAL` if the queue pair number exceeds 24 bits.
    fn to_connection_params(
        &self,
        params: &NegotiatedParams,
        device: &Device,
        guid: u64,
        private_data: Vec<u8>,
    ) -> Result<ConnectionParams, Errno> {
        if self.qpn >= 1 << 24 {
            return Err(Errno::EINVAL);
        }
        Ok(ConnectionParams {
            qpn: self.qpn,
            starting_psn: params.starting_psn,
            gid: device.gid,
            guid,
            path_mtu: device.path_mtu,
            responder_resources: params.responder_resources,
            initiator_depth: params.initiator_depth,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            flags: self.flags,
            private_data,
        })
    }
}

fn transport_of(qp_type: ibv_qp_type) -> Transport {
    match qp_type {
        IBV_QPT_UC => Transport::Unreliable,
        IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => Transport::ExtendedReliable,
        _ => Transport::Reliable,
    }
}

/// # Safety
/// `data` is null or points to `length` bytes.
unsafe fn copy_private_data(data: *const c_void, length: u8) -> Vec<u8> {
    if data.is_null() || length == 0 {
        return Vec::new();
    }
    // SAFETY: by the contract.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length.into()) }.to_vec()
}

/// # Errors
/// `EINVAL` if the private data exceeds the limit of its message.
fn check_len(private_data: &[u8], limit: usize) -> Result<(), Errno> {
    if private_data.len() > limit { Err(Errno::EINVAL) } else { Ok(()) }
}
