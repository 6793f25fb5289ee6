//! Who speaks to a listener without being a connection manager.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};

use mitra_libibverbs::abi::*;

use crate::ends::*;

/// The first bytes of a REQ, with a length that must not be waited for.
const HOSTILE_LENGTH: &[u8] = b"MiCM\x01\x01\xff\xff";

#[test]
fn noise_is_hung_up_on_and_the_listener_goes_on() {
    let channel = Channel::new();
    let (_, port) = Id::listening(Some(&channel), RDMA_PS_TCP, 4);
    for noise in [&b"GET / HTTP/1.1\r\n\r\n"[..], HOSTILE_LENGTH, &[0; 100_000]] {
        let mut stranger = TcpStream::connect((Ipv4Addr::LOCALHOST, ordinary(port))).expect("it listens");
        // What it does not read it refuses.
        let _ = stranger.write_all(noise);
        let mut answer = Vec::new();
        let _ = stranger.read_to_end(&mut answer);
        assert_eq!(answer, b"", "to {:?}", &noise[..8]);
    }
    assert!(!channel.is_readable(0));
    let active = Id::routed(&channel, RDMA_PS_TCP, port);
    assert_eq!(active.connect(1, b""), None);
    channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
}

/// A whole REQ, and gone: the program hears of both.
#[test]
fn who_asks_and_leaves_at_once_is_reported() {
    let channel = Channel::new();
    let (_, port) = Id::listening(Some(&channel), RDMA_PS_TCP, 4);
    let mut request = b"MiCM\x01\x01\0\x1f".to_vec();
    request.extend([[0, 0, 0, 17], [0, 0, 0, 1]].concat());
    request.extend([0; 16]);
    // Path MTU, resources, depth, both retry counts, flags, and no private data.
    request.extend([3, 1, 1, 7, 7, 0, 0]);
    let mut stranger = TcpStream::connect((Ipv4Addr::LOCALHOST, ordinary(port))).expect("it listens");
    stranger.write_all(&request).expect("it reads");
    drop(stranger);
    let asked = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    assert_eq!(channel.expect(RDMA_CM_EVENT_REJECTED).id, asked);
    assert_eq!(asked.accept(1, b""), Some(libc::EINVAL));
    assert_eq!(asked.destroy(), None);
}

/// Silent streams are bounded: the ones too many are closed at once, and those who speak still get through when some have gone.
#[test]
fn silent_streams_do_not_pile_up() {
    let channel = Channel::new();
    let (_, port) = Id::listening(Some(&channel), RDMA_PS_TCP, 4);
    let mut silent: Vec<TcpStream> = (0..257)
        .map(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, ordinary(port))).expect("it listens"))
        .collect();
    let closed = silent.last_mut().expect("there are some").read(&mut [0]);
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    drop(silent);
    // Each attempt counts as one of them until it has spoken, so the first ones may be turned away.
    let connected = (0..100).any(|_| {
        let active = Id::routed(&channel, RDMA_PS_TCP, port);
        assert_eq!(active.connect(1, b""), None);
        let event = channel.read();
        event.acknowledge();
        event.kind == RDMA_CM_EVENT_CONNECT_REQUEST
    });
    assert!(connected);
}

#[test]
fn datagrams_that_ask_for_nothing_are_dropped() {
    let channel = Channel::new();
    let (_, port) = Id::listening(Some(&channel), RDMA_PS_UDP, 4);
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("can bind");
    for noise in [&b""[..], b"\0", HOSTILE_LENGTH, &[0; 60_000]] {
        stranger.send_to(noise, (Ipv4Addr::LOCALHOST, ordinary(port))).expect("can send");
    }
    let active = Id::routed(&channel, RDMA_PS_UDP, port);
    assert_eq!(active.connect(0, b""), None);
    channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    stranger.set_nonblocking(true).expect("can change flags");
    assert!(stranger.recv(&mut [0; 1]).is_err(), "nobody answers noise");
}
