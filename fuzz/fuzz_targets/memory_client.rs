#![no_main]

#[path = "../properties/memory_client.rs"]
mod body;
#[path = "../bytes.rs"]
mod bytes;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
