//! Completion channels.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use mitra_verbs::{CompletionChannel, Error, Provider, Result};
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::abi_object::{AbiHeader, AbiObject};
use super::context::Context;
use crate::abi::*;
use crate::common::errno::{log_failure, pointer};
use crate::common::event_queue::{EventQueue, new_event_queue};
use crate::rails::rail_set::RailSet;

/// A completion channel.
#[repr(C)]
pub(crate) struct Channel {
    header: AbiHeader<ibv_comp_channel>,
    pub(crate) source: EventSource,
    pub(crate) rails: Arc<RailSet>,
}

/// Where its events come from.
pub(crate) enum EventSource {
    /// The NIC.
    Nic(Arc<dyn CompletionChannel>),
    /// This process, of queues by their addresses: of a device with several rails.
    Process(Arc<EventQueue<usize>>),
}

impl EventSource {
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            EventSource::Nic(channel) => channel.as_fd(),
            EventSource::Process(events) => events.as_fd(),
        }
    }
}

// SAFETY: `repr(C)`, header first.
unsafe impl AbiObject for Channel {
    type C = ibv_comp_channel;
}

impl Channel {
    /// Forgets the events of a queue that goes. The NIC's own name it by a number that leads nowhere then.
    pub(crate) fn forget(&self, cq: usize) {
        if let EventSource::Process(events) = &self.source {
            events.retain(|event| *event != cq);
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    // SAFETY: an open device.
    pointer("ibv_create_comp_channel", create(unsafe { Context::of(context) }))
}

fn create(context: &Context) -> Result<*mut ibv_comp_channel> {
    let source = match &context.rails.multi_rail {
        None => EventSource::Nic(context.nic().create_completion_channel()?),
        Some(_) => EventSource::Process(Arc::new(new_event_queue()?)),
    };
    let fd = source.fd();
    // Programs expect to sleep in `ibv_get_cq_event` unless they asked for the contrary.
    fcntl(fd, FcntlArg::F_GETFL)
        .and_then(|mode| {
            fcntl(fd, FcntlArg::F_SETFL(OFlag::from_bits_retain(mode).difference(OFlag::O_NONBLOCK)))
        })
        .map_err(|e| Error::System { operation: "making a descriptor blocking", message: e.to_string() })?;
    let header = ibv_comp_channel { context: context.address(), fd: fd.as_raw_fd(), refcnt: 0 };
    Ok(Channel { header: AbiHeader::new(header), source, rails: Arc::clone(&context.rails) }.give())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: a channel.
    if unsafe { (*channel).refcnt } > 0 {
        log_failure("ibv_destroy_comp_channel", &"a completion queue still uses it; destroy that first");
        return libc::EBUSY;
    }
    // SAFETY: a channel, which the program gives back.
    drop(unsafe { Channel::take(channel) });
    0
}
