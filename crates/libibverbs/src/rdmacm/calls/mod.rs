//! The exported functions of librdmacm.

mod addrinfo;
mod connect;
mod device_list;
mod endpoint;
mod event;
mod event_channel;
mod identifier;
mod multicast;
mod queue_pair;
mod resolve;
pub mod unsupported;

use std::ffi::c_int;

use nix::errno::Errno;

use super::manager::{Manager, manager};
use super::return_code::return_code;

/// [`return_code`] for a call that needs the manager.
fn with_manager(call: &str, execute: impl FnOnce(&'static Manager) -> Result<(), Errno>) -> c_int {
    return_code(call, || manager().and_then(execute))
}
