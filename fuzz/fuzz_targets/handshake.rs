#![no_main]

#[path = "../properties/handshake.rs"]
mod body;
#[path = "../../crates/handshake/src/frame.rs"]
mod frame;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
