//! The C face: libibverbs' C ABI in one place; never decides what a verb does.
//!
//! - [`abi`]: every structure and constant that the programs of a RoCE device meet, with the layout of rdma-core 44.
//! - [`symbols`]: every entry point of `libibverbs.so.1` with its version node, and the linker's version script.
//!
//! Two users: the front end, which implements this ABI for unmodified programs, and the back end, which calls a real
//! rdma-core that it opened at run time. Nothing is exported to C yet.
//!
//! Layouts are asserted at compile time where they are declared, and `tests/layout.rs` compares each with what the C
//! compiler makes of the installed headers.

#[cfg(not(all(
    target_os = "linux",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!(
    "the layouts are those of glibc on x86-64 and aarch64: build the workspace without mitra-libibverbs"
);

pub mod abi;
mod rdmacm;
pub mod symbols;
