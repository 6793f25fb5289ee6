#![doc = include_str!("../README.md")]

// Linking the crate exports its `#[no_mangle]` functions.
use mitra_libibverbs as _;
