#![doc = include_str!("../README.md")]
#![allow(unsafe_code)] // The exported functions take pointers from C, and NICs access memory of the program.

#[cfg(not(all(
    target_os = "linux",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!(
    "mitra-libibverbs supports only glibc on x86-64 and aarch64, whose layouts it mirrors; build the workspace without it"
);

mod calls;
mod common;
#[cfg(target_arch = "x86_64")]
mod copy_nofault;
mod interpose;
#[cfg(any(test, not(target_arch = "x86_64")))]
mod process_vm;
mod program_memory;
mod rails;
mod rdmacm;
pub mod refused_entry_points;
#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;
#[cfg(test)]
#[path = "../../../fuzz/round_trip.rs"]
mod round_trip;
pub mod symbols;
mod without_cancellation;
