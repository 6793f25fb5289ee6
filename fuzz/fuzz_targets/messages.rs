#![no_main]

#[path = "../properties/messages.rs"]
mod body;
#[path = "../../crates/libibverbs/src/rdmacm/protocol/message.rs"]
mod connection_manager;
/// The messages of the C library between the rails of two devices, which are private to its module
/// `rendezvous`.
mod rails {
    #[allow(dead_code)]
    pub mod rendezvous {
        #[path = "../../../../crates/libibverbs/src/rails/rendezvous/device_gid.rs"]
        mod device_gid;
        #[path = "../../../../crates/libibverbs/src/rails/rendezvous/message.rs"]
        mod message;
        #[path = "../../../../crates/libibverbs/src/rails/rendezvous/reach_message.rs"]
        mod reach_message;

        pub fn run(bytes: &[u8]) {
            crate::round_trip::round_trip::<message::Message>(bytes);
        }
    }
}
#[path = "../round_trip.rs"]
mod round_trip;

libfuzzer_sys::fuzz_target!(|data: &[u8]| match data {
    [8, bytes @ ..] => rails::rendezvous::run(bytes),
    [9, bytes @ ..] => round_trip::round_trip::<connection_manager::Message>(bytes),
    data => body::run(data),
});
