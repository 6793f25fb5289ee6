//! Peers of a listener that send garbage, disconnect at once, or stay silent.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};

use mitra_libibverbs::abi::*;

use crate::cm_wrapper::*;

/// The first bytes of a REQ with an excessive length, for which the listener must not wait.
const HOSTILE_LENGTH: &[u8] = b"MiCM\x01\x01\xff\xff";

/// Waits until the manager has handled all earlier input of its sockets.
fn await_manager(port: u16) {
    let mut peer = TcpStream::connect((Ipv4Addr::LOCALHOST, socket_port(port))).expect("the port listens");
    peer.write_all(b"garbage").expect("the stream is open");
    let _ = peer.read(&mut [0]);
}

#[test]
fn garbage_closes_the_stream_and_the_listener_continues() {
    let channel = Channel::new();
    let (_, port) = Id::listening(Some(&channel), RDMA_PS_TCP, 4);
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], HOSTILE_LENGTH, &[0; 100_000]] {
        let mut peer =
            TcpStream::connect((Ipv4Addr::LOCALHOST, socket_port(port))).expect("the port listens");
        // Writing may fail, because the listener closes the stream before it has read all bytes.
        let _ = peer.write_all(garbage);
        let mut answer = Vec::new();
        let _ = peer.read_to_end(&mut answer);
        assert_eq!(answer, b"", "to {:?}", &garbage[..8]);
    }
    assert!(!channel.is_readable(0));
    let active = Id::routed(&channel, RDMA_PS_TCP, port);
    assert_eq!(active.connect(1, b""), None);
    channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
}

#[test]
fn request_of_a_vanished_peer_is_reported_and_cannot_be_accepted() {
    let channel = Channel::new();
    let (_, port) = Id::listening(Some(&channel), RDMA_PS_TCP, 4);
    let mut request = b"MiCM\x01\x01\0\x1f".to_vec();
    request.extend([[0, 0, 0, 17], [0, 0, 0, 1]].concat());
    request.extend([0; 16]);
    // Path MTU, responder resources, initiator depth, both retry counts, flags, and the length of
    // the private data.
    request.extend([3, 1, 1, 7, 7, 0, 0]);
    let mut peer = TcpStream::connect((Ipv4Addr::LOCALHOST, socket_port(port))).expect("the port listens");
    peer.write_all(&request).expect("the stream is open");
    drop(peer);
    let request_id = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    await_manager(port);
    assert!(!channel.is_readable(0));
    assert_eq!(request_id.accept(1, b""), Some(libc::EINVAL));
    assert_eq!(request_id.destroy(), None);
}

/// A stream beyond the limit waits for the end of another stream.
#[test]
fn streams_without_a_request_are_limited() {
    let channel = Channel::new();
    let (_, port) = Id::listening(Some(&channel), RDMA_PS_TCP, 4);
    let silent: Vec<TcpStream> = (0..256)
        .map(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, socket_port(port))).expect("the port listens"))
        .collect();
    let active = Id::routed(&channel, RDMA_PS_TCP, port);
    assert_eq!(active.connect(1, b""), None);
    assert!(!channel.is_readable(200));
    drop(silent);
    channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
}

#[test]
fn garbage_datagrams_are_dropped() {
    let channel = Channel::new();
    let (_, port) = Id::listening(Some(&channel), RDMA_PS_UDP, 4);
    let peer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    for garbage in [&b""[..], b"\0", HOSTILE_LENGTH, &[0; 60_000]] {
        peer.send_to(garbage, (Ipv4Addr::LOCALHOST, socket_port(port))).expect("the datagram is sent");
    }
    let active = Id::routed(&channel, RDMA_PS_UDP, port);
    assert_eq!(active.connect(0, b""), None);
    channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    peer.set_nonblocking(true).expect("the flags can be changed");
    assert!(peer.recv(&mut [0; 1]).is_err(), "garbage gets no reply");
}
