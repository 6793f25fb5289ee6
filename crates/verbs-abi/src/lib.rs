#![doc = include_str!("../README.md")]
#![allow(non_camel_case_types, non_snake_case, reason = "names are those of C")]
#![allow(clippy::type_complexity, reason = "function pointer types stand where C has them")]
#![allow(unsafe_code, reason = "the trait `Zeroed` is unsafe to implement, and the macro implements it")]

#[cfg(not(all(
    target_os = "linux",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!(
    "mitra-verbs-abi supports only glibc on x86-64 and aarch64, whose layouts it mirrors; build the workspace without it"
);

#[macro_use]
mod mirror;

pub use mirror::Zeroed;
pub use mirror::{Constant, Field, Structure};

/// Declares the modules, and functions that list the content of all of them.
macro_rules! modules {
    ($($module:ident),* $(,)?) => {
        $(mod $module; pub use $module::*;)*

        /// Returns every structure and union.
        pub fn structures() -> impl Iterator<Item = &'static Structure> {
            [$($module::listed::STRUCTURES),*].into_iter().flatten()
        }

        /// Returns every constant.
        pub fn all_constants() -> impl Iterator<Item = &'static Constant> {
            [$($module::listed::CONSTANTS),*].into_iter().flatten()
        }

        /// Returns every type alias of a C `enum`, with its size in bytes.
        pub fn enumerations() -> impl Iterator<Item = &'static (&'static str, usize)> {
            [$($module::listed::ENUMERATIONS),*].into_iter().flatten()
        }

        /// Returns the name of every opaque type.
        pub fn opaque_types() -> impl Iterator<Item = &'static str> {
            [$($module::listed::OPAQUE),*].into_iter().flatten().copied()
        }
    };
}

modules!(
    address,
    completion,
    context,
    device,
    device_ex,
    event,
    memory,
    extended_context,
    unsupported_types,
    port,
    qp,
    qp_ex,
    rdma_cm,
    sa_path,
    srq,
    work_request,
    xrc,
);

/// The size of `pthread_mutex_t`: 40 bytes on x86-64, 48 on aarch64. All other types have the same
/// size on both architectures, so only the offsets of fields after a mutex differ.
const MUTEX: usize = size_of::<libc::pthread_mutex_t>();
