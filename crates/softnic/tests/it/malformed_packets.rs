//! Malformed, damaged and foreign packets: the NIC counts and drops them without access to memory.

use std::net::{SocketAddr, UdpSocket};

use crate::common::{Endpoint, connected_pair, loopback, sleep_until};
use mitra_prng::Prng;
use mitra_verbs::*;
use mitra_wire::{IcrcPath, Message, Packet, ROCE_PORT, Reth, Transport};
use nix::sys::socket::{setsockopt, sockopt};

/// A UDP socket that sends raw packets to a NIC.
struct RawSender {
    socket: UdpSocket,
    path: IcrcPath,
}

impl RawSender {
    fn bind(from: SocketAddr, to: &Endpoint) -> RawSender {
        let socket = UdpSocket::bind(from).unwrap();
        let to = SocketAddr::new(to.ip(), ROCE_PORT);
        socket.connect(to).unwrap();
        let path = IcrcPath::new(socket.local_addr().unwrap(), to);
        RawSender { socket, path }
    }

    fn send(&self, datagram: &[u8]) {
        self.socket.send(datagram).unwrap();
    }

    /// Emits a packet with its ICRC for an IPv4 identification.
    fn sealed(&self, packet: &Packet<'_>, ident: u16) -> Vec<u8> {
        let mut datagram = Vec::new();
        packet.emit_to(&mut datagram);
        datagram.extend_from_slice(&[0; 4]);
        self.path.seal(&mut datagram, ident);
        datagram
    }
}

/// Returns a WRITE that the queue pair would execute if its peer sent it.
fn write_packet<'a>(to: &Endpoint, payload: &'a [u8]) -> Packet<'a> {
    let remote = to.mr.remote(0);
    let reth = Reth { va: remote.addr, rkey: remote.rkey.0, len: payload.len() as u32 };
    let psn = to.nic.query_qp(to.qp).unwrap().rq_psn;
    Packet::new(Transport::Rc, to.qp, psn, Message::WriteOnly(reth), payload)
}

#[test]
fn damaged_malformed_and_foreign_packets_are_counted_and_dropped() {
    let (a, b) = connected_pair();
    let sender = RawSender::bind("127.200.1.1:0".parse().unwrap(), &b);
    let good = sender.sealed(&write_packet(&b, &[7; 8]), 0);

    // Foreign: valid except for the sender's address.
    sender.send(&good);
    sleep_until("the foreign packet", || b.counter("drop_foreign_source") == 1);

    // Damaged: one bit of each byte in turn.
    for at in 0..good.len() {
        let mut damaged = good.clone();
        damaged[at] ^= 0x10;
        sender.send(&damaged);
    }
    sleep_until("the damaged packets", || b.counter("rx_datagrams") == 1 + good.len() as u64);
    // The ICRC does not cover byte 4 of the BTH, which a switch may change. A packet with a change
    // there is counted as foreign.
    assert_eq!(b.counter("rx_icrc_bad"), good.len() as u64 - 1);
    assert_eq!(b.counter("drop_foreign_source"), 2);

    // Malformed: too short for a packet, or an unknown opcode with a valid ICRC.
    let mut sent = 0;
    for len in 1..16 {
        sender.send(&good[..len]);
        sent += 1;
    }
    for opcode in [0x15, 0x3f, 0x81, 0xff] {
        let mut unknown = good.clone();
        unknown[0] = opcode;
        sender.path.seal(&mut unknown, 0);
        sender.send(&unknown);
        sent += 1;
    }
    sleep_until("the malformed packets", || b.counter("rx_malformed") == sent);

    assert!(b.bytes(0, 64).iter().all(|&byte| byte == 0));
    assert_eq!(b.nic.query_qp(b.qp).unwrap().state, QpState::Rts);
    a.memory.store(0, 5);
    a.post(1, SendOp::Write(b.mr.remote(0)), 0, 8);
    a.wait_success();
    assert_eq!(b.memory.load(0), 5);
}

/// By an empty datagram, a NIC of this host asks whether the process of another NIC lives.
#[test]
fn empty_datagram_is_no_malformed_packet() {
    let (_a, b) = connected_pair();
    let sender = RawSender::bind("127.200.1.3:0".parse().unwrap(), &b);
    for datagram in [&[][..], &[0]] {
        sender.send(datagram);
    }
    sleep_until("the short packet", || b.counter("rx_malformed") > 0);
    assert_eq!((b.counter("rx_malformed"), b.counter("rx_datagrams")), (1, 2));
}

#[test]
fn random_datagrams_of_every_length_do_no_harm() {
    let (a, b) = connected_pair();
    let sender = RawSender::bind("127.200.1.2:0".parse().unwrap(), &b);
    let mut prng = Prng::new(1);
    let mut datagram = vec![0; 9000];
    let mut sent = 0;
    for round in 0..500 {
        for word in datagram.chunks_exact_mut(8) {
            word.copy_from_slice(&prng.bits().to_ne_bytes());
        }
        let len = round * 17 % datagram.len();
        // Every other datagram has a valid version and opcode, to reach the code after the header
        // checks.
        if round % 2 == 0 {
            (datagram[0], datagram[1]) = (round as u8 % 0x18, datagram[1] & 0xf0);
        }
        sender.path.seal(&mut datagram[..len], 0);
        sender.send(&datagram[..len]);
        sent += 1;
        if sent % 50 == 0 {
            sleep_until("the NIC", || b.counter("rx_datagrams") == sent);
        }
    }
    a.post(1, SendOp::Write(b.mr.remote(0)), 0, 8);
    a.wait_success();
    assert!(b.bytes(64, 4096).iter().all(|&byte| byte == 0));
}

#[test]
fn idents_of_counting_sender_are_solved() {
    // Some senders count the IPv4 identification up: soft-RoCE, a socket that allows fragments, and
    // (from a random start) a connected UDP socket, even with the "don't fragment" flag.
    let b = Endpoint::new(crate::common::open(loopback()));
    let ip = "127.200.1.3".parse().unwrap();
    b.connect_to(Gid::from(std::net::IpAddr::V4(ip)), Qpn::new(0x11), crate::common::LinkAttr::default());
    let peer = RawSender::bind(SocketAddr::new(ip.into(), ROCE_PORT), &b);
    // The receiver solves for the identification in the ICRC. The identification that the kernel
    // writes into the IP header is not visible to the receiving socket.
    for (i, ident) in [5000, 5001, 9999, 64, 0, 1].into_iter().enumerate() {
        let word = [i as u8 + 1; 8];
        peer.send(&peer.sealed(&write_packet(&b, &word), ident));
        sleep_until("the write", || b.memory.load(0) == u64::from_ne_bytes(word));
    }
    assert_eq!(b.counter("rx_icrc_solved"), 3);
    assert_eq!(b.counter("rx_icrc_bad"), 0);
}

#[test]
fn gso_run_of_raw_sender_is_split() {
    let b = Endpoint::new(crate::common::open(loopback()));
    let ip = "127.200.1.4".parse().unwrap();
    b.connect_to(Gid::from(std::net::IpAddr::V4(ip)), Qpn::new(0x11), crate::common::LinkAttr::default());
    let peer = RawSender::bind(SocketAddr::new(ip.into(), ROCE_PORT), &b);
    // Four WRITEs in one GSO run, the third damaged. The NIC executes the first two and drops the
    // fourth as out of sequence.
    let mut run = Vec::new();
    let first = b.nic.query_qp(b.qp).unwrap().rq_psn;
    for i in 0..4 {
        let word = [i as u8 + 1; 8];
        let mut packet = write_packet(&b, &word);
        packet.psn = first.add(i);
        run.extend(peer.sealed(&packet, i as u16));
    }
    let len = run.len() / 4;
    run[2 * len + 30] ^= 1;
    setsockopt(&peer.socket, sockopt::UdpGsoSegment, &(len as i32)).expect("a kernel with UDP_SEGMENT");
    peer.send(&run);
    sleep_until("the run", || b.counter("rx_datagrams") == 4);
    assert_eq!((b.counter("rx_icrc_bad"), b.counter("messages_executed")), (1, 2));
    assert_eq!(b.memory.load(0), u64::from_ne_bytes([2; 8]));
}
