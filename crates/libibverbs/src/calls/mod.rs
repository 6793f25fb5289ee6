//! The verbs, exported to C: functions, and the slots of the table that [`open_device`] fills.
//!
//! A file holds one kind of object or one group of verbs. An object that a program gets a pointer to is a box that begins with the C
//! structure ([`abi_object`]). The NIC behind the object ([`mitra_verbs::Provider`]) decides what a verb does; the files
//! here only translate.
//!
//! # Safety of the exported functions
//!
//! C calls these functions, and no library can check what it passes. They rely on what the manual pages of libibverbs demand:
//!
//! - *objects*: a pointer to an object came from the verb that creates such an object, and the object is not destroyed before or during
//!   the call. Objects are destroyed in the order that the manual pages give, so an object's context, protection domain,
//!   queues and channel outlive it.
//! - *structures*: a pointer to a structure, an array or a variable is valid for the type and the length that the manual page
//!   gives, for reading if it is an input and for writing if it is an output. It may be null only where the page says so.
//! - *exclusivity*: no two threads write one structure of the program at the same time.
//!
//! A `SAFETY:` comment that names "the contract of libibverbs" refers to these three rules.

pub(crate) mod abi_object;
pub(crate) mod ah;
pub(crate) mod async_event;
pub(crate) mod channel;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod cq_event;
pub(crate) mod cq_ex;
pub(crate) mod device;
pub(crate) mod enum_names;
pub(crate) mod fork_support;
pub(crate) mod gid_table;
pub(crate) mod mcast;
pub(crate) mod mr;
pub(crate) mod mtu;
pub(crate) mod mw;
pub(crate) mod open_device;
pub(crate) mod pd;
pub(crate) mod post;
pub(crate) mod provider_symbols;
pub(crate) mod qp;
pub(crate) mod qp_attr;
pub(crate) mod query_device;
pub(crate) mod query_port;
pub(crate) mod rates;
pub(crate) mod srq;
pub(crate) mod wr_calls;
pub(crate) mod wr_list;
