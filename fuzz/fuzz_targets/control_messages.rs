#![no_main]

#[path = "../properties/control_messages.rs"]
mod body;
#[path = "../../crates/sim/tests/vqp_pair/mod.rs"]
mod vqp_pair;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
