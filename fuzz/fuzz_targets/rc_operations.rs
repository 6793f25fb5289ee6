#![no_main]

#[path = "../properties/rc_operations.rs"]
mod body;
#[path = "../../crates/transport/tests/common/mod.rs"]
mod common;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
