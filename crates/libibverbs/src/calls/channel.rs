//! Completion channels.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use mitra_verbs::{CompletionChannel, Error, Provider, Result};
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::abi_object::{AbiHeader, AbiObject, abi_object};
use super::context::Context;
use crate::abi::*;
use crate::common::errno::{pointer, status};
use crate::common::event_queue::{EventQueue, new_event_queue};
use crate::rails::rail_set::RailSet;

/// A completion channel, which begins with its C structure.
#[repr(C)]
pub(crate) struct Channel {
    header: AbiHeader<ibv_comp_channel>,
    pub(crate) source: EventSource,
    pub(crate) rails: Arc<RailSet>,
}

/// The source of a channel's events.
pub(crate) enum EventSource {
    /// The NIC's channel. Its events identify completion queues by the NIC's numbers.
    Nic(Arc<dyn CompletionChannel>),
    /// A queue in this process, on a device with several rails. Its events are the addresses of the program's completion queues.
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

abi_object!(Channel: ibv_comp_channel, "completion channel");

impl Channel {
    /// Removes the events of a completion queue that is being destroyed. Events of a NIC's channel need no removal, because they identify
    /// the queue by a number that `ibv_get_cq_event` no longer finds in the object table.
    pub(crate) fn remove_events(&self, cq: usize) {
        if let EventSource::Process(events) = &self.source {
            events.retain(|event| *event != cq);
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    // SAFETY: rule *objects* (module `calls`): `context` is not closed during the call.
    pointer("ibv_create_comp_channel", unsafe { Context::find_raw(context) }.and_then(create))
}

fn create(context: &Context) -> Result<*mut ibv_comp_channel> {
    let source = match &context.rails.multi_rail {
        None => EventSource::Nic(context.nic().create_completion_channel()?),
        Some(_) => EventSource::Process(Arc::new(new_event_queue()?)),
    };
    let fd = source.fd();
    // The descriptor must initially be in blocking mode, because programs expect `ibv_get_cq_event` to wait unless they set
    // `O_NONBLOCK`.
    fcntl(fd, FcntlArg::F_GETFL)
        .and_then(|mode| {
            fcntl(fd, FcntlArg::F_SETFL(OFlag::from_bits_retain(mode).difference(OFlag::O_NONBLOCK)))
        })
        .map_err(|e| Error::System { operation: "making a descriptor blocking", message: e.to_string() })?;
    let header = ibv_comp_channel { context: context.address(), fd: fd.as_raw_fd(), refcnt: 0 };
    Ok(Channel { header: AbiHeader::new(header), source, rails: Arc::clone(&context.rails) }.into_raw())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: rule *objects* (module `calls`): `channel` is a completion channel, and no other verb uses it now.
    status("ibv_destroy_comp_channel", unsafe {
        Channel::destroy(channel, |_| match (*channel).refcnt {
            0 => Ok(()),
            _ => Err(Error::Busy {
                kind: "completion channel",
                id: (*channel).fd as u32,
                user: "a completion queue",
            }),
        })
    })
}
