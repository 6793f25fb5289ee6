//! What strangers send: counted, dropped, memory untouched.

mod common;

use std::net::{SocketAddr, UdpSocket};

use common::{End, asleep_until, pair};
use mitra_verbs::*;
use mitra_wire::{IcrcPath, Message, Packet, ROCE_PORT, Reth, Transport};
use nix::sys::socket::{setsockopt, sockopt};

/// A socket of somebody else on this machine, and its path to a NIC.
struct Stranger {
    socket: UdpSocket,
    path: IcrcPath,
}

impl Stranger {
    fn at(from: SocketAddr, to: &End) -> Stranger {
        let socket = UdpSocket::bind(from).unwrap();
        let to = SocketAddr::new(to.ip(), ROCE_PORT);
        socket.connect(to).unwrap();
        let path = IcrcPath::new(socket.local_addr().unwrap(), to);
        Stranger { socket, path }
    }

    fn send(&self, datagram: &[u8]) {
        self.socket.send(datagram).unwrap();
    }

    fn sealed(&self, packet: &Packet<'_>, ident: u16) -> Vec<u8> {
        let mut datagram = Vec::new();
        packet.emit_to(&mut datagram);
        datagram.extend_from_slice(&[0; 4]);
        self.path.seal(&mut datagram, ident);
        datagram
    }
}

/// A WRITE that the queue pair would execute if it came from its peer.
fn write<'a>(to: &End, payload: &'a [u8]) -> Packet<'a> {
    let remote = to.mr.remote(0);
    let reth = Reth { va: remote.addr, rkey: remote.rkey.0, len: payload.len() as u32 };
    let psn = to.nic.query_qp(to.qp).unwrap().rq_psn;
    Packet::new(Transport::Rc, to.qp, psn, Message::WriteOnly(reth), payload)
}

#[test]
fn damaged_malformed_and_foreign_packets_are_counted_and_dropped() {
    let (a, b) = pair();
    let stranger = Stranger::at("127.200.1.1:0".parse().unwrap(), &b);
    let good = stranger.sealed(&write(&b, &[7; 8]), 0);

    // Foreign: right in all but its sender.
    stranger.send(&good);
    asleep_until("the foreign packet", || b.counter("drop_foreign_source") == 1);

    // Damaged: every byte in turn.
    for at in 0..good.len() {
        let mut damaged = good.clone();
        damaged[at] ^= 0x10;
        stranger.send(&damaged);
    }
    asleep_until("the damaged packets", || b.counter("rx_datagrams") == 1 + good.len() as u64);
    // Byte 4 of the BTH is not covered: it may change on the way.
    assert_eq!(b.counter("rx_icrc_bad"), good.len() as u64 - 1);
    assert_eq!(b.counter("drop_foreign_source"), 2);

    // Malformed: too short for a packet, or sealed well but not a packet.
    let mut sent = 0;
    for len in 0..16 {
        stranger.send(&good[..len]);
        sent += 1;
    }
    for opcode in [0x15, 0x3f, 0x81, 0xff] {
        let mut unknown = good.clone();
        unknown[0] = opcode;
        stranger.path.seal(&mut unknown, 0);
        stranger.send(&unknown);
        sent += 1;
    }
    asleep_until("the malformed packets", || b.counter("rx_malformed") == sent);

    assert!(b.bytes(0, 64).iter().all(|&byte| byte == 0));
    assert_eq!(b.nic.query_qp(b.qp).unwrap().state, QpState::Rts);
    a.memory.store(0, 5);
    a.post(1, SendOp::Write(b.mr.remote(0)), 0, 8);
    a.success();
    assert_eq!(b.memory.load(0), 5);
}

#[test]
fn every_length_and_content_is_survived() {
    let (a, b) = pair();
    let stranger = Stranger::at("127.200.1.2:0".parse().unwrap(), &b);
    let mut random = 0x1234_5678_9abc_def1_u64;
    let mut datagram = vec![0; 9000];
    let mut sent = 0;
    for round in 0..500 {
        for byte in &mut datagram {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            *byte = random as u8;
        }
        let len = round * 17 % datagram.len();
        // Version and opcode as they should be half of the time: that gets further in.
        if round % 2 == 0 {
            (datagram[0], datagram[1]) = (round as u8 % 0x18, datagram[1] & 0xf0);
        }
        stranger.path.seal(&mut datagram[..len], 0);
        stranger.send(&datagram[..len]);
        sent += 1;
        if sent % 50 == 0 {
            asleep_until("the NIC", || b.counter("rx_datagrams") == sent);
        }
    }
    a.post(1, SendOp::Write(b.mr.remote(0)), 0, 8);
    a.success();
    assert!(b.bytes(64, 4096).iter().all(|&byte| byte == 0));
}

#[test]
fn a_peer_whose_kernel_counts_identifications_is_solved_for() {
    // A socket that allows fragments, as soft-RoCE's packets come: the kernel counts the identification up. Connected UDP sockets
    // do so even with "don't fragment", from a random start.
    let b = End::new(common::open(mitra_softnic::Config::loopback()));
    let ip = "127.200.1.3".parse().unwrap();
    b.connect_to(Gid::from(std::net::IpAddr::V4(ip)), Qpn::new(0x11), common::Link::default());
    let peer = Stranger::at(SocketAddr::new(ip.into(), ROCE_PORT), &b);
    // What this test seals is what the receiver solves for: its socket does not see what the kernel wrote.
    for (i, ident) in [5000, 5001, 9999, 64, 0, 1].into_iter().enumerate() {
        let word = [i as u8 + 1; 8];
        peer.send(&peer.sealed(&write(&b, &word), ident));
        asleep_until("the write", || b.memory.load(0) == u64::from_ne_bytes(word));
    }
    assert_eq!(b.counter("rx_icrc_solved"), 3);
    assert_eq!(b.counter("rx_icrc_bad"), 0);
}

#[test]
fn runs_from_a_stranger_are_taken_apart() {
    let b = End::new(common::open(mitra_softnic::Config::loopback()));
    let ip = "127.200.1.4".parse().unwrap();
    b.connect_to(Gid::from(std::net::IpAddr::V4(ip)), Qpn::new(0x11), common::Link::default());
    let peer = Stranger::at(SocketAddr::new(ip.into(), ROCE_PORT), &b);
    // Four writes in one piece, the third damaged: two are executed, the fourth is out of sequence.
    let mut run = Vec::new();
    let first = b.nic.query_qp(b.qp).unwrap().rq_psn;
    for i in 0..4 {
        let word = [i as u8 + 1; 8];
        let mut packet = write(&b, &word);
        packet.psn = first.add(i);
        run.extend(peer.sealed(&packet, i as u16));
    }
    let len = run.len() / 4;
    run[2 * len + 30] ^= 1;
    setsockopt(&peer.socket, sockopt::UdpGsoSegment, &(len as i32)).expect("a kernel with UDP_SEGMENT");
    peer.send(&run);
    asleep_until("the run", || b.counter("rx_datagrams") == 4);
    assert_eq!((b.counter("rx_icrc_bad"), b.counter("messages_executed")), (1, 2));
    assert_eq!(b.memory.load(0), u64::from_ne_bytes([2; 8]));
}
