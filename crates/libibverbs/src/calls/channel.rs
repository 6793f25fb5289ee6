//! Completion channels.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use mitra_verbs::{CompletionChannel, Error, Provider, Result};
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::abi_object::{AbiHeader, AbiObject};
use super::context::Context;
use super::cq::Cq;
use crate::abi::*;
use crate::common::errno::{log_failure, minus_one, pointer};
use crate::common::event_queue::{EventQueue, wait_for_event};
use crate::rails::Rails;

/// A completion channel.
#[repr(C)]
pub(crate) struct Channel {
    face: AbiHeader<ibv_comp_channel>,
    pub(crate) source: Source,
    rails: Arc<Rails>,
}

/// Where its events come from.
pub(crate) enum Source {
    /// The NIC.
    Nic(Arc<dyn CompletionChannel>),
    /// This process, of queues by their addresses: of a device with several rails.
    Own(Arc<EventQueue<usize>>),
}

impl Source {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Source::Nic(channel) => channel.as_fd(),
            Source::Own(events) => events.fd(),
        }
    }
}

// SAFETY: `repr(C)`, face first.
unsafe impl AbiObject for Channel {
    type C = ibv_comp_channel;
}

impl Channel {
    /// Forgets the events of a queue that goes. The NIC's own name it by a number that leads nowhere then.
    pub(crate) fn forget(&self, cq: usize) {
        if let Source::Own(events) = &self.source {
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
    let source = match &context.rails.spanning {
        None => Source::Nic(context.nic().create_completion_channel()?),
        Some(_) => Source::Own(Arc::new(EventQueue::new()?)),
    };
    let fd = source.fd();
    // Programs expect to sleep in `ibv_get_cq_event` unless they asked for the contrary.
    fcntl(fd, FcntlArg::F_GETFL)
        .and_then(|mode| {
            fcntl(fd, FcntlArg::F_SETFL(OFlag::from_bits_retain(mode).difference(OFlag::O_NONBLOCK)))
        })
        .map_err(|e| Error::System { operation: "making a descriptor blocking", message: e.to_string() })?;
    let face = ibv_comp_channel { context: context.address(), fd: fd.as_raw_fd(), refcnt: 0 };
    Ok(Channel { face: AbiHeader::new(face), source, rails: Arc::clone(&context.rails) }.give())
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

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: a channel.
    let channel = unsafe { Channel::of(channel) };
    let taken = wait_for_event(channel.source.fd(), || {
        // Between the channel and the count nobody may destroy the queue.
        let objects = channel.rails.objects();
        loop {
            let found = match &channel.source {
                Source::Nic(events) => match objects.cqs.get(&events.next_event().ok()??) {
                    Some(&found) => found,
                    // An event of a queue that was destroyed concerns nobody.
                    None => continue,
                },
                Source::Own(events) => events.pop()?,
            };
            let found = found as *mut ibv_cq;
            // SAFETY: queues leave the table before they go.
            unsafe { Cq::of(found) }.comp_events.add_one();
            return Some(found);
        }
    });
    match taken {
        Ok(found) => {
            // SAFETY: the caller's variables, and a queue that waits for the acknowledgement of this event.
            unsafe {
                *cq = found;
                *cq_context = (*found).cq_context;
            }
            0
        }
        Err(errno) => minus_one(errno as c_int),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: u32) {
    // SAFETY: a completion queue.
    unsafe { Cq::of(cq) }.comp_events.acknowledge(nevents);
}
