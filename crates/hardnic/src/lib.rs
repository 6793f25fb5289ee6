#![doc = include_str!("../README.md")]
#![allow(unsafe_code, reason = "the crate calls a C library, which gets pointers to objects and memory")]

mod address_handle;
mod async_events;
mod channel;
mod completions;
mod context;
mod device_list;
mod faults;
mod gid_table;
mod hard_nic;
mod interface_events;
mod library;
mod link;
mod objects;
mod open;
mod port;
mod post;
mod qp;
mod qp_attributes;
mod reaper;
mod source;
mod sysfs;
mod table;
mod verbs;
mod work_ids;

pub use device_list::{Device, Refusal, devices};
pub use faults::check_fault;
pub use hard_nic::HardNic;
pub use library::{LibraryError, Linker, support_fork, use_own_namespace};
pub use open::{OpenError, qualifications_file};
pub use source::HardNics;
