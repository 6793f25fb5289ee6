#![no_main]

#[path = "../properties/messages.rs"]
mod body;
#[path = "../../crates/libibverbs/src/rdmacm/protocol/message.rs"]
mod connection_manager;
#[path = "../rails.rs"]
mod rails;
#[path = "../round_trip.rs"]
mod round_trip;

libfuzzer_sys::fuzz_target!(|data: &[u8]| match data {
    [8, bytes @ ..] => rails::rendezvous::run(bytes),
    [9, bytes @ ..] => round_trip::round_trip::<connection_manager::Message>(bytes),
    data => body::run(data),
});
