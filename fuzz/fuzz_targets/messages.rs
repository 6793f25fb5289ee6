#![no_main]

#[path = "../properties/messages.rs"]
mod body;
#[path = "../connection_manager.rs"]
mod connection_manager;
#[path = "../rails.rs"]
mod rails;
#[path = "../round_trip.rs"]
mod round_trip;

libfuzzer_sys::fuzz_target!(|data: &[u8]| match data {
    [8, bytes @ ..] => rails::rendezvous::run(bytes),
    [9, bytes @ ..] => connection_manager::run(bytes),
    data => body::run(data),
});
