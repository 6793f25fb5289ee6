//! Messages of peers. No bytes panic the reader. A message that parses is the same after it is
//! written and parsed again.
//!
//! The first byte chooses the type, the rest is the message. Where the kind of a message is in a
//! header with secrets or checksums, the message here is the kind and the fields that follow the
//! header. Types 8 and 9 are private to the C library, whose own tests replay them.

use std::fmt::Debug;

use mitra_failover::{BackedQpInfo, ConnectInfo, RemoteRegion, rail_negotiation, shared_backup_member};
use mitra_handshake::{read_frame, write_frame};
use mitra_txn_rdma::{Answer, Hello};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::round_trip::round_trip;

pub(crate) fn run(data: &[u8]) {
    let Some((&of, bytes)) = data.split_first() else { return };
    match of {
        0 => round_trip::<ConnectInfo>(bytes),
        1 => round_trip::<RemoteRegion>(bytes),
        2 => round_trip::<BackedQpInfo>(bytes),
        3 => round_trip::<rail_negotiation::Body>(bytes),
        4 => round_trip::<shared_backup_member::Body>(bytes),
        5 => round_trip::<mitra_filter::Message<Vec<u8>>>(bytes),
        6 => frame::<Hello>(bytes),
        7 => frame::<Answer>(bytes),
        _ => {}
    }
}

/// Reads the first frame of a stream.
fn frame<T: Serialize + DeserializeOwned + PartialEq + Debug>(mut stream: &[u8]) {
    if let Ok(message) = read_frame::<T>(&mut stream) {
        let mut written = Vec::new();
        write_frame(&mut written, &message).expect("a vector takes all bytes");
        assert_eq!(read_frame::<T>(&mut written.as_slice()).expect("a written frame is read"), message);
    }
}
