//! The messages of the C library's connection manager.
#![allow(dead_code)]

#[path = "../crates/libibverbs/src/rdmacm/protocol/encoding.rs"]
mod encoding;
#[path = "../crates/libibverbs/src/rdmacm/protocol/message.rs"]
mod message;

pub fn run(bytes: &[u8]) {
    let write = |(transaction, gid): &(message::Transaction, _)| encoding::encode(transaction, *gid);
    crate::round_trip::round_trip_by(bytes, encoding::decode, write);
}
