//! Two ends of a ring map one memfd.

use super::memory::MappedRing;
use super::ring::{Receiver, Record, Sender, ring_size};

const MAX_LEN: usize = 300;

fn record(len: usize) -> Record {
    Record { len, traffic_class: len as u8, is_sealed: len.is_multiple_of(3) }
}

#[test]
fn memory_is_mapped_twice_and_checked() {
    const SIZE: usize = ring_size(4096);
    let own = MappedRing::create(SIZE).unwrap();
    let duplicate = |ring: &MappedRing| ring.as_fd().unwrap().try_clone_to_owned().unwrap();
    let other = MappedRing::open(duplicate(&own), SIZE).unwrap();
    let (mut sender, mut receiver) = (Sender::new(own), Receiver::new(other, MAX_LEN));
    assert_eq!(sender.push(record(77), &[5; 77]), Ok(true));
    sender.publish();
    let mut out = [0; MAX_LEN];
    assert_eq!(receiver.pop(&mut out), Ok(Some(record(77))));
    assert_eq!(out[..77], [5; 77]);

    let ring = MappedRing::create(SIZE).unwrap();
    assert!(MappedRing::open(duplicate(&ring), 2 * SIZE).is_err(), "the file is too short");
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let unsealed = rustix::fs::memfd_create("unsealed", flags).unwrap();
    rustix::fs::ftruncate(&unsealed, SIZE as u64).unwrap();
    assert!(MappedRing::open(unsealed, SIZE).is_err(), "the owner may shorten the file");
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(MappedRing::open(file.into(), SIZE).is_err(), "the file is no memfd");
}
