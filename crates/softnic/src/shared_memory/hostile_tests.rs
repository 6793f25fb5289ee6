//! A NIC whose peers of the same user are hostile.

use std::cell::RefCell;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mitra_verbs::{Gid, Provider};

use super::memory::{MappedRing, NewRing};
use super::rendezvous::{self, Accepted, Connection, Found, Secret};
use super::ring::{Record, RingMemory, Sender};
use super::{MAX_ARRIVING_OF_PROCESS, MAX_LINKS, RING};
use crate::{Config, Links, SoftNic};

struct Nic {
    nic: Arc<SoftNic>,
    gid: Gid,
}

impl Nic {
    fn open() -> Nic {
        let nic = SoftNic::open(Config { links: Links::Auto, ..Config::loopback() }).unwrap();
        Nic { gid: nic.address().into(), nic }
    }

    fn counter(&self, name: &str) -> u64 {
        self.nic.counters().iter().find(|counter| counter.name == name).unwrap().value
    }

    fn incoming(&self) -> usize {
        self.nic.shared().lock().unwrap().links.incoming_count()
    }

    fn accepted(&self) -> u64 {
        self.counter("rx_links")
    }

    fn arriving(&self) -> usize {
        self.nic.shared().lock().unwrap().links.arriving.len()
    }

    fn unproved(&self) -> usize {
        self.nic.shared().lock().unwrap().links.unproved.len()
    }

    fn wait(&self, description: &str, holds: impl Fn(&Nic) -> bool) {
        let started = Instant::now();
        while !holds(self) {
            assert!(started.elapsed() < Duration::from_secs(60), "{description}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A NIC of another address, without a progress thread.
struct Peer {
    gid: Gid,
    listener: OwnedFd,
    /// The NIC's connection, and its secret.
    proof: RefCell<Option<(Connection, Secret)>>,
}

impl Peer {
    fn new(last: u8) -> Peer {
        let process = std::process::id().to_be_bytes();
        let gid = Gid::from(IpAddr::from([127, 255, process[3], last]));
        Peer { gid, listener: rendezvous::listen(gid).unwrap(), proof: RefCell::default() }
    }

    /// Makes a link, and proves its address.
    fn link(&self, nic: &Nic) -> (Connection, MappedRing) {
        let (connection, ring) = self.unproved_link(nic, RING);
        connection.send_proof(self.secret(nic)).unwrap();
        (connection, ring)
    }

    fn unproved_link(&self, nic: &Nic, size: usize) -> (Connection, MappedRing) {
        let connection = Connection::open(nic.gid).unwrap();
        let NewRing { ring, file, .. } = MappedRing::create(size, size).unwrap();
        connection.send_hello(self.gid, Secret::new().unwrap(), &file).unwrap();
        (connection, ring)
    }

    /// Returns the secret that the NIC has told this peer.
    fn secret(&self, nic: &Nic) -> Secret {
        let mut proof = self.proof.borrow_mut();
        if let Some((_, secret)) = &*proof {
            return *secret;
        }
        let accepted = RefCell::new(Accepted::Nothing);
        nic.wait("the NIC connects", |_| {
            accepted.replace(rendezvous::accept(&self.listener).unwrap());
            !matches!(*accepted.borrow(), Accepted::Nothing)
        });
        let Accepted::Connection(connection) = accepted.into_inner() else { panic!("another user connects") };
        let hello = RefCell::new(Found::Nothing);
        nic.wait("the hello", |_| {
            hello.replace(connection.receive_hello());
            !matches!(*hello.borrow(), Found::Nothing)
        });
        let Found::Some(hello) = hello.into_inner() else { panic!("the NIC closes the connection") };
        *proof = Some((connection, hello.secret));
        hello.secret
    }
}

fn is_closed(connection: &Connection) -> bool {
    matches!(connection.receive(), Found::Closed)
}

#[test]
fn silent_connections_are_bounded() {
    let nic = Nic::open();
    let connections: Vec<_> =
        (0..3 * MAX_ARRIVING_OF_PROCESS).filter_map(|_| Connection::open(nic.gid).ok()).collect();
    assert!(connections.len() > MAX_ARRIVING_OF_PROCESS);
    nic.wait("connections are accepted", |nic| nic.arriving() == MAX_ARRIVING_OF_PROCESS);
    let peer = Peer::new(1);
    let _link = peer.link(&nic);
    nic.wait("a link among them", |nic| nic.incoming() == 1);
    drop(connections);
    nic.wait("the connections are closed", |nic| nic.arriving() == 0);
}

#[test]
fn links_are_bounded() {
    let nic = Nic::open();
    let peers: Vec<Peer> = (100..=100 + MAX_LINKS as u8).map(Peer::new).collect();
    let mut links = Vec::new();
    for (peer, count) in peers[1..].iter().zip(1..) {
        links.push(peer.link(&nic));
        nic.wait("a link", |nic| nic.incoming() == count);
    }
    let (refused, _ring) = peers[0].unproved_link(&nic, RING);
    nic.wait("the link is refused", |_| is_closed(&refused));
    assert_eq!(nic.incoming(), MAX_LINKS);
    drop(links);
    nic.wait("the links are removed", |nic| nic.incoming() == 0);
}

/// A peer that makes links again and again has one. What it sent by the others before is read.
#[test]
fn link_replaces_the_earlier_one_of_its_peer() {
    let nic = Nic::open();
    let peer = Peer::new(2);
    let mut links = Vec::new();
    for count in 1..=3 * MAX_LINKS as u64 {
        let (connection, ring) = peer.link(&nic);
        let mut sender = Sender::new(ring);
        assert_eq!(sender.push(Record { len: 3, traffic_class: 0, is_sealed: false }, &[0; 3]), Ok(true));
        sender.publish();
        connection.wake_peer().unwrap();
        nic.wait("the datagram", |nic| nic.counter("rx_shared_memory") == count);
        links.push((connection, sender));
        nic.wait("the earlier link is closed", |nic| nic.incoming() == 1);
    }
}

/// The ring names an address under which nobody listens.
#[test]
fn link_of_an_address_without_a_listener_is_refused() {
    let nic = Nic::open();
    let Peer { gid, listener, .. } = Peer::new(3);
    drop(listener);
    let connection = Connection::open(nic.gid).unwrap();
    let NewRing { file, .. } = MappedRing::create(RING, RING).unwrap();
    connection.send_hello(gid, Secret::new().unwrap(), &file).unwrap();
    nic.wait("the link is refused", |_| is_closed(&connection));
    assert_eq!(nic.incoming(), 0);
}

/// Who states the address of another process does not learn the secret that the NIC tells it.
#[test]
fn link_without_the_secret_of_its_address_is_refused() {
    let nic = Nic::open();
    let owner = Peer::new(9);
    let (_own, _ring) = owner.link(&nic);
    nic.wait("the link of the owner", |nic| nic.incoming() == 1);
    let impostor = Peer { gid: owner.gid, listener: owner.listener.try_clone().unwrap(), ..Peer::new(10) };
    let (connection, ring) = impostor.unproved_link(&nic, RING);
    connection.wake_peer().unwrap();
    connection.send_proof(Secret::new().unwrap()).unwrap();
    // Both are one process, of which the later hello counts.
    nic.wait("the hello of the impostor", |nic| nic.unproved() == 1);
    // The owner links again. Its proof arrives behind that of the impostor.
    let (_again, again) = owner.link(&nic);
    nic.wait("the next link of the owner", |nic| nic.accepted() == 2);
    assert!(Sender::new(again).is_accepted() && !Sender::new(ring).is_accepted());
}

/// One process states the same address again and again. The NIC keeps one link, which waits for its
/// proof, and opens no ring.
#[test]
fn unproved_links_of_a_process_are_bounded() {
    let nic = Nic::open();
    let peer = Peer::new(11);
    let links: Vec<_> = (0..40).map(|_| peer.unproved_link(&nic, RING)).collect();
    // The order in which the hellos arrive is not that of the links.
    let open = || links.iter().filter(|(connection, _)| !is_closed(connection)).collect::<Vec<_>>();
    nic.wait("the other links are closed", |_| open().len() == 1);
    open()[0].0.send_proof(peer.secret(&nic)).unwrap();
    nic.wait("the link", |nic| nic.incoming() == 1);
    assert_eq!(nic.accepted(), 1);
}

#[test]
fn ring_of_another_size_is_refused() {
    let nic = Nic::open();
    let peer = Peer::new(4);
    let (connection, _ring) = peer.unproved_link(&nic, RING / 2);
    connection.send_proof(peer.secret(&nic)).unwrap();
    nic.wait("the link is refused", |_| is_closed(&connection));
    assert_eq!(nic.incoming(), 0);
}

/// The progress thread never sleeps, because one peer sends without a pause.
#[test]
fn busy_nic_accepts_links_and_notices_their_end() {
    let nic = Nic::open();
    let peers = [Peer::new(7), Peer::new(8)];
    let (busy, ring) = peers[0].link(&nic);
    let mut sender = Sender::new(ring);
    let mut flood_until = |incoming: usize| {
        let started = Instant::now();
        while nic.incoming() != incoming {
            assert!(started.elapsed() < Duration::from_secs(60), "{incoming} links");
            for _ in 0..100 {
                // A full ring changes nothing.
                let _ = sender.push(Record { len: 3, traffic_class: 0, is_sealed: false }, &[0; 3]);
                if sender.publish() {
                    busy.wake_peer().unwrap();
                }
            }
        }
    };
    flood_until(1);
    let (other, _ring) = peers[1].link(&nic);
    flood_until(2);
    drop(other);
    flood_until(1);
}

/// A datagram that is no packet is counted. A header that is no header closes the link, and no
/// other.
#[test]
fn damaged_ring_is_closed() {
    let nic = Nic::open();
    let peers = [Peer::new(5), Peer::new(6)];
    let (good, ring) = peers[0].link(&nic);
    let mut sender = Sender::new(ring);
    let (bad, damaged) = peers[1].link(&nic);
    nic.wait("both links", |nic| nic.incoming() == 2);
    for value in [1, u64::MAX, 1 << 62] {
        // The first header.
        damaged.store(128, value);
    }
    bad.wake_peer().unwrap();
    nic.wait("the link is closed", |nic| nic.incoming() == 1);
    assert_eq!(nic.counter("rx_malformed"), 1);
    let record = |len| Record { len, traffic_class: 0, is_sealed: false };
    assert_eq!(sender.push(record(60), &[0xff; 60]), Ok(true));
    assert_eq!(sender.push(record(3), &[0; 3]), Ok(true));
    sender.publish();
    good.wake_peer().unwrap();
    nic.wait("the datagrams are counted", |nic| nic.counter("rx_shared_memory") == 2);
    assert_eq!(nic.counter("rx_malformed"), 3);
}
