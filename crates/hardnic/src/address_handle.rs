//! Address handles.

use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mitra_verbs::{Gid, Result};
use mitra_verbs_abi::*;

use crate::objects::Pd;
use crate::qp_attributes::address_vector;

/// An address handle. The device's handle contains the index of this NIC's own address. When the
/// address was removed and came back at another index, nothing that is sent with the old handle
/// leaves, and the next post makes a new one.
#[derive(Debug)]
pub(crate) struct AddressHandle {
    raw: AtomicPtr<ibv_ah>,
    sgid_index: AtomicU8,
    destination: Gid,
    traffic_class: u8,
    /// The handles that were replaced. Sends may still refer to them.
    replaced: Mutex<Vec<AtomicPtr<ibv_ah>>>,
    pub(crate) pd: Arc<Pd>,
}

fn create(pd: &Pd, destination: Gid, sgid_index: u8, traffic_class: u8) -> Result<*mut ibv_ah> {
    let mut attr = address_vector(destination, sgid_index, traffic_class);
    // SAFETY: the domain exists. The call may wait until the kernel has resolved the address.
    let raw = unsafe { (pd.context.lib.create_ah)(pd.raw, &raw mut attr) };
    pd.context.check_ptr("creating an address handle", raw)
}

impl AddressHandle {
    pub(crate) fn new(
        pd: Arc<Pd>,
        destination: Gid,
        sgid_index: u8,
        traffic_class: u8,
    ) -> Result<AddressHandle> {
        let raw = create(&pd, destination, sgid_index, traffic_class)?;
        Ok(AddressHandle {
            raw: AtomicPtr::new(raw),
            sgid_index: AtomicU8::new(sgid_index),
            destination,
            traffic_class,
            replaced: Mutex::default(),
            pd,
        })
    }

    /// Returns the device's handle with the present index of this NIC's address.
    pub(crate) fn raw(&self) -> *mut ibv_ah {
        if let Some(index) = self.pd.context.gid_index()
            && index != self.sgid_index.load(Ordering::Relaxed)
        {
            self.renew(index);
        }
        self.raw.load(Ordering::Acquire)
    }

    #[cold]
    fn renew(&self, index: u8) {
        let mut replaced = self.replaced.lock().unwrap_or_else(PoisonError::into_inner);
        if self.sgid_index.load(Ordering::Relaxed) == index {
            return; // another thread was faster
        }
        // Without a new handle, the datagram is lost like those before it.
        if let Ok(raw) = create(&self.pd, self.destination, index, self.traffic_class) {
            replaced.push(AtomicPtr::new(self.raw.swap(raw, Ordering::AcqRel)));
            self.sgid_index.store(index, Ordering::Relaxed);
        }
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        let replaced = self.replaced.get_mut().unwrap_or_else(PoisonError::into_inner);
        for raw in replaced.iter_mut().chain([&mut self.raw]) {
            // SAFETY: the handle exists. No post uses it, because a post holds the lock of the
            // table from which the handle was removed.
            unsafe { (self.pd.context.lib.destroy_ah)(*raw.get_mut()) };
        }
    }
}
