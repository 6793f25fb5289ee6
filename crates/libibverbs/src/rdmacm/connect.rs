//! Making and ending connections, and finding datagram services.

use std::ffi::{c_int, c_void};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use nix::errno::Errno;

use super::connection::Connection;
use super::device::Device;
use super::event::{complete, give_back};
use super::lookup::{Lookup, Requests};
use super::manager::{Manager, manager};
use super::message::*;
use super::queue_pair;
use super::socket::{Port, Space, errno_of};
use super::state::{Endpoint, Handle, Identifier, Listener, State, Stream};
use super::{answer, random};
use crate::abi::*;

/// As many requests may wait as `listen` says, but no more than this.
const MAX_BACKLOG: usize = 1024;

/// `rdma_listen`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    answer(listen(id, backlog))
}

fn listen(id: *mut rdma_cm_id, backlog: c_int) -> Result<(), Errno> {
    let manager = manager()?;
    let backlog = usize::try_from(backlog).ok().filter(|backlog| (1..MAX_BACKLOG).contains(backlog));
    let mut state = manager.lock();
    let (handle, identifier) = state.find(id)?;
    if let Endpoint::Unbound = identifier.endpoint {
        let bound = identifier.bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
        // SAFETY: `find` knew it.
        unsafe { super::identifier::set_addresses(id, (Some(bound), None)) };
    }
    let port = identifier.take_port()?;
    if identifier.space == Space::Tcp {
        port.share();
        if let Err(error) = port.listen(MAX_BACKLOG as c_int) {
            identifier.endpoint = Endpoint::Bound(port);
            return Err(errno_of(error));
        }
    }
    let (backlog, requests) = (backlog.unwrap_or(MAX_BACKLOG), Requests::default());
    identifier.endpoint = Endpoint::Listening(Listener { port, backlog, requests });
    state.watch(handle)?;
    drop(state);
    manager.attend()
}

/// `rdma_connect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int {
    // SAFETY: the program's identifier and parameters.
    answer(manager().and_then(|manager| unsafe { connect(manager, id, conn_param) }))
}

unsafe fn connect(
    manager: &'static Manager,
    id: *mut rdma_cm_id,
    param: *const rdma_conn_param,
) -> Result<(), Errno> {
    let device = manager.device()?;
    let now = Instant::now();
    let mut state = manager.lock();
    let (handle, identifier) = state.find(id)?;
    if !identifier.is_routed {
        return Err(Errno::EINVAL);
    }
    // SAFETY: `find` knew the identifier, and the parameters are null or the program's.
    let param = unsafe { Parameters::read(id, param, &device)? };
    let mut private_data = identifier.connect_data.clone();
    private_data.extend(&param.private_data);
    match identifier.space {
        Space::Tcp => {
            within(&private_data, REQ_PRIVATE)?;
            let terms = &mut identifier.terms;
            terms.starting_psn = random() as u32 & 0x00ff_ffff;
            terms.responder_resources = param.responder_resources(device.max_responder_resources);
            terms.initiator_depth = param.initiator_depth(device.max_initiator_depth);
            terms.retry_count = param.retry_count;
            let offer = param.offer(identifier, &device, private_data)?;
            let peer = identifier.addresses.1.ok_or(Errno::EINVAL)?;
            let port = identifier.take_port()?;
            port.share();
            port.keep_alive();
            let connection = Connection::active(offer, now);
            let mut stream = Stream { port, is_open: false, connection, listener: None };
            stream.open(peer, now);
            identifier.endpoint = Endpoint::Connected(stream);
        }
        Space::Udp => {
            within(&private_data, SIDR_REQ_PRIVATE)?;
            let inquiry = Inquiry { request_id: random(), gid: device.gid, private_data };
            let peer = identifier.addresses.1.ok_or(Errno::EINVAL)?;
            let port = identifier.take_port()?;
            if let Err(errno) = port.connect(peer) {
                identifier.endpoint = Endpoint::Bound(port);
                return Err(errno);
            }
            identifier.endpoint = Endpoint::Asking(port, Lookup::new(inquiry, now));
        }
    }
    state.watch(handle)?;
    state.settle(handle);
    drop(state);
    manager.attend()?;
    // SAFETY: as above.
    unsafe { complete(manager, id) }
}

/// `rdma_accept`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int {
    // SAFETY: the program's identifier and parameters.
    answer(manager().and_then(|manager| unsafe { accept(manager, id, conn_param) }))
}

unsafe fn accept(
    manager: &'static Manager,
    id: *mut rdma_cm_id,
    param: *const rdma_conn_param,
) -> Result<(), Errno> {
    let device = manager.device()?;
    let mut state = manager.lock();
    let (handle, identifier) = state.find(id)?;
    // SAFETY: `find` knew the identifier, and the parameters are null or the program's.
    let param = unsafe { Parameters::read(id, param, &device)? };
    let private_data = param.private_data.clone();
    if let Endpoint::Asked { listener, key } = identifier.endpoint {
        within(&private_data, SIDR_REP_PRIVATE)?;
        identifier.endpoint = Endpoint::Ended;
        let (status, qpn, qkey) = (sidr::VALID, param.qpn.ok_or(Errno::EINVAL)?, RDMA_UDP_QKEY);
        let found = Answer { request_id: key.1, status, qpn, qkey, gid: device.gid, private_data };
        state.answer(listener, key, found, Instant::now());
        drop(state);
        // SAFETY: as above.
        unsafe { give_back(manager, id) };
        return Ok(());
    }
    within(&private_data, REP_PRIVATE)?;
    let terms = &mut identifier.terms;
    // Without a word of the program, what the other side asked for and the device can.
    let (resources, depth) = (terms.responder_resources, terms.initiator_depth);
    terms.responder_resources = param.responder_resources(resources.min(device.max_responder_resources));
    terms.initiator_depth = param.initiator_depth(depth.min(device.max_initiator_depth));
    let offer = param.offer(identifier, &device, private_data)?;
    drop(state);
    // SAFETY: as above; a QP is there or null.
    unsafe {
        if !(*id).qp.is_null() {
            queue_pair::connect(manager, handle, id)?;
        }
    }
    let accepted = manager.lock().connection(handle, |connection| connection.accept(offer, Instant::now()));
    // SAFETY: as above.
    unsafe {
        if let Err(errno) = accepted {
            // The other side was quicker to go. A QP that cannot be moved is the program's to destroy.
            let _ = queue_pair::to_error(id);
            return Err(errno);
        }
        manager.attend()?;
        complete(manager, id)
    }
}

/// `rdma_reject`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    // SAFETY: the program's private data.
    let private_data = unsafe { bytes(private_data, private_data_len) };
    answer(reject(id, reason::CONSUMER_DEFINED, private_data))
}

/// `rdma_reject_ece`: because of the enhancements that were asked for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    // SAFETY: the program's private data.
    let private_data = unsafe { bytes(private_data, private_data_len) };
    answer(reject(id, reason::VENDOR_OPTION_NOT_SUPPORTED, private_data))
}

fn reject(id: *mut rdma_cm_id, reason: u16, private_data: Vec<u8>) -> Result<(), Errno> {
    let mut state = manager()?.lock();
    let (handle, identifier) = state.find(id)?;
    if let Endpoint::Asked { listener, key } = identifier.endpoint {
        within(&private_data, SIDR_REP_PRIVATE)?;
        identifier.endpoint = Endpoint::Ended;
        state.answer(listener, key, Answer::refusal(key.1, private_data), Instant::now());
        return Ok(());
    }
    within(&private_data, REJ_PRIVATE)?;
    state.connection(handle, |connection| connection.reject(Rejection { reason, private_data }))
}

/// `rdma_establish`: of a program that moved its QP itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    let establish = || {
        let mut state = manager()?.lock();
        let handle = state.handle(id)?;
        // SAFETY: `handle` knew it.
        if unsafe { !(*id).qp.is_null() } {
            return Err(Errno::EINVAL);
        }
        state.establish(handle)
    };
    answer(establish())
}

/// `rdma_notify`: data came before the other side said that it is ready.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int {
    let notify = || {
        let mut state = manager()?.lock();
        let handle = state.handle(id)?;
        if event != IBV_EVENT_COMM_EST {
            return Err(Errno::EINVAL);
        }
        state.connection(handle, Connection::notify)
    };
    answer(notify())
}

/// `rdma_disconnect`: flushes what was posted, and ends the connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the program's identifier.
    answer(manager().and_then(|manager| unsafe { disconnect(manager, id) }))
}

unsafe fn disconnect(manager: &'static Manager, id: *mut rdma_cm_id) -> Result<(), Errno> {
    let handle = manager.lock().handle(id)?;
    // A QP that cannot be moved has nothing to flush; the connection ends all the same.
    // SAFETY: `handle` knew it.
    let _ = unsafe { queue_pair::to_error(id) };
    let mut state = manager.lock();
    let has_news = match state.get(handle)?.endpoint {
        // The peer was quicker, or it is a datagram service.
        Endpoint::Ended => false,
        _ => state.connection(handle, |connection| {
            connection.disconnect(Instant::now()).map(|()| connection.awaits_the_end())
        })?,
    };
    let has_news = has_news || state.has_reports(handle)?;
    drop(state);
    manager.attend()?;
    // SAFETY: as above.
    if has_news { unsafe { complete(manager, id) } } else { Ok(()) }
}

impl State {
    /// Does something with an identifier's connection.
    fn connection<T>(
        &mut self,
        handle: Handle,
        act: impl FnOnce(&mut Connection) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let Endpoint::Connected(stream) = &mut self.get(handle)?.endpoint else { return Err(Errno::EINVAL) };
        let done = act(&mut stream.connection)?;
        self.settle(handle);
        Ok(done)
    }

    /// Says that the active side is ready.
    pub fn establish(&mut self, handle: Handle) -> Result<(), Errno> {
        self.connection(handle, Connection::establish)
    }

    /// Whether the program has something to hear of an identifier.
    fn has_reports(&mut self, handle: Handle) -> Result<bool, Errno> {
        let channel = self.get(handle)?.channel;
        Ok(self.channels.get(&channel).is_some_and(|channel| channel.count(handle) > 0))
    }
}

impl Identifier {
    /// Takes the port that it is bound to, to do something with it.
    fn take_port(&mut self) -> Result<Port, Errno> {
        match std::mem::take(&mut self.endpoint) {
            Endpoint::Bound(port) => Ok(port),
            other => {
                self.endpoint = other;
                Err(Errno::EINVAL)
            }
        }
    }
}

/// What a program says of a connection: `rdma_conn_param`, checked.
struct Parameters {
    private_data: Vec<u8>,
    /// Where the program leaves it to the device, none.
    responder_resources: Option<u8>,
    initiator_depth: Option<u8>,
    flow_control: bool,
    retry_count: u8,
    rnr_retry_count: u8,
    /// None where there is no QP and no parameters.
    qpn: Option<u32>,
    srq: bool,
}

impl Parameters {
    /// # Safety
    /// `id` is an identifier's memory; `param` is null or the program's.
    unsafe fn read(
        id: *const rdma_cm_id,
        param: *const rdma_conn_param,
        device: &Device,
    ) -> Result<Self, Errno> {
        // SAFETY: by the contract; a QP is there or null.
        let (param, qp) = unsafe { (param.as_ref(), (*id).qp.as_ref()) };
        let of_qp = qp.map(|qp| (qp.qp_num, !qp.srq.is_null()));
        // Three bits each (`man rdma_connect`); without parameters, as often as can be said.
        const RETRIES: u8 = 7;
        let Some(param) = param else {
            let (qpn, srq) = of_qp.ok_or(Errno::EINVAL)?;
            return Ok(Self {
                private_data: Vec::new(),
                responder_resources: None,
                initiator_depth: None,
                flow_control: false,
                retry_count: RETRIES,
                rnr_retry_count: RETRIES,
                qpn: Some(qpn),
                srq,
            });
        };
        let known = |value: u8, most: u8, unknown: u8| match value {
            value if value == unknown => Ok(None),
            value if value > most => Err(Errno::EINVAL),
            value => Ok(Some(value)),
        };
        let (most, depth) = (device.max_responder_resources, device.max_initiator_depth);
        let (qpn, srq) = of_qp.unwrap_or((param.qp_num, param.srq != 0));
        Ok(Self {
            // SAFETY: by the contract.
            private_data: unsafe { bytes(param.private_data, param.private_data_len) },
            responder_resources: known(param.responder_resources, most, RDMA_MAX_RESP_RES)?,
            initiator_depth: known(param.initiator_depth, depth, RDMA_MAX_INIT_DEPTH)?,
            flow_control: param.flow_control != 0,
            retry_count: param.retry_count.min(RETRIES),
            rnr_retry_count: param.rnr_retry_count.min(RETRIES),
            qpn: Some(qpn),
            srq,
        })
    }

    fn responder_resources(&self, otherwise: u8) -> u8 {
        self.responder_resources.unwrap_or(otherwise)
    }

    fn initiator_depth(&self, otherwise: u8) -> u8 {
        self.initiator_depth.unwrap_or(otherwise)
    }

    /// What this side tells the other.
    fn offer(&self, identifier: &Identifier, device: &Device, private_data: Vec<u8>) -> Result<Offer, Errno> {
        let terms = &identifier.terms;
        Ok(Offer {
            qpn: self.qpn.filter(|qpn| *qpn < 1 << 24).ok_or(Errno::EINVAL)?,
            starting_psn: terms.starting_psn,
            gid: device.gid,
            path_mtu: device.path_mtu,
            responder_resources: terms.responder_resources,
            initiator_depth: terms.initiator_depth,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            flow_control: self.flow_control,
            srq: self.srq,
            private_data,
        })
    }
}

/// Private data of a program.
///
/// # Safety
/// `data` is null or points to `length` bytes.
unsafe fn bytes(data: *const c_void, length: u8) -> Vec<u8> {
    if data.is_null() || length == 0 {
        return Vec::new();
    }
    // SAFETY: by the contract.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length.into()) }.to_vec()
}

/// Refuses more private data than the message holds.
fn within(private_data: &[u8], limit: usize) -> Result<(), Errno> {
    if private_data.len() > limit { Err(Errno::EINVAL) } else { Ok(()) }
}
