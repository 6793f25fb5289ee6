#![no_main]

#[path = "../properties/region_files.rs"]
mod body;
#[path = "../bytes.rs"]
mod bytes;
#[path = "../memory_files.rs"]
mod memory_files;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
