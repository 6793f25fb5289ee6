//! Opening and closing the device, and the table of verbs that programs call through it.

use std::ffi::c_int;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::Arc;

use mitra_verbs::Error;

use super::abi_object::{AbiHeader, AbiObject};
use super::context::Context;
use super::{
    bind_mw, cq, cq_ex, dm, mw, null_mr, on_demand, parent_domain, post, query_device, query_port, refused,
    srq, wr_calls, xrc_recv_qp, xrcd,
};
use crate::common::cancellation;
use crate::common::errno::{errno_of, pointer, set_errno, status};
use crate::common::event_queue::new_event_queue;
use crate::rails::object_table::ObjectEntry;
use crate::rails::open;
use crate::rails::rail_set::RailSet;
use mitra_verbs_abi::*;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    match open::open() {
        Ok(rails) => pointer("ibv_open_device", open(device, &rails)),
        // `open::open` has logged the error.
        Err(error) => {
            set_errno(errno_of(&error));
            ptr::null_mut()
        }
    }
}

fn open(device: *mut ibv_device, rails: &Arc<RailSet>) -> mitra_verbs::Result<*mut ibv_context> {
    let events = Arc::new(new_event_queue()?);
    // Programs duplicate the descriptor to share a device with another process. The import then
    // fails with `EOPNOTSUPP`.
    let command_file = cancellation::held_off(|| File::open("/dev/null"))
        .map_err(|e| Error::system("opening /dev/null", &e))?;
    let mut header = verbs_context::zeroed();
    header.sz = size_of::<verbs_context>();
    refused::fill(&mut header);
    header.query_port = Some(query_port::query_port);
    header.query_device_ex = Some(query_device::query_device_ex);
    header.create_cq_ex = Some(cq_ex::create_cq_ex);
    header.create_qp_ex = Some(wr_calls::create_qp_ex);
    header.create_srq_ex = Some(srq::create_srq_ex);
    header.open_xrcd = Some(xrcd::open_xrcd);
    header.close_xrcd = Some(xrcd::close_xrcd);
    header.get_srq_num = Some(srq::get_srq_num);
    header.open_qp = Some(xrc_recv_qp::open_qp);
    header.alloc_td = Some(parent_domain::alloc_td);
    header.dealloc_td = Some(parent_domain::dealloc_td);
    header.alloc_parent_domain = Some(parent_domain::alloc_parent_domain);
    header.advise_mr = Some(on_demand::advise_mr);
    header.alloc_null_mr = Some(null_mr::alloc_null_mr);
    header.alloc_dm = Some(dm::alloc_dm);
    header.free_dm = Some(dm::free_dm);
    header.reg_dm_mr = Some(dm::reg_dm_mr);
    header.context.device = device;
    header.context.ops.poll_cq = Some(cq::poll_cq);
    header.context.ops.req_notify_cq = Some(cq::req_notify_cq);
    header.context.ops.post_send = Some(post::post_send);
    header.context.ops.post_recv = Some(post::post_recv);
    header.context.ops.post_srq_recv = Some(post::post_srq_recv);
    header.context.ops.alloc_mw = Some(mw::alloc_mw);
    header.context.ops.bind_mw = Some(bind_mw::bind_mw);
    header.context.ops.dealloc_mw = Some(mw::dealloc_mw);
    header.context.cmd_fd = command_file.as_fd().as_raw_fd();
    header.context.async_fd = events.as_fd().as_raw_fd();
    header.context.num_comp_vectors = 1;
    header.context.abi_compat = ptr::without_provenance_mut(__VERBS_ABI_IS_EXTENDED);
    let context = Context {
        header: AbiHeader::new(header),
        rails: Arc::clone(rails),
        events: Arc::clone(&events),
        _command_file: command_file.into(),
    };
    let address = Context::address_in(context.into_raw());
    let mut objects = rails.objects();
    if objects.is_dead {
        events.close();
    }
    objects.contexts.push(ObjectEntry { address: address as usize, events });
    Ok(address)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: rule *objects* (module `calls`): no other verb uses `context` now.
    match unsafe { Context::close(context) } {
        Ok(()) => 0,
        Err(error) => {
            status("ibv_close_device", Err(error));
            -1
        }
    }
}
