//! A capture file: every frame of it decodes or is refused, and reading it in small pieces gives
//! the same frames.

use mitra_wire::frame::{Frame, LinkType};
use mitra_wire::icrc::verify_frame;
use mitra_wire::pcap::{FileError, Reader, Step, records};
use mitra_wire::{ICRC_LEN, Packet};

pub(crate) fn run(data: &[u8]) {
    let mut whole = Vec::new();
    let mut failure = None;
    for record in records(data) {
        match record {
            Ok(record) => whole.push(record),
            Err(error) => failure = Some(error),
        }
    }
    for record in &whole {
        let Some(link) = LinkType::from_number(record.link) else { continue };
        let Ok(frame) = Frame::parse(link, record.bytes) else { continue };
        verify_frame(&frame);
        if let Some((covered, _)) = frame.datagram.split_last_chunk::<ICRC_LEN>() {
            let _ = Packet::parse(covered).map(|packet| packet.to_string());
        }
    }

    // The reader sees only as much as it asks for.
    let (mut reader, mut at, mut window, mut seen) = (Reader::new(), 0, 0, 0);
    let end = loop {
        let visible = &data[at..data.len().min(at + window)];
        match reader.step(visible) {
            Ok(Step::Skip(n)) => {
                assert!(0 < n && n <= visible.len());
                (at, window) = (at + n, 0);
            }
            Ok(Step::Frame(n, record)) => {
                assert!(0 < n && n <= visible.len());
                assert_eq!(Some(&record), whole.get(seen));
                seen += 1;
                (at, window) = (at + n, 0);
            }
            Ok(Step::NeedMore(n)) => {
                assert!(n > visible.len(), "asks for what it has");
                if at + window >= data.len() {
                    break match (reader.is_recognised(), visible.is_empty()) {
                        (false, _) => Some(FileError::NotACapture),
                        (true, true) => None,
                        (true, false) => Some(FileError::Truncated),
                    };
                }
                window = n;
            }
            Err(error) => break Some(error),
        }
    };
    assert_eq!(seen, whole.len());
    assert_eq!(end, failure);
}
