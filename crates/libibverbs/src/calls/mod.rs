//! The verbs for C programs. Some are exported functions. The others are called through the tables
//! that [`open_device`], [`cq_ex`] and [`wr_calls`] fill.
//!
//! Each file contains one kind of object or one group of verbs. An object to which programs hold
//! pointers is in a slot that begins with the C structure ([`abi_object`]), and every verb checks
//! that the object exists. The files only translate between C and Rust: an object of the device
//! ([`rails::device`](crate::rails::device)) executes a verb.
//!
//! # Safety of the exported functions
//!
//! The library cannot check whether the pointers of a C program are valid. The functions rely on
//! three rules, which follow from the manual pages of libibverbs:
//!
//! - *objects*: a pointer to an object came from the verb that creates such an object, and the
//!   object is not destroyed during the call, except by the call itself. Objects are destroyed in
//!   the order that the manual pages demand, so an object's context, protection domain, queues and
//!   channel outlive the object.
//! - *structures*: a pointer to a structure, an array or a variable is valid for the type and the
//!   length that the manual page specifies, for reading if it is an input and for writing if it is
//!   an output. It may be null only where the manual page allows it.
//! - *exclusivity*: while a verb writes a structure of the program, no other thread of the program
//!   accesses the fields that the verb writes.
//!
//! A `SAFETY:` comment that relies on a rule gives its name.

pub(crate) mod abi_object;
pub(crate) mod ah;
pub(crate) mod async_event;
pub(crate) mod bind_mw;
pub(crate) mod channel;
pub(crate) mod completed_events;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod cq_event;
pub(crate) mod cq_ex;
pub(crate) mod device;
pub(crate) mod dm;
pub(crate) mod enum_names;
pub(crate) mod fork_support;
pub(crate) mod gid_table;
pub(crate) mod mcast;
pub(crate) mod mr;
pub(crate) mod mtu;
pub(crate) mod mw;
pub(crate) mod null_mr;
pub(crate) mod on_demand;
pub(crate) mod open_device;
pub(crate) mod parent_domain;
pub(crate) mod pd;
pub(crate) mod post;
pub(crate) mod provider_symbols;
pub(crate) mod qp;
pub(crate) mod qp_attr;
pub(crate) mod query_device;
pub(crate) mod query_port;
pub(crate) mod rates;
pub mod refused;
pub(crate) mod srq;
pub(crate) mod wr_builder;
pub(crate) mod wr_calls;
pub(crate) mod xrc_recv_qp;
pub(crate) mod xrcd;
