//! Tests of the librdmacm calls, with both ends in this process.

mod families;
mod hostile_peers;
mod multicast;
mod peer_ends;
mod raw_peer;
mod recovery;
mod reports;
mod synchronous;
mod wire_format;

use std::ptr;
use std::thread;
use std::time::Duration;

use crate::cm_wrapper::*;
use mitra_verbs_abi::*;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

/// Two connected identifiers without queue pairs.
struct ConnectedPair {
    channel: Channel,
    listener: Id,
    active: Id,
    passive: Id,
}

impl ConnectedPair {
    fn new() -> Self {
        let channel = Channel::new();
        let (listener, port) = Id::listening(Some(&channel), RDMA_PS_TCP, 1);
        let active = Id::routed(&channel, RDMA_PS_TCP, port);
        assert_eq!(active.connect(17, b"hello"), None);
        let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
        let passive = request.id;
        assert_eq!(passive.accept(18, b"welcome"), None);
        let response = channel.expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
        assert_eq!((response.id, response.private_data), (active, padded(b"welcome", 196)));
        assert_eq!(active.establish(), None);
        assert_eq!(channel.expect(RDMA_CM_EVENT_ESTABLISHED).id, passive);
        Self { channel, listener, active, passive }
    }

    fn destroy(self) {
        for id in [self.active, self.passive, self.listener] {
            assert_eq!(id.destroy(), None);
        }
        // SAFETY: no identifier uses the channel any more.
        unsafe { rdma_destroy_event_channel(self.channel.0) };
    }
}

#[test]
fn request_carries_parameters_and_private_data() {
    let channel = Channel::new();
    let (listener, port) = Id::listening(Some(&channel), RDMA_PS_TCP, 1);
    let active = Id::routed(&channel, RDMA_PS_TCP, port);
    assert_eq!(active.connect(17, b"hello"), None);
    let request = channel.read();
    // SAFETY: the event is not acknowledged, so it is live.
    let (listen_id, params) = unsafe { ((*request.raw).listen_id, (*request.raw).param.conn) };
    assert_eq!((request.kind, Id(listen_id)), (RDMA_CM_EVENT_CONNECT_REQUEST, listener));
    assert_eq!(request.private_data, padded(b"hello", 56));
    // One side's initiator depth is the other side's responder resources.
    assert_eq!((params.responder_resources, params.initiator_depth), (2, 3));
    assert_eq!((params.retry_count, params.rnr_retry_count, params.qp_num), (5, 6, 17));
    // SAFETY: the identifier of the request is live until it is destroyed.
    unsafe {
        let passive = &*request.id.0;
        assert!(!passive.verbs.is_null() && !passive.pd.is_null() && passive.port_num == 1);
        assert_eq!(rdma_get_src_port(request.id.0), port.to_be());
        assert_eq!(passive.route.addr.dst.ss_family, libc::AF_INET as u16);
        assert_eq!(passive.route.num_paths, 1);
        assert_eq!((*passive.route.path_rec).mtu, 3.max((*passive.route.path_rec).mtu));
        // Both ends use the same NIC.
        assert_eq!((*passive.route.path_rec).dgid.raw, (*active.0).route.addr.addr.ibaddr.sgid.raw);
    }
    request.acknowledge();
    for id in [request.id, active, listener] {
        assert_eq!(id.destroy(), None);
    }
}

/// As with the kernel, an address and a route are resolved once.
#[test]
fn second_resolution_is_refused() {
    let channel = Channel::new();
    let (listener, port) = Id::listening(Some(&channel), RDMA_PS_TCP, 1);
    let id = Id::routed(&channel, RDMA_PS_TCP, port);
    let mut to = local(port);
    // SAFETY: the identifier is live, and the address is valid.
    unsafe {
        let again = rdma_resolve_addr(id.0, ptr::null_mut(), (&raw mut to).cast(), 1000);
        assert_eq!(error_of(again), Some(libc::EINVAL));
        assert_eq!(error_of(rdma_resolve_route(id.0, 1000)), Some(libc::EINVAL));
    }
    assert!(!channel.is_readable(0));
    assert_eq!((id.destroy(), listener.destroy()), (None, None));
}

/// A program that cannot accept a request has rejected it, as with the kernel.
#[test]
fn failed_accept_rejects_the_request() {
    let channel = Channel::new();
    let (listener, port) = Id::listening(Some(&channel), RDMA_PS_TCP, 1);
    let active = Id::routed(&channel, RDMA_PS_TCP, port);
    assert_eq!(active.connect(1, b""), None);
    let passive = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    assert_eq!(passive.accept(2, &[7; 197]), Some(libc::EINVAL), "a REP has room for 196 bytes");
    let rejected = channel.expect(RDMA_CM_EVENT_REJECTED);
    assert_eq!((rejected.id, rejected.status), (active, 28));
    assert_eq!(passive.accept(2, b""), Some(libc::EINVAL));
    assert_eq!((active.destroy(), passive.destroy(), listener.destroy()), (None, None, None));
}

#[test]
fn disconnect_is_reported_to_both_ends() {
    let ends = ConnectedPair::new();
    assert_eq!(ends.active.disconnect(), None);
    let mut ids = [
        ends.channel.expect(RDMA_CM_EVENT_DISCONNECTED).id,
        ends.channel.expect(RDMA_CM_EVENT_DISCONNECTED).id,
    ];
    ids.sort_by_key(|id| *id != ends.active);
    assert_eq!(ids, [ends.active, ends.passive]);
    // The queue pair of an end that has not disconnected stays in use.
    assert_eq!(ends.channel.expect(RDMA_CM_EVENT_TIMEWAIT_EXIT).id, ends.active);
    assert_eq!(ends.passive.disconnect(), None);
    assert_eq!(ends.channel.expect(RDMA_CM_EVENT_TIMEWAIT_EXIT).id, ends.passive);
    for id in [ends.active, ends.passive] {
        assert_eq!(id.disconnect(), None);
    }
    ends.destroy();
}

#[test]
fn destroying_an_identifier_ends_its_connection() {
    let ends = ConnectedPair::new();
    assert_eq!(ends.active.destroy(), None);
    assert_eq!(ends.channel.expect(RDMA_CM_EVENT_DISCONNECTED).id, ends.passive);
    assert_eq!(ends.active.disconnect(), Some(libc::EINVAL));
    assert_eq!(ends.active.destroy(), Some(libc::EINVAL));
}

/// For programs that modify their queue pair themselves.
#[test]
fn rdma_init_qp_attr_returns_negotiated_attributes() {
    let ends = ConnectedPair::new();
    // SAFETY: `ibv_qp_attr` consists of integers, for which zeros are valid, and the identifiers
    // are live.
    let attr = |id: Id, state| unsafe {
        let mut attr: ibv_qp_attr = std::mem::zeroed();
        attr.qp_state = state;
        let mut mask = 0;
        assert_eq!(error_of(rdma_init_qp_attr(id.0, &raw mut attr, &raw mut mask)), None);
        (attr, mask as u32)
    };
    let (active, mask) = attr(ends.active, IBV_QPS_RTR);
    let (passive, _) = attr(ends.passive, IBV_QPS_RTR);
    let rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    assert_eq!(mask, rtr | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    assert_eq!((active.dest_qp_num, passive.dest_qp_num), (18, 17));
    assert_eq!((active.max_dest_rd_atomic, passive.max_dest_rd_atomic), (2, 3));
    let (active_rts, mask) = attr(ends.active, IBV_QPS_RTS);
    let (passive_rts, _) = attr(ends.passive, IBV_QPS_RTS);
    let rts = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
    assert_eq!(mask, rts | IBV_QP_MAX_QP_RD_ATOMIC);
    assert_eq!((active.rq_psn, passive.rq_psn), (passive_rts.sq_psn, active_rts.sq_psn));
    assert_eq!((active_rts.max_rd_atomic, passive_rts.max_rd_atomic), (3, 2));
    assert_eq!((active_rts.retry_cnt, passive_rts.retry_cnt, active_rts.rnr_retry), (5, 5, 6));
    let (init, mask) = attr(ends.passive, IBV_QPS_INIT);
    assert_eq!(mask, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS);
    let remote = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    assert_eq!((init.port_num, init.qp_access_flags), (1, remote));
    ends.destroy();
}

#[test]
fn queue_pairs_of_identifiers_are_connected_and_flushed() {
    let channel = Channel::new();
    let (listener, port) = Id::listening(Some(&channel), RDMA_PS_TCP, 1);
    let active = Id::routed(&channel, RDMA_PS_TCP, port);
    active.create_qp(IBV_QPT_RC);
    // SAFETY: the queue pair is live.
    let state = |id: Id| unsafe { (*(*id.0).qp).state };
    assert_eq!(state(active), IBV_QPS_INIT);
    assert_eq!(active.connect(0, b""), None);
    let passive = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    passive.create_qp(IBV_QPT_RC);
    assert_eq!(passive.accept(0, b""), None);
    assert_eq!(state(passive), IBV_QPS_RTS);
    // The call that reads the reply connects the queue pair.
    let mut ids =
        [channel.expect(RDMA_CM_EVENT_ESTABLISHED).id, channel.expect(RDMA_CM_EVENT_ESTABLISHED).id];
    ids.sort_by_key(|id| *id != active);
    assert_eq!(ids, [active, passive]);
    assert_eq!(state(active), IBV_QPS_RTS);
    assert_eq!(passive.disconnect(), None);
    assert_eq!(state(passive), IBV_QPS_ERR);
    for id in [active, passive, listener] {
        // SAFETY: the identifiers are live. `rdma_destroy_qp` does nothing without a queue pair.
        unsafe { rdma_destroy_qp(id.0) };
        assert_eq!(id.destroy(), None);
    }
}

#[test]
fn rejection_carries_private_data() {
    let channel = Channel::new();
    let (_, port) = Id::listening(Some(&channel), RDMA_PS_TCP, 1);
    let active = Id::routed(&channel, RDMA_PS_TCP, port);
    assert_eq!(active.connect(1, b""), None);
    let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    assert_eq!(request.reject(&[7; 149]), Some(libc::EINVAL));
    assert_eq!(request.reject(&[7; 148]), None);
    let rejected = channel.expect(RDMA_CM_EVENT_REJECTED);
    assert_eq!((rejected.id, rejected.status, rejected.private_data), (active, 28, vec![7; 148]));
    assert_eq!(request.accept(1, b""), Some(libc::EINVAL));
}

#[test]
fn private_data_is_limited_as_documented() {
    let channel = Channel::new();
    let (_, port) = Id::listening(Some(&channel), RDMA_PS_TCP, 1);
    let active = Id::routed(&channel, RDMA_PS_TCP, port);
    assert_eq!(active.connect(1, &[1; 57]), Some(libc::EINVAL));
    assert_eq!(active.connect(1, &[1; 56]), None);
    let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_eq!(request.private_data, [1; 56]);
    assert_eq!(request.id.accept(1, &[2; 196]), None);
    assert_eq!(channel.expect(RDMA_CM_EVENT_CONNECT_RESPONSE).private_data, [2; 196]);
}

#[test]
fn datagram_service_is_found_or_rejected() {
    let channel = Channel::new();
    let (listener, port) = Id::listening(Some(&channel), RDMA_PS_UDP, 1);
    let active = Id::routed(&channel, RDMA_PS_UDP, port);
    assert_eq!(active.connect(0, &[3; 180]), None);
    let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_eq!(request.private_data, [3; 180]);
    request.id.create_qp(IBV_QPT_UD);
    assert_eq!(request.id.accept(0, &[4; 137]), Some(libc::EINVAL));
    assert_eq!(request.id.accept(0, &[4; 136]), None);
    let found = channel.read();
    assert_eq!((found.kind, found.id), (RDMA_CM_EVENT_ESTABLISHED, active));
    assert_eq!(found.private_data, [4; 136]);
    // SAFETY: the event is not acknowledged, so it is live. Its parameters are `ud` for a datagram
    // identifier. The queue pair is live.
    unsafe {
        let service = (*found.raw).param.ud;
        assert_eq!(service.qp_num, (*(*request.id.0).qp).qp_num);
        assert_eq!(service.qkey, RDMA_UDP_QKEY);
        assert_eq!(service.ah_attr.is_global, 1);
        assert_eq!(service.ah_attr.grh.dgid.raw, (*active.0).route.addr.addr.ibaddr.sgid.raw);
        rdma_destroy_qp(request.id.0);
    }
    found.acknowledge();
    // A second request is rejected.
    let other = Id::routed(&channel, RDMA_PS_UDP, port);
    assert_eq!(other.connect(0, b""), None);
    assert_eq!(channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id.reject(b"no"), None);
    let lost = channel.expect(RDMA_CM_EVENT_UNREACHABLE);
    assert_eq!((lost.id, lost.status, lost.private_data), (other, 2, padded(b"no", 136)));
    for id in [active, other, request.id, listener] {
        assert_eq!(id.destroy(), None);
    }
}

#[test]
fn connect_without_listener_is_rejected() {
    let channel = Channel::new();
    // An identifier is bound to the port and does not listen, so no other process can listen there.
    let holder = Id::new(Some(&channel), RDMA_PS_TCP);
    assert_eq!(holder.bind(0), None);
    // SAFETY: the identifier is live.
    let port = u16::from_be(unsafe { rdma_get_src_port(holder.0) });
    let active = Id::routed(&channel, RDMA_PS_TCP, port);
    assert_eq!(active.connect(1, b""), None);
    let refused = channel.expect(RDMA_CM_EVENT_REJECTED);
    assert_eq!((refused.id, refused.status, refused.private_data), (active, 8, vec![0; 148]));
}

#[test]
fn service_lookup_without_listener_fails() {
    let channel = Channel::new();
    let (holder, port) = Id::listening(Some(&channel), RDMA_PS_UDP, 1);
    let active = Id::routed(&channel, RDMA_PS_UDP, port);
    // A bound UDP port would accept the datagrams, so the port is released.
    assert_eq!(holder.destroy(), None);
    assert_eq!(active.connect(1, b""), None);
    let refused = channel.expect(RDMA_CM_EVENT_UNREACHABLE);
    assert_eq!((refused.id, refused.status, refused.private_data), (active, 1, vec![0; 136]));
}

/// perftest's server listens anew for each connection, and its client does not wait for the server.
#[test]
fn connect_reaches_listener_that_starts_late() {
    let channel = Channel::new();
    // On a busy machine, the retry period may pass between the two calls, but hardly twenty times.
    let reached = (0..20).any(|_| {
        let listener = Id::new(Some(&channel), RDMA_PS_TCP);
        assert_eq!(listener.bind(0), None);
        // SAFETY: the identifier is live.
        let port = u16::from_be(unsafe { rdma_get_src_port(listener.0) });
        let active = Id::routed(&channel, RDMA_PS_TCP, port);
        assert_eq!(active.connect(1, b""), None);
        // SAFETY: the identifier is live.
        assert_eq!(error_of(unsafe { rdma_listen(listener.0, 1) }), None);
        let event = channel.read();
        event.acknowledge();
        event.kind == RDMA_CM_EVENT_CONNECT_REQUEST
    });
    assert!(reached);
}

#[test]
fn bind_to_used_port_is_refused() {
    let channel = Channel::new();
    let (listener, port) = Id::listening(Some(&channel), RDMA_PS_TCP, 1);
    let second = Id::new(Some(&channel), RDMA_PS_TCP);
    assert_eq!(second.bind(port), Some(libc::EADDRINUSE));
    assert_eq!(listener.destroy(), None);
    assert_eq!(second.bind(port), None);
    assert_eq!(second.bind(0), Some(libc::EINVAL), "the identifier is bound already");
}

/// As on hardware NICs: UCX listens on the same number in RDMA_PS_TCP and in plain TCP.
#[test]
fn port_does_not_conflict_with_plain_tcp() {
    let channel = Channel::new();
    // Another process may use the number, but hardly ten times in succession.
    let free = (0..10).any(|_| {
        let (_, port) = Id::listening(Some(&channel), RDMA_PS_TCP, 1);
        std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, port)).is_ok()
    });
    assert!(free);
}

#[test]
fn destroy_waits_until_events_are_acknowledged() {
    let channel = Channel::new();
    let id = Id::new(Some(&channel), RDMA_PS_TCP);
    let mut to = local(1);
    // SAFETY: the identifier is live.
    let resolved = unsafe { rdma_resolve_addr(id.0, ptr::null_mut(), (&raw mut to).cast(), 1000) };
    assert_eq!(error_of(resolved), None);
    let event = channel.read();
    let destroyed = thread::spawn(move || {
        let id = id;
        id.destroy()
    });
    thread::sleep(Duration::from_millis(100));
    assert!(!destroyed.is_finished());
    event.acknowledge();
    assert_eq!(destroyed.join().expect("no panic"), None);
    // SAFETY: the call refuses an event that is acknowledged already.
    assert_eq!(error_of(unsafe { rdma_ack_cm_event(event.raw) }), Some(libc::EINVAL));
}

#[test]
fn non_blocking_channel_without_events_returns_eagain() {
    let channel = Channel::new();
    fcntl(channel.fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("the flags can be changed");
    let mut event = ptr::null_mut();
    // SAFETY: the pointer for the result is valid.
    let read = unsafe { rdma_get_cm_event(channel.0, &raw mut event) };
    assert_eq!(error_of(read), Some(libc::EAGAIN));
}

#[test]
fn requests_move_with_their_listener() {
    let (from, to, active_channel) = (Channel::new(), Channel::new(), Channel::new());
    let (listener, port) = Id::listening(Some(&from), RDMA_PS_TCP, 1);
    let active = Id::routed(&active_channel, RDMA_PS_TCP, port);
    assert_eq!(active.connect(1, b""), None);
    assert!(from.is_readable(20_000));
    // SAFETY: the identifier is live.
    assert_eq!(error_of(unsafe { rdma_migrate_id(listener.0, to.0) }), None);
    let request = to.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    assert_eq!(request.accept(2, b""), None);
    assert_eq!(active.destroy(), None);
    assert_eq!(to.expect(RDMA_CM_EVENT_REJECTED).id, request);
    assert!(!from.is_readable(0));
}

#[test]
fn address_of_no_interface_cannot_be_bound() {
    let id = Id::new(Some(&Channel::new()), RDMA_PS_TCP);
    // An address for documentation (RFC 5737).
    let mut foreign = address(std::net::SocketAddrV4::new([192, 0, 2, 1].into(), 0));
    // SAFETY: the identifier is live.
    let bound = unsafe { rdma_bind_addr(id.0, (&raw mut foreign).cast()) };
    assert_eq!(error_of(bound), Some(libc::EADDRNOTAVAIL));
    assert_eq!(id.bind(0), None);
}

#[test]
fn migrated_identifier_keeps_its_events() {
    let (from, to) = (Channel::new(), Channel::new());
    let (stays, moves) = (Id::new(Some(&from), RDMA_PS_TCP), Id::new(Some(&from), RDMA_PS_TCP));
    for id in [stays, moves] {
        let mut address = local(1);
        // SAFETY: the identifier is live.
        let resolved = unsafe { rdma_resolve_addr(id.0, ptr::null_mut(), (&raw mut address).cast(), 1000) };
        assert_eq!(error_of(resolved), None);
    }
    // SAFETY: the identifier is live.
    unsafe {
        assert_eq!(error_of(rdma_migrate_id(moves.0, to.0)), None);
        assert_eq!((*moves.0).channel, to.0);
    }
    assert_eq!(to.expect(RDMA_CM_EVENT_ADDR_RESOLVED).id, moves);
    assert_eq!(from.expect(RDMA_CM_EVENT_ADDR_RESOLVED).id, stays);
    assert!(!from.is_readable(0) && !to.is_readable(0));
}

#[test]
fn requests_beyond_the_backlog_are_dropped_and_repeated() {
    let (active_channel, listener_channel) = (Channel::new(), Channel::new());
    let (_, port) = Id::listening(Some(&listener_channel), RDMA_PS_TCP, 2);
    for _ in 0..3 {
        assert_eq!(Id::routed(&active_channel, RDMA_PS_TCP, port).connect(1, b""), None);
    }
    // Time for the requests to arrive, and for a repetition of the third request. The test also
    // succeeds with less time.
    thread::sleep(Duration::from_millis(700));
    for qpn in 2..5 {
        let request = listener_channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
        assert_eq!(request.accept(qpn, b""), None);
    }
    for _ in 0..3 {
        assert_eq!(active_channel.expect(RDMA_CM_EVENT_CONNECT_RESPONSE).id.establish(), None);
        listener_channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    }
    assert!(!active_channel.is_readable(0) && !listener_channel.is_readable(0));
}

#[test]
fn destroying_a_listener_rejects_waiting_requests() {
    let (active_channel, listener_channel) = (Channel::new(), Channel::new());
    let (listener, port) = Id::listening(Some(&listener_channel), RDMA_PS_TCP, 2);
    let active = Id::routed(&active_channel, RDMA_PS_TCP, port);
    assert_eq!(active.connect(1, b""), None);
    assert!(listener_channel.is_readable(20_000));
    assert_eq!(listener.destroy(), None);
    assert!(!listener_channel.is_readable(0));
    assert_eq!(active_channel.expect(RDMA_CM_EVENT_REJECTED).id, active);
}

#[test]
fn calls_in_the_wrong_state_are_refused() {
    let channel = Channel::new();
    let id = Id::new(Some(&channel), RDMA_PS_TCP);
    // SAFETY: the identifier is live.
    unsafe { assert_eq!(error_of(rdma_resolve_route(id.0, 1)), Some(libc::EINVAL)) };
    assert_eq!(id.connect(1, b""), Some(libc::EINVAL));
    assert_eq!(id.accept(1, b""), Some(libc::EINVAL));
    assert_eq!(id.reject(b""), Some(libc::EINVAL));
    assert_eq!(id.establish(), Some(libc::EINVAL));
    assert_eq!(id.disconnect(), Some(libc::EINVAL));
    let (_, port) = Id::listening(Some(&channel), RDMA_PS_TCP, 1);
    let routed = Id::routed(&channel, RDMA_PS_TCP, port);
    assert_eq!(routed.connect(1 << 24, b""), Some(libc::EINVAL), "a QPN has 24 bits");
    // The failed call has not changed the identifier.
    assert_eq!(routed.connect(1, b""), None);
    channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
}
