//! The C ABI of libibverbs and librdmacm (rdma-core 44) as `repr(C)` types.
//!
//! Types, fields and constants have their C names, and the manual pages document them (for instance
//! `ibv_post_send(3)`). The comments here add only what an implementation of the library must know.
//! A C enumeration is an integer type with constants, because C may pass a value that is not in the
//! enumeration, and such a value in a Rust `enum` is undefined behaviour.
//!
//! Fields that C declares as `__be16`, `__be32` or `__be64` are integers in network byte order.
//!
//! The macro `mirror!` declares all types and constants, and lists them ([`structures`],
//! [`all_constants`]) for the test that compares them with the installed C headers. Types of
//! features that Mitra does not offer (flow steering, counters, work queues) are opaque, because
//! only pointers to them occur, in the function tables [`ibv_context_ops`] and [`verbs_context`].
#![allow(non_camel_case_types, non_snake_case, reason = "names are those of C")]
#![allow(clippy::type_complexity, reason = "function pointer types stand where C has them")]

#[macro_use]
mod mirror;

pub(crate) use mirror::Zeroed;
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
