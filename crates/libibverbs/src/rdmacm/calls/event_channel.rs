//! `rdma_create_event_channel` and `rdma_destroy_event_channel`.

use std::ptr;

use crate::rdmacm::id_memory::{create_channel, destroy_channel};
use crate::rdmacm::manager::manager;
use mitra_verbs_abi::rdma_event_channel;

#[unsafe(no_mangle)]
pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    manager().and_then(create_channel).unwrap_or_else(|errno| {
        errno.set();
        ptr::null_mut()
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    if let Ok(manager) = manager() {
        destroy_channel(manager, channel);
    }
}
