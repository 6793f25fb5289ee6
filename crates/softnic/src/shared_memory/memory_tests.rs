//! Two ends of a ring map one memfd.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use mitra_verbs::{Gid, Time};

use super::memory::{MappedRing, NewRing};
use super::rendezvous::{self, Accepted, Found};
use super::ring::{Receiver, Record, RingMemory, Sender, WRAPS_UNTIL_BUSY, limit_within, ring_size};
use super::{MAX_CONNECT_TIME, OutgoingLink, RING, Route, SharedMemoryLinks};
use crate::Links;

const MAX_LEN: usize = 300;
const PAGE: usize = 4096;

fn record(len: usize) -> Record {
    Record { len, traffic_class: len as u8, is_sealed: len.is_multiple_of(3) }
}

/// Returns the bytes of the pages that a memfd has.
fn allocated(file: &OwnedFd) -> usize {
    rustix::fs::fstat(file).unwrap().st_blocks as usize * 512
}

#[test]
fn memory_is_mapped_twice_and_checked() {
    const SIZE: usize = ring_size(4096);
    let NewRing { ring, file, .. } = MappedRing::create(SIZE, SIZE).unwrap();
    let other = MappedRing::open(file, SIZE).unwrap();
    let (mut sender, mut receiver) = (Sender::new(ring), Receiver::new(other, MAX_LEN));
    assert_eq!(sender.push(record(77), &[5; 77]), Ok(true));
    sender.publish();
    let mut out = [0; MAX_LEN];
    assert_eq!(receiver.pop(&mut out), Ok(Some(record(77))));
    assert_eq!(out[..77], [5; 77]);

    let NewRing { file, .. } = MappedRing::create(SIZE, SIZE).unwrap();
    assert!(MappedRing::open(file, 2 * SIZE).is_err(), "the file is too short");
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let unsealed = rustix::fs::memfd_create("unsealed", flags).unwrap();
    rustix::fs::ftruncate(&unsealed, SIZE as u64).unwrap();
    assert!(MappedRing::open(unsealed, SIZE).is_err(), "the owner may shorten the file");
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(MappedRing::open(file.into(), SIZE).is_err(), "the file is no memfd");
}

/// A ring has pages for what it holds, grows when it is full, and gives the pages back, except that
/// of the header word which the receiver reads next.
#[test]
fn pages_follow_the_use_of_the_ring() {
    const SIZE: usize = ring_size(1 << 20);
    const FIRST: usize = 2 * PAGE;
    let NewRing { ring, file, .. } = MappedRing::create(SIZE, FIRST).unwrap();
    let other = MappedRing::open(file.try_clone().unwrap(), SIZE).unwrap();
    let (mut sender, mut receiver) = (Sender::new(ring), Receiver::new(other, MAX_LEN));
    assert!(sender.shrink(limit_within(FIRST)).unwrap().is_some());
    let mut out = [0; MAX_LEN];
    // Many times around the pages that it has.
    for _ in 0..500 {
        assert_eq!(sender.push(record(MAX_LEN), &[7; MAX_LEN]), Ok(true));
        sender.publish();
        assert_eq!(receiver.pop(&mut out), Ok(Some(record(MAX_LEN))));
    }
    assert_eq!(allocated(&file), FIRST);
    // The receiver reads nothing. The first growth may come too late for this turn of the ring.
    let mut unread = 0;
    for pages in [8, 16] {
        while unread == 0 || !sender.outgrows(MAX_LEN) {
            match sender.push(record(MAX_LEN), &[8; MAX_LEN]) {
                Ok(true) => unread += 1,
                Ok(false) if sender.outgrows(MAX_LEN) => {}
                full => {
                    assert_eq!(full, Ok(false));
                    sender.publish();
                    for _ in 0..std::mem::take(&mut unread) {
                        assert_eq!(receiver.pop(&mut out), Ok(Some(record(MAX_LEN))));
                    }
                }
            }
        }
        sender.memory().allocate(FIRST, pages * PAGE).unwrap();
        sender.grow(limit_within(FIRST + pages * PAGE));
        assert_eq!(allocated(&file), FIRST + pages * PAGE);
    }
    sender.publish();
    assert!(unread > (FIRST + 8 * PAGE) / 2 / MAX_LEN);
    assert_eq!(sender.shrink(limit_within(FIRST)), Ok(None), "the receiver has not read all");
    for _ in 0..unread {
        assert_eq!(receiver.pop(&mut out), Ok(Some(record(MAX_LEN))));
        assert_eq!(out, [8; MAX_LEN]);
    }
    let kept = sender.shrink(limit_within(FIRST)).unwrap().unwrap();
    sender.memory().free(FIRST, kept);
    let expected = if kept < FIRST { FIRST } else { FIRST + PAGE };
    assert_eq!(allocated(&file), expected);
    assert!(receiver.is_empty());
    for byte in 0..100 {
        assert_eq!(sender.push(record(MAX_LEN), &[byte; MAX_LEN]), Ok(true));
        sender.publish();
        assert_eq!(receiver.pop(&mut out), Ok(Some(record(MAX_LEN))));
        assert_eq!(out, [byte; MAX_LEN]);
    }
    assert_eq!(allocated(&file), expected);
    assert_eq!(sender.memory().len(), SIZE);
}

/// The receiver reads each record at once.
#[test]
fn ring_in_use_outgrows_its_busy_limit() {
    const SIZE: usize = ring_size(1 << 20);
    const FIRST: usize = 2 * PAGE;
    const BUSY: usize = 8 * PAGE;
    let NewRing { ring, file, .. } = MappedRing::create(SIZE, FIRST).unwrap();
    let other = MappedRing::open(file.try_clone().unwrap(), SIZE).unwrap();
    let (mut sender, mut receiver) = (Sender::new(ring), Receiver::new(other, MAX_LEN));
    assert!(sender.shrink(limit_within(FIRST)).unwrap().is_some());
    sender.set_busy_limit(limit_within(BUSY));
    let (mut out, mut len) = ([0; MAX_LEN], FIRST);
    for sent in 0..500 {
        while !sender.push(record(MAX_LEN), &[7; MAX_LEN]).unwrap() {
            assert!(
                sent > WRAPS_UNTIL_BUSY as usize * (FIRST / 2 / MAX_LEN),
                "a burst adds no pages: {sent}"
            );
            assert!(sender.outgrows(MAX_LEN), "{sent}");
            sender.memory().allocate(len, 2 * PAGE).unwrap();
            len += 2 * PAGE;
            sender.grow(limit_within(len));
        }
        sender.publish();
        assert_eq!(receiver.pop(&mut out), Ok(Some(record(MAX_LEN))));
    }
    assert_eq!(allocated(&file), BUSY);
}

/// The receiver reads each datagram at once, so no ring becomes full. A rail that carries nothing
/// but heartbeats does not need the pages of a stream.
#[test]
fn only_a_stream_makes_a_ring_busy() {
    let gid = |last: u8| Gid::from(IpAddr::from([127, 253, std::process::id().to_be_bytes()[3], last]));
    let (own, peer) = (gid(1), gid(2));
    let listener = rendezvous::listen(peer).unwrap();
    for (pause, is_stream) in [(Duration::from_millis(10), false), (Duration::from_millis(1), true)] {
        let mut link = OutgoingLink::open(own, peer).unwrap();
        let Ok(Accepted::Connection(connection)) = rendezvous::accept(&listener) else { panic!("no link") };
        let Found::Some(hello) = connection.receive_hello() else { panic!("no hello") };
        let mut receiver = Receiver::new(MappedRing::open(hello.memory, RING).unwrap(), PAGE);
        let (mut now, mut out) = (Time::from_nanos(1_000_000_000), [0; PAGE]);
        for _ in 0..1000 {
            assert_eq!(link.push(now, record(PAGE), &[7; PAGE]), Ok(true));
            link.publish().unwrap();
            assert_eq!(receiver.pop(&mut out), Ok(Some(record(PAGE))));
            now += pause;
        }
        assert_eq!(link.idle_at().is_some(), is_stream, "the ring has pages to give back");
    }
}

/// A thread that polls leaves its processor to the progress threads from the first datagram for a
/// peer until the peer has accepted the link, or for [`MAX_CONNECT_TIME`].
#[test]
fn link_is_being_made_until_its_receiver_accepts() {
    let gid = |last: u8| Gid::from(IpAddr::from([127, 254, std::process::id().to_be_bytes()[3], last]));
    let (own, peer) = (gid(1), gid(2));
    let listener = rendezvous::listen(peer).unwrap();
    let mut links = SharedMemoryLinks::open(own, Links::SharedMemory).unwrap();
    let now = Time::from_nanos(1_000_000_000);
    assert!(!links.is_connecting(now));
    assert!(matches!(links.route(peer, now), Route::Later));
    assert!(links.is_connecting(now) && !links.is_connecting(now + MAX_CONNECT_TIME));
    let connected = links.take_chore().unwrap().run();
    links.finish(connected, now);
    assert!(!links.has_chore() && links.is_connecting(now), "the receiver has not accepted the link");
    let Ok(Accepted::Connection(connection)) = rendezvous::accept(&listener) else { panic!("no connection") };
    let Found::Some(hello) = connection.receive_hello() else { panic!("no hello") };
    Receiver::new(MappedRing::open(hello.memory, RING).unwrap(), MAX_LEN).accept();
    assert!(!links.is_connecting(now));
}
