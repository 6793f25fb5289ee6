//! The messages of the handshake between a process and a memory node. No bytes panic the reader. A
//! frame that is read in pieces is the same frame, and no byte behind the frame is read. A message
//! that parses is the same after it is written and parsed again.
//!
//! The first byte chooses the type. The rest is the stream, or the encoded connection parameters.

use std::fmt::Debug;
use std::io::Read;

use mitra_consensus_memory::{Hello, Welcome};
use mitra_failover::{ConnectInfo, RemoteRegion};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::frame::{read_frame, write_frame};

pub(crate) fn run(data: &[u8]) {
    let Some((&kind, stream)) = data.split_first() else { return };
    match kind % 4 {
        0 => {
            if let Some(hello) = frame::<Hello>(stream) {
                connect_info(&hello.info);
            }
        }
        1 => {
            if let Some(welcome) = frame::<Welcome>(stream) {
                connect_info(&welcome.info);
                welcome
                    .regions
                    .iter()
                    .flat_map(|grant| [&grant.read, &grant.write])
                    .flatten()
                    .for_each(|key| remote_region(key));
            }
        }
        2 => connect_info(stream),
        _ => remote_region(stream),
    }
}

/// Reads the first frame of a stream.
fn frame<T: Serialize + DeserializeOwned + PartialEq + Debug>(stream: &[u8]) -> Option<T> {
    let mut rest = stream;
    let whole = read_frame::<T>(&mut rest);
    let in_pieces = read_frame::<T>(&mut OneByte(stream));
    assert_eq!(whole.as_ref().ok(), in_pieces.as_ref().ok());
    let read = whole.ok()?;
    let len = u32::from_le_bytes(*stream.first_chunk().expect("a frame has a length"));
    assert_eq!(stream.len() - rest.len(), 4 + len as usize);
    let mut written = Vec::new();
    write_frame(&mut written, &read).expect("a vector takes all bytes");
    assert_eq!(read_frame::<T>(&mut written.as_slice()).expect("a written frame is read"), read);
    Some(read)
}

fn connect_info(bytes: &[u8]) {
    if let Ok(info) = ConnectInfo::decode(bytes) {
        assert_eq!(ConnectInfo::decode(&info.encode()).as_ref(), Ok(&info));
    }
}

fn remote_region(bytes: &[u8]) {
    if let Ok(region) = RemoteRegion::decode(bytes) {
        assert_eq!(RemoteRegion::decode(&region.encode()).as_ref(), Ok(&region));
    }
}

/// A stream that brings one byte at a time.
struct OneByte<'a>(&'a [u8]);

impl Read for OneByte<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let len = out.len().min(1);
        self.0.read(&mut out[..len])
    }
}
