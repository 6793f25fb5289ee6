//! Completion channels.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use mitra_verbs::{Error, Result};
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::abi_object::{AbiHeader, AbiObject, abi_object};
use super::context::Context;
use crate::common::errno::{pointer, status};
use crate::rails::object_table::ChannelEvents;
use crate::rails::rail_set::RailSet;
use mitra_verbs_abi::*;

#[repr(C)]
pub(crate) struct Channel {
    header: AbiHeader<ibv_comp_channel>,
    pub(crate) events: ChannelEvents,
    pub(crate) rails: Arc<RailSet>,
}

abi_object!(Channel: ibv_comp_channel, "completion channel");

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    // SAFETY: rule *objects* (module `calls`): `context` is not closed during the call.
    pointer("ibv_create_comp_channel", unsafe { Context::find_raw(context) }.and_then(create))
}

fn create(context: &Context) -> Result<*mut ibv_comp_channel> {
    let events = context.rails.device.create_channel()?;
    let fd = events.as_fd();
    // The descriptor must initially be in blocking mode, because programs expect `ibv_get_cq_event`
    // to wait unless they set `O_NONBLOCK`.
    fcntl(fd, FcntlArg::F_GETFL)
        .and_then(|mode| {
            fcntl(fd, FcntlArg::F_SETFL(OFlag::from_bits_retain(mode).difference(OFlag::O_NONBLOCK)))
        })
        .map_err(|e| Error::system("making a descriptor blocking", &io::Error::from(e)))?;
    let header = ibv_comp_channel { context: context.address(), fd: fd.as_raw_fd(), refcnt: 0 };
    let rails = Arc::clone(&context.rails);
    let mut objects = context.rails.objects();
    if objects.is_dead {
        return Err(Error::DeviceFatal);
    }
    let channel = Channel { header: AbiHeader::new(header), events: events.clone(), rails }.into_raw();
    objects.channels.insert(channel as usize, events);
    Ok(channel)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: rule *objects* (module `calls`): no other verb uses `channel` now.
    status("ibv_destroy_comp_channel", unsafe {
        Channel::destroy(channel, |object| match (*channel).refcnt {
            0 => {
                object.rails.objects().channels.remove(&(channel as usize));
                Ok(())
            }
            _ => Err(Error::Busy {
                kind: "completion channel",
                id: (*channel).fd as u32,
                user: "a completion queue",
            }),
        })
    })
}
