//! The objects of a device. Each is destroyed when its last user lets go of it, and holds what it
//! needs, so that the order of the drops is right.

use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, PoisonError};

use mitra_verbs::{Buffer, Error, Result, Wc};
use mitra_verbs_abi::*;
use nix::errno::Errno;

use crate::channel::HardChannel;
use crate::context::{Context, shared_by_threads};
use crate::work_ids::SharedIds;

shared_by_threads!(Pd, Cq, Srq, Region, Window);

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Pd {
    pub(crate) raw: *mut ibv_pd,
    /// The objects in the domain that the program has not destroyed.
    pub(crate) users: AtomicU32,
    pub(crate) context: Arc<Context>,
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: the domain exists, and the objects in it, which hold an `Arc` of it, do not.
        unsafe { (self.context.lib.dealloc_pd)(self.raw) };
    }
}

/// A completion queue. Its `cq_context` is its handle.
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) raw: *mut ibv_cq,
    /// The queue pairs that use the queue and that the program has not destroyed.
    pub(crate) users: AtomicU32,
    /// The completions that were taken from the device when a queue pair was destroyed.
    pub(crate) kept: Mutex<Vec<Wc>>,
    /// Whether there are such completions.
    pub(crate) has_kept: AtomicBool,
    pub(crate) context: Arc<Context>,
    /// The queue's channel, which must outlive it.
    pub(crate) _channel: Option<Arc<HardChannel>>,
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: the queue exists, and the queue pairs that use it, which hold an `Arc` of it, do
        // not. The call waits until all events are acknowledged, which follows each read at once.
        unsafe { (self.context.lib.destroy_cq)(self.raw) };
    }
}

/// A shared receive queue. Its `srq_context` is its handle.
#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) raw: *mut ibv_srq,
    pub(crate) users: AtomicU32,
    pub(crate) pd: Arc<Pd>,
    /// The number of entries, and the numbers of the posted receives.
    pub(crate) posted: Mutex<SharedIds>,
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: the queue exists, and the queue pairs that use it do not.
        unsafe { (self.pd.context.lib.destroy_srq)(self.raw) };
    }
}

/// A registered memory region.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) raw: *mut ibv_mr,
    pub(crate) pd: Arc<Pd>,
    /// Kept until the deregistration has succeeded.
    pub(crate) memory: Mutex<Option<Arc<Buffer>>>,
}

impl Region {
    /// Ends the region: when the call has succeeded, the device no longer accesses the memory.
    pub(crate) fn deregister(&self) -> Result<()> {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        if memory.is_some() {
            let context = &self.pd.context;
            // SAFETY: the region exists: without `memory` it was deregistered.
            let result = unsafe { (context.lib.dereg_mr)(self.raw) };
            // soft-RoCE returns EINVAL for a region with windows, which is no other error here.
            if result != 0 && matches!(context.lib.errno_of(result), Errno::EBUSY | Errno::EINVAL) {
                let id = self.raw.addr() as u32;
                return Err(Error::Busy { kind: "memory region", id, user: "a memory window" });
            }
            context.check("deregistering memory", result)?;
            *memory = None;
        }
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.deregister().is_err() {
            // The device may still access the memory.
            std::mem::forget(self.memory.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

/// A memory window of type 2.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) raw: *mut ibv_mw,
    pub(crate) dealloc: unsafe extern "C" fn(*mut ibv_mw) -> std::ffi::c_int,
    pub(crate) pd: Arc<Pd>,
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the window exists.
        unsafe { (self.dealloc)(self.raw) };
    }
}
