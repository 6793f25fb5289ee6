//! The verbs as programs call them: exported functions and the slots of the tables, over software NICs.
//!
//! One file a kind of object. Each object that a program gets a pointer to is a box that begins with the C structure
//! ([`object`]); what a call means is decided by the NIC behind it ([`mitra_verbs::Provider`]), never here.
//!
//! Safety, once for all: the functions here are called from C. What they are given must be what the manual pages of
//! libibverbs ask for: pointers from the call that makes such an object, not destroyed since; arrays of the length that
//! goes with them; strings that end. Rust cannot check that, and neither can any libibverbs.

pub(crate) mod ah;
pub(crate) mod builder;
pub(crate) mod channel;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod cq_ex;
pub(crate) mod device;

pub(crate) mod abi_object;
pub(crate) mod events;
pub(crate) mod mcast;
pub(crate) mod mr;
pub(crate) mod mw;
pub(crate) mod pd;
pub(crate) mod post;
pub(crate) mod qp;
pub(crate) mod qp_attr;
pub(crate) mod srq;
pub(crate) mod text;
pub(crate) mod unsupported;
