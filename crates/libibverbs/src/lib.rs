//! The C face: libibverbs' C ABI in one place; never decides what a verb does.
//!
//! - [`abi`]: every structure and constant that the programs of a RoCE device meet, with the layout of rdma-core 44.
//! - [`symbols`]: every entry point of `libibverbs.so.1` with its version node, and the linker's version script.
//! - `calls`: the verbs themselves, exported to C, over software NICs. `mitra-preload` makes libraries of them.
//! - `rdmacm`: librdmacm's calls, over ordinary sockets.
//! - `rails`: the NICs under the device, and what spans them.
//! - `memory`, `fault`: the program's memory, which it may unmap while a NIC uses it.
//! - `interpose`: calls of the C library that stand between the program and `fault`, or look for the device's file.
//!
//! Layouts are asserted at compile time where they are declared, and `tests/layout.rs` compares each with what the C
//! compiler makes of the installed headers.

#![allow(unsafe_code)] // C calls in, and the memory is the program's

#[cfg(not(all(
    target_os = "linux",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!(
    "the layouts are those of glibc on x86-64 and aarch64: build the workspace without mitra-libibverbs"
);

pub mod abi;
mod calls;
mod common;
#[cfg(target_arch = "x86_64")]
mod copy_nofault;
mod interpose;
mod memory;
#[cfg(any(test, not(target_arch = "x86_64")))]
mod process_vm;
mod rails;
mod rdmacm;
pub mod symbols;
