//! A `repr(C)` mirror of the C ABI of libibverbs and librdmacm, as of rdma-core 44.
//!
//! Types, fields and constants carry their C names, so that the manual pages (`man ibv_post_send`) document them and a
//! reader finds them by searching; what is said here is what a mirror adds. Enumerations are integers with constants:
//! C may hand in any value, and a Rust `enum` with a foreign value is undefined behaviour.
//!
//! Byte order: fields that C calls `__be16`, `__be32` or `__be64` are plain integers holding network order.
//!
//! Structures come from the `mirror!` macro and constants from `constants!`, which also list them
//! ([`structures`], [`all_constants`]) for the test that asks the C compiler. What Mitra never offers (XRC, device
//! memory, flow steering, counters, work queues of their own) is opaque: pointers to it pass through here unread.
#![allow(non_camel_case_types, non_snake_case, reason = "names are those of C")]
#![allow(clippy::type_complexity, reason = "function pointer types stand where C has them")]

#[macro_use]
mod mirror;

pub use mirror::{Constant, Field, Structure};

/// Declares the modules and the lists over all of them, so that no module can be left out of the lists.
macro_rules! modules {
    ($($module:ident),* $(,)?) => {
        $(mod $module; pub use $module::*;)*

        /// Every mirrored structure and union.
        pub fn structures() -> impl Iterator<Item = &'static Structure> {
            [$($module::listed::STRUCTURES),*].into_iter().flatten()
        }

        /// Every mirrored constant.
        pub fn all_constants() -> impl Iterator<Item = &'static Constant> {
            [$($module::listed::CONSTANTS),*].into_iter().flatten()
        }

        /// Every type alias that stands for a C `enum`, with its size.
        pub fn enumerations() -> impl Iterator<Item = &'static (&'static str, usize)> {
            [$($module::listed::ENUMERATIONS),*].into_iter().flatten()
        }

        /// Every type of which only pointers are known here.
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
    newer_verbs,
    opaque,
    port,
    qp,
    qp_ex,
    rdma_cm,
    sa,
    srq,
    work,
);

/// What a `pthread_mutex_t` takes: the one size that differs between x86-64 (40) and aarch64 (48), and with it every
/// offset behind one.
const MUTEX: usize = size_of::<libc::pthread_mutex_t>();
