//! Peers that send garbage, disconnect at once, stay silent or lie.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use mitra_verbs_abi::*;

use super::raw_peer::*;
use crate::cm_wrapper::*;

/// A program that connects to a listener of this process and is accepted.
fn connect_well(channel: &Channel, port: u16) {
    let active = Id::routed(channel, RDMA_PS_TCP, port);
    assert_eq!(active.connect(1, b""), None);
    let passive = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    assert_eq!(passive.accept(2, b""), None);
    assert_eq!(channel.expect(RDMA_CM_EVENT_CONNECT_RESPONSE).id, active);
    assert_eq!((active.destroy(), passive.destroy()), (None, None));
}

#[test]
fn damaged_datagrams_are_dropped_and_the_listener_continues() {
    let channel = Channel::new();
    let (_, port) = Id::listening(Some(&channel), RDMA_PS_TCP, 1024);
    let (peer, device) = (RawPeer::new(), own_gid(Id::routed(&channel, RDMA_PS_TCP, port)));
    for garbage in [&b""[..], b"\0", &[0; DATAGRAM], &[0xff; DATAGRAM], &[1, 7, 2, 3], &[3; 512]] {
        peer.send(device, garbage);
    }
    let whole = request(7, port, peer.gid());
    for length in 0..DATAGRAM {
        peer.send(device, &whole[..length]);
    }
    // Each byte of each message is damaged, with ids that no connection has.
    for attribute in 0x0f..0x1b {
        let mut datagram = message(attribute, [9; 4], [9; 4]);
        datagram[24..].fill(attribute);
        for at in 16..DATAGRAM {
            datagram[at] ^= 0xff;
            peer.send(device, &datagram);
        }
    }
    assert!(!channel.is_readable(100), "no request is whole");
    connect_well(&channel, port);
}

#[test]
fn request_of_a_vanished_peer_is_reported_and_cannot_be_accepted() {
    let channel = Channel::new();
    let (_, port) = Id::listening(Some(&channel), RDMA_PS_TCP, 4);
    let (peer, device) = (RawPeer::new(), own_gid(Id::routed(&channel, RDMA_PS_TCP, port)));
    peer.send(device, &request(7, port, peer.gid()));
    let id = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    // A REJ with no other communication id than that of its sender, and a REQ that shows that it
    // was handled.
    peer.send(device, &message(0x12, 7u32.to_be_bytes(), [0; 4]));
    peer.send(device, &request(8, port, peer.gid()));
    let next = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    assert_eq!(id.accept(1, b""), Some(libc::EINVAL));
    assert_eq!(next.accept(1, b""), None);
    assert_eq!((id.destroy(), next.destroy()), (None, None));
}

/// A flood of requests costs no more than the backlog, and repetitions cost nothing.
#[test]
fn requests_are_limited_by_the_backlog() {
    let channel = Channel::new();
    let (_, port) = Id::listening(Some(&channel), RDMA_PS_TCP, 4);
    let (peer, device) = (RawPeer::new(), own_gid(Id::routed(&channel, RDMA_PS_TCP, port)));
    for sender in 1..500 {
        peer.send(device, &request(1 + sender % 250, port, peer.gid()));
    }
    thread::sleep(Duration::from_millis(100));
    let mut requests = Vec::new();
    while channel.is_readable(0) {
        requests.push(channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id);
    }
    assert_eq!(requests.len(), 4);
    assert!(requests.iter().all(|request| request.destroy().is_none()));
    connect_well(&channel, port);
}

/// Who does not know both communication ids of a connection cannot end it.
#[test]
fn connection_is_not_ended_by_a_stranger() {
    let channel = Channel::new();
    let (_, port) = Id::listening(Some(&channel), RDMA_PS_TCP, 4);
    let (peer, device) = (RawPeer::new(), own_gid(Id::routed(&channel, RDMA_PS_TCP, port)));
    let request = request(7, port, peer.gid());
    peer.send(device, &request);
    let passive = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    assert_eq!(passive.accept(5, b"welcome"), None);
    let reply = peer.receive_kind(0x13);
    assert_eq!(reply[24 + 12..24 + 15], [0, 0, 5], "the number of the queue pair");
    assert_eq!(&reply[24 + 36..][..7], b"welcome");
    let own = sender_of(&reply);
    peer.send(device, &message(0x14, sender_of(&request), own));
    assert_eq!(channel.expect(RDMA_CM_EVENT_ESTABLISHED).id, passive);
    let stranger = RawPeer::new();
    for (sender, receiver) in [([0, 0, 0, 8], own), (sender_of(&request), [9; 4]), ([0; 4], own)] {
        for attribute in [0x15, 0x16] {
            stranger.send(device, &message(attribute, sender, receiver));
        }
    }
    // The requester of an established connection knows the id of this end.
    peer.send(device, &message(0x12, sender_of(&request), [0; 4]));
    assert!(!channel.is_readable(100));
    // The answer to a DREQ for an unknown connection is a DREP.
    assert_eq!(stranger.receive()[17], 0x16);
    peer.send(device, &message(0x15, sender_of(&request), own));
    assert_eq!(channel.expect(RDMA_CM_EVENT_DISCONNECTED).id, passive);
    assert_eq!(peer.receive_kind(0x16)[28..32], sender_of(&request));
    assert_eq!(passive.destroy(), None);
}

/// A requester repeats its REQ, and follows the MTU that the peer asks for. The peer then rejects
/// it.
#[test]
fn request_is_repeated_with_the_mtu_of_the_peer() {
    let channel = Channel::new();
    let peer = RawPeer::new();
    let active = Id::routed(&channel, RDMA_PS_TCP, peer.listen_as_itself());
    assert_eq!(active.connect(6, b"hello"), None);
    let device = own_gid(active);
    let first = peer.receive_kind(0x10);
    assert_eq!(peer.receive_kind(0x10), first, "a REQ without an answer is repeated");
    let mtu = first[24 + 50] >> 4;
    let mut rejection = message(0x12, [0; 4], sender_of(&first));
    rejection[24 + 9] = 1 << 1; // the length of the information
    rejection[24 + 11] = 26;
    rejection[24 + 12] = mtu - 1;
    peer.send(device, &rejection);
    while peer.receive_kind(0x10)[24 + 50] >> 4 == mtu {}
    rejection[24 + 11] = 28;
    rejection[24 + 84..][..2].copy_from_slice(b"no");
    peer.send(device, &rejection);
    let rejected = channel.expect(RDMA_CM_EVENT_REJECTED);
    assert_eq!((rejected.id, rejected.status, rejected.private_data), (active, 28, padded(b"no", 148)));
    assert_eq!(active.destroy(), None);
}

/// What listens at the port is no program of Mitra's: it says nothing, something else, or closes
/// the stream. The connection neither fails by it nor occupies the manager.
#[test]
fn foreign_listeners_do_not_disturb_the_manager() {
    let channel = Channel::new();
    let (_, port) = Id::listening(Some(&channel), RDMA_PS_TCP, 4);
    let foreign = [b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), b"MiCM".to_vec(), Vec::new()];
    for answer in foreign {
        let active = Id::routed(&channel, RDMA_PS_TCP, RawPeer::listen(answer));
        assert_eq!(active.connect(1, b""), None);
        // As without a listener.
        let rejected = channel.expect(RDMA_CM_EVENT_REJECTED);
        assert_eq!((rejected.id, rejected.status), (active, 8));
    }
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let silent = socket_port(silent.local_addr().expect("the socket is bound").port());
    let waiting = Id::routed(&channel, RDMA_PS_TCP, silent);
    assert_eq!(waiting.connect(1, b""), None);
    connect_well(&channel, port);
    assert!(!channel.is_readable(0));
    assert_eq!(waiting.destroy(), None);
}

/// Streams at a listening port are answered and closed, so that idle ones cost nothing.
#[test]
fn questions_are_answered_at_once() {
    let channel = Channel::new();
    let (_, port) = Id::listening(Some(&channel), RDMA_PS_TCP, 4);
    let device = own_gid(Id::routed(&channel, RDMA_PS_TCP, port));
    let address = SocketAddr::from((IpAddr::from(Ipv4Addr::LOCALHOST), socket_port(port)));
    let mut streams: Vec<TcpStream> =
        (0..300).map(|_| TcpStream::connect(address).expect("the port listens")).collect();
    for stream in &mut streams {
        // The listener reads nothing.
        let _ = stream.write_all(&[0; 1000]);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        // A stream whose bytes were not read is reset, which may take the answer with it.
        assert!(answer.is_empty() || answer == answer_of(device), "{answer:?}");
    }
    let mut quiet = TcpStream::connect(address).expect("the port listens");
    let mut answer = Vec::new();
    quiet.read_to_end(&mut answer).expect("the stream ends");
    assert_eq!(answer, answer_of(device));
    connect_well(&channel, port);
}
