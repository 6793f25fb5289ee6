#![no_main]

#[path = "../properties/ring.rs"]
mod body;
#[allow(dead_code, reason = "rings need no strings")]
#[path = "../bytes.rs"]
mod bytes;
#[allow(dead_code, reason = "the property uses a part of it")]
#[path = "../../crates/softnic/src/shared_memory/ring.rs"]
mod ring;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
