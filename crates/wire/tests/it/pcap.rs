//! Reading of capture files in all formats, and errors of corrupt files.

use mitra_wire::pcap::{self, FileError, Reader, Record, Step, records};

fn read(file: &[u8]) -> Result<Vec<Record<'_>>, FileError> {
    records(file).collect()
}

fn block(kind: u32, body: &[u8], big_endian: bool) -> Vec<u8> {
    let word = |value: u32| if big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
    let mut body = body.to_vec();
    body.resize(body.len().next_multiple_of(4), 0);
    let len = word(body.len() as u32 + 12);
    [&word(kind)[..], &len, &body, &len].concat()
}

/// A builder of pcapng blocks.
struct Ng {
    big_endian: bool,
}

impl Ng {
    fn words(&self, values: &[u32]) -> Vec<u8> {
        values.iter().flat_map(|v| if self.big_endian { v.to_be_bytes() } else { v.to_le_bytes() }).collect()
    }

    fn halves(&self, values: &[u16]) -> Vec<u8> {
        values.iter().flat_map(|v| if self.big_endian { v.to_be_bytes() } else { v.to_le_bytes() }).collect()
    }

    fn section(&self) -> Vec<u8> {
        block(0x0a0d_0d0a, &[self.words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX])].concat(), self.big_endian)
    }

    fn interface(&self, link: u16, snaplen: u32, options: &[u8]) -> Vec<u8> {
        block(1, &[&self.halves(&[link, 0])[..], &self.words(&[snaplen]), options].concat(), self.big_endian)
    }

    fn packet(&self, interface: u32, ticks: u64, original: u32, bytes: &[u8]) -> Vec<u8> {
        let head = self.words(&[interface, (ticks >> 32) as u32, ticks as u32, bytes.len() as u32, original]);
        block(6, &[&head[..], bytes].concat(), self.big_endian)
    }
}

#[test]
fn written_file_is_read_back() {
    let mut file = pcap::file_header().to_vec();
    file.extend_from_slice(&pcap::record_header(1_795_226_566_123_456_789, 5));
    file.extend_from_slice(b"hello");
    assert_eq!(file[..8], [0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0]);
    let expected = Record { ts_ns: 1_795_226_566_123_456_789, link: 1, original_len: 5, bytes: b"hello" };
    assert_eq!(read(&file), Ok(vec![expected]));
}

#[test]
fn classic_files_of_both_byte_orders_and_resolutions_are_read() {
    for (magic, tick_ns) in [(0xa1b2_c3d4u32, 1000), (0xa1b2_3c4d, 1)] {
        for big_endian in [false, true] {
            let word = |value: u32| if big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
            // The link type is 113. The upper bits of its field mean that frames end in a frame
            // check sequence.
            let header = [word(magic), word(0), word(0), word(0), word(65_535), word(0x2400_0071)].concat();
            let record = [word(3), word(250_000), word(2), word(1500)].concat();
            let file = [&header[..], &record, b"ab"].concat();
            let expected = Record {
                ts_ns: 3_000_000_000 + 250_000 * tick_ns,
                link: 113,
                original_len: 1500,
                bytes: b"ab",
            };
            assert_eq!(read(&file), Ok(vec![expected]));
            for len in 25..file.len() {
                assert_eq!(read(&file[..len]), Err(FileError::Truncated), "{len} bytes");
            }
            assert_eq!(read(&file[..24]), Ok(vec![]));
            assert_eq!(read(&file[..23]), Err(FileError::NotACapture));
        }
    }
    assert_eq!(read(b""), Err(FileError::NotACapture));
    assert_eq!(read(b"#!/bin/sh\n"), Err(FileError::NotACapture));
}

#[test]
fn pcapng_files_are_read() {
    for big_endian in [false, true] {
        let (ng, other) = (Ng { big_endian }, Ng { big_endian: !big_endian });
        let nanos = [&ng.halves(&[9, 1])[..], &[9, 0, 0, 0], &ng.halves(&[0, 0])].concat();
        let binary = [&ng.halves(&[9, 1])[..], &[0x80 | 10, 0, 0, 0]].concat();
        let hour = [
            &ng.halves(&[14, 8])[..],
            &if big_endian { 3600i64.to_be_bytes() } else { 3600i64.to_le_bytes() },
        ]
        .concat();
        let file = [
            ng.section(),
            ng.interface(1, 0, &[]),
            ng.interface(113, 0, &nanos),
            ng.interface(276, 0, &[binary, hour].concat()),
            block(5, b"statistics", big_endian),
            ng.packet(0, 7, 3, b"abc"),
            ng.packet(1, 7, 2000, b"abcd"),
            ng.packet(2, 1536, 1, b"a"),
            // A simple packet has no timestamp. It belongs to the first interface, whose snap
            // length 0 means that packets are complete.
            block(3, &[&ng.words(&[2])[..], b"xy"].concat(), big_endian),
            // The first word of an obsolete packet consists of a 16-bit interface number and a
            // 16-bit count of dropped packets.
            block(2, &[&ng.halves(&[1, 0])[..], &ng.words(&[0, 9, 2, 2]), b"ob"].concat(), big_endian),
            // A new section begins without interfaces and may have the other byte order. Its
            // interface has the snap length 1.
            other.section(),
            other.interface(101, 1, &[]),
            block(3, &[&other.words(&[9])[..], b"z"].concat(), !big_endian),
        ]
        .concat();
        let record = |ts_ns, link, original_len, bytes| Record { ts_ns, link, original_len, bytes };
        let expected = vec![
            record(7_000, 1, 3, &b"abc"[..]),
            record(7, 113, 2000, b"abcd"),
            record(3_601_500_000_000, 276, 1, b"a"),
            record(0, 1, 2, b"xy"),
            record(9, 113, 2, b"ob"),
            record(0, 101, 9, b"z"),
        ];
        assert_eq!(read(&file), Ok(expected));
        assert_eq!(read(&file[..file.len() - 1]), Err(FileError::Truncated));
    }
}

#[test]
fn corrupt_files_are_refused() {
    let ng = Ng { big_endian: false };
    let start = [ng.section(), ng.interface(1, 0, &[])].concat();
    let after = |more: &[u8]| records(&[&start[..], more].concat()).find_map(Result::err);
    let corrupt = |more: &[u8]| matches!(after(more), Some(FileError::Corrupt(_)));
    assert_eq!(after(&[]), None);
    assert!(corrupt(&ng.packet(1, 0, 0, b"")), "an interface that is not there");
    assert!(corrupt(&ng.words(&[6, 8, 8])), "a block shorter than its frame");
    assert!(corrupt(&ng.words(&[5, 12, 16])), "two lengths");
    assert!(corrupt(&block(6, &[0; 12], false)), "a packet block without its head");
    assert!(corrupt(&block(6, &ng.words(&[0, 0, 0, 5, 5, 0]), false)), "a frame longer than its block");
    let absurd = [&ng.halves(&[9, 1])[..], &[99, 0, 0, 0]].concat();
    assert!(corrupt(&ng.interface(1, 0, &absurd)), "10^99 ticks a second");
    assert_eq!(after(&ng.words(&[6, 0x7fff_fffc, 0])), Some(FileError::TooLong(0x7fff_fffc)));

    let mut classic = pcap::file_header().to_vec();
    classic.extend_from_slice(&pcap::record_header(0, 0xffff_ffff));
    assert_eq!(read(&classic), Err(FileError::TooLong(0xffff_ffff)));
}

#[test]
fn reader_requests_missing_bytes() {
    let mut file = pcap::file_header().to_vec();
    file.extend_from_slice(&pcap::record_header(0, 5));
    file.extend_from_slice(b"hello");
    let mut reader = Reader::new();
    assert_eq!(reader.step(&file[..3]), Ok(Step::NeedMore(24)));
    assert!(!reader.is_recognised());
    assert_eq!(reader.step(&file), Ok(Step::Skip(24)));
    assert!(reader.is_recognised());
    assert_eq!(reader.step(&file[24..30]), Ok(Step::NeedMore(16)));
    assert_eq!(reader.step(&file[24..40]), Ok(Step::NeedMore(21)));
    assert!(matches!(reader.step(&file[24..]), Ok(Step::Frame(21, _))));
}
