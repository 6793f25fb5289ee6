//! The messages of the C library between the rails of two devices.
#![allow(dead_code)]

#[path = "../crates/libibverbs/src/rails/rendezvous/device_gid.rs"]
mod device_gid;
#[path = "../crates/libibverbs/src/rails/rendezvous/message.rs"]
mod message;
#[path = "../crates/libibverbs/src/rails/rendezvous/reach_message.rs"]
mod reach_message;
#[path = "../crates/libibverbs/src/rails/rendezvous/terms.rs"]
mod terms;

pub fn run(bytes: &[u8]) {
    crate::round_trip::round_trip::<message::Message>(bytes);
}
