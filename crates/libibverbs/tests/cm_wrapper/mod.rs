//! Declarations of the librdmacm calls, and thin wrappers for the tests.
#![allow(dead_code, reason = "each test uses some of it")]

use std::ffi::{c_int, c_void};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::BorrowedFd;
use std::ptr;

use libc::{sockaddr, sockaddr_in};
// Links the functions that this module declares.
use mitra_libibverbs as _;
use mitra_verbs_abi::*;
use nix::poll::{PollFd, PollFlags, PollTimeout};

unsafe extern "C" {
    pub fn rdma_create_event_channel() -> *mut rdma_event_channel;
    pub fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
    pub fn rdma_create_id(
        channel: *mut rdma_event_channel,
        id: *mut *mut rdma_cm_id,
        context: *mut c_void,
        ps: rdma_port_space,
    ) -> c_int;
    pub fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
    pub fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int;
    pub fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
    pub fn rdma_resolve_addr(
        id: *mut rdma_cm_id,
        src_addr: *mut sockaddr,
        dst_addr: *mut sockaddr,
        timeout_ms: c_int,
    ) -> c_int;
    pub fn rdma_set_option(
        id: *mut rdma_cm_id,
        level: c_int,
        optname: c_int,
        optval: *mut c_void,
        optlen: usize,
    ) -> c_int;
    pub fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;
    pub fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
    pub fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int;
    pub fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int;
    pub fn rdma_reject(id: *mut rdma_cm_id, private_data: *const c_void, length: u8) -> c_int;
    pub fn rdma_establish(id: *mut rdma_cm_id) -> c_int;
    pub fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
    pub fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int;
    pub fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int;
    pub fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
    pub fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16;
    pub fn rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> c_int;
    pub fn rdma_destroy_qp(id: *mut rdma_cm_id);
    pub fn rdma_init_qp_attr(id: *mut rdma_cm_id, attr: *mut ibv_qp_attr, mask: *mut c_int) -> c_int;
}

/// Returns the error of a call that returned −1.
pub fn error_of(returned: c_int) -> Option<i32> {
    match returned {
        0 => None,
        -1 => io::Error::last_os_error().raw_os_error(),
        other => panic!("the call returned {other}"),
    }
}

/// Returns the private data that the receiver gets if the sender puts `data` into a message with
/// room for `length` bytes.
pub fn padded(data: &[u8], length: usize) -> Vec<u8> {
    let mut padded = data.to_vec();
    padded.resize(length, 0);
    padded
}

/// Returns the TCP or UDP port that represents an RDMA port.
pub fn socket_port(port: u16) -> u16 {
    port ^ 1 << 13
}

pub fn local(port: u16) -> sockaddr_in {
    address(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
}

pub fn address(address: SocketAddrV4) -> sockaddr_in {
    sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
        sin_zero: [0; 8],
    }
}

#[derive(Clone, Copy)]
pub struct Channel(pub *mut rdma_event_channel);

// SAFETY: the librdmacm calls may come from any thread.
unsafe impl Send for Channel {}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Id(pub *mut rdma_cm_id);

// SAFETY: as for `Channel`.
unsafe impl Send for Id {}

#[derive(Debug)]
pub struct Event {
    pub raw: *mut rdma_cm_event,
    pub kind: rdma_cm_event_type,
    pub status: i32,
    pub id: Id,
    pub private_data: Vec<u8>,
}

impl Channel {
    pub fn new() -> Self {
        // SAFETY: the call has no preconditions.
        let channel = unsafe { rdma_create_event_channel() };
        assert!(!channel.is_null(), "{}", io::Error::last_os_error());
        Self(channel)
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open while the channel exists.
        unsafe { BorrowedFd::borrow_raw((*self.0).fd) }
    }

    /// Whether an event arrives within `ms` milliseconds.
    pub fn is_readable(&self, ms: u16) -> bool {
        let mut fds = [PollFd::new(self.fd(), PollFlags::POLLIN)];
        nix::poll::poll(&mut fds, PollTimeout::from(ms)).expect("poll succeeds") == 1
    }

    /// Reads the next event without acknowledging it.
    pub fn read(&self) -> Event {
        assert!(self.is_readable(20_000), "no event arrived within 20 s");
        let mut raw = ptr::null_mut();
        // SAFETY: the pointer for the result is valid, and the event is live until it is
        // acknowledged.
        unsafe {
            assert_eq!(error_of(rdma_get_cm_event(self.0, &raw mut raw)), None);
            let event = *raw;
            let (data, length) = (event.param.conn.private_data, event.param.conn.private_data_len);
            let private_data = match data.is_null() {
                true => Vec::new(),
                false => std::slice::from_raw_parts(data.cast(), length.into()).to_vec(),
            };
            Event { raw, kind: event.event, status: event.status, id: Id(event.id), private_data }
        }
    }

    /// Reads and acknowledges the next event, which must be of this kind.
    pub fn expect(&self, kind: rdma_cm_event_type) -> Event {
        let event = self.read();
        event.acknowledge();
        assert_eq!(event.kind, kind, "{event:?}");
        event
    }
}

impl Event {
    pub fn acknowledge(&self) {
        // SAFETY: the event comes from `rdma_get_cm_event`.
        assert_eq!(error_of(unsafe { rdma_ack_cm_event(self.raw) }), None);
    }
}

impl Id {
    /// Creates an identifier, which is synchronous if `channel` is `None`.
    pub fn new(channel: Option<&Channel>, ps: rdma_port_space) -> Self {
        let mut id = ptr::null_mut();
        let channel = channel.map_or(ptr::null_mut(), |channel| channel.0);
        // SAFETY: the pointer for the result is valid.
        let made = unsafe { rdma_create_id(channel, &raw mut id, ptr::null_mut(), ps) };
        assert_eq!(error_of(made), None);
        Self(id)
    }

    /// Creates an identifier that listens on a free loopback port, and returns the port.
    pub fn listening(channel: Option<&Channel>, ps: rdma_port_space, backlog: c_int) -> (Self, u16) {
        let id = Self::new(channel, ps);
        assert_eq!(id.bind(0), None);
        // SAFETY: the identifier is live.
        unsafe {
            assert_eq!(error_of(rdma_listen(id.0, backlog)), None);
            (id, u16::from_be(rdma_get_src_port(id.0)))
        }
    }

    /// Creates an identifier with a resolved route to a loopback port.
    pub fn routed(channel: &Channel, ps: rdma_port_space, port: u16) -> Self {
        let id = Self::new(Some(channel), ps);
        let mut to = local(port);
        // SAFETY: the identifier is live.
        unsafe {
            let resolved = rdma_resolve_addr(id.0, ptr::null_mut(), (&raw mut to).cast(), 1000);
            assert_eq!(error_of(resolved), None);
            channel.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
            assert_eq!(error_of(rdma_resolve_route(id.0, 1000)), None);
            channel.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
        }
        id
    }

    pub fn bind(&self, port: u16) -> Option<i32> {
        let mut to = local(port);
        // SAFETY: the identifier is live.
        error_of(unsafe { rdma_bind_addr(self.0, (&raw mut to).cast()) })
    }

    pub fn connect(&self, qpn: u32, private_data: &[u8]) -> Option<i32> {
        let mut param = param(qpn, private_data);
        // SAFETY: the identifier is live, and the private data outlives the call.
        error_of(unsafe { rdma_connect(self.0, &raw mut param) })
    }

    pub fn accept(&self, qpn: u32, private_data: &[u8]) -> Option<i32> {
        let mut param = param(qpn, private_data);
        // SAFETY: the identifier is live.
        error_of(unsafe { rdma_accept(self.0, &raw mut param) })
    }

    pub fn reject(&self, private_data: &[u8]) -> Option<i32> {
        let (data, length) = (private_data.as_ptr(), private_data.len() as u8);
        // SAFETY: the identifier is live.
        error_of(unsafe { rdma_reject(self.0, data.cast(), length) })
    }

    pub fn establish(&self) -> Option<i32> {
        // SAFETY: the identifier is live.
        error_of(unsafe { rdma_establish(self.0) })
    }

    pub fn disconnect(&self) -> Option<i32> {
        // SAFETY: the identifier is live.
        error_of(unsafe { rdma_disconnect(self.0) })
    }

    pub fn destroy(self) -> Option<i32> {
        // SAFETY: the call refuses an unknown identifier.
        error_of(unsafe { rdma_destroy_id(self.0) })
    }

    /// Creates a queue pair with completion queues of its own.
    pub fn create_qp(&self, qp_type: ibv_qp_type) {
        // SAFETY: `ibv_qp_init_attr` consists of integers and pointers, for which zeros are valid.
        // The identifier is live.
        unsafe {
            let mut attr: ibv_qp_init_attr = std::mem::zeroed();
            attr.qp_type = qp_type;
            attr.cap = ibv_qp_cap {
                max_send_wr: 4,
                max_recv_wr: 4,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            };
            assert_eq!(error_of(rdma_create_qp(self.0, ptr::null_mut(), &raw mut attr)), None);
        }
    }
}

fn param(qp_num: u32, private_data: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: private_data.as_ptr().cast(),
        private_data_len: private_data.len() as u8,
        responder_resources: 3,
        initiator_depth: 2,
        flow_control: 0,
        retry_count: 5,
        rnr_retry_count: 6,
        srq: 0,
        qp_num,
    }
}
