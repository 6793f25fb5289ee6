//! Address handles.

use std::sync::atomic::{AtomicPtr, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mitra_verbs::{Error, Gid, Result};
use mitra_verbs_abi::*;

use crate::objects::Pd;
use crate::qp_attributes::address_vector;

/// The time between two attempts to make a handle.
const RETRY: Duration = Duration::from_secs(1);
/// The pause after an attempt, in multiples of its duration: an attempt may wait for seconds for
/// the resolution of the address, and the caller with it.
const PAUSE: u32 = 30;

/// The index of a handle that was not made yet.
const NO_INDEX: u16 = u16::MAX;

/// An address handle. The device's handle contains the index of this NIC's own address. When the
/// address was removed and came back at another index, nothing that is sent with the old handle
/// leaves, and the next post makes a new one.
#[derive(Debug)]
pub(crate) struct AddressHandle {
    /// Null while the peer was never reached.
    raw: AtomicPtr<ibv_ah>,
    sgid_index: AtomicU16,
    destination: Gid,
    traffic_class: u8,
    renewal: Mutex<Renewal>,
    pub(crate) pd: Arc<Pd>,
}

#[derive(Debug, Default)]
struct Renewal {
    /// The handles that were replaced. Sends may still refer to them.
    replaced: Vec<AtomicPtr<ibv_ah>>,
    /// When the next attempt may be made, after one that has failed.
    due: Option<Instant>,
}

impl AddressHandle {
    /// # Errors
    /// The error of the device, unless it only does not reach the peer and that is tolerated.
    pub(crate) fn new(pd: Arc<Pd>, destination: Gid, traffic_class: u8) -> Result<AddressHandle> {
        let handle = AddressHandle {
            raw: AtomicPtr::default(),
            sgid_index: AtomicU16::new(NO_INDEX),
            destination,
            traffic_class,
            renewal: Mutex::default(),
            pd,
        };
        match handle.renew() {
            Err(error) if handle.pd.context.tolerates(&error) => Ok(handle),
            renewed => renewed.map(|()| handle),
        }
    }

    /// Returns the device's handle with the present index of this NIC's address.
    ///
    /// # Errors
    /// That of the device if it has not yet reached the peer.
    pub(crate) fn raw(&self) -> Result<*mut ibv_ah> {
        let index = self.pd.context.gid_index();
        if index.is_some_and(|index| u16::from(index) != self.sgid_index.load(Ordering::Relaxed)) {
            let renewed = self.renew();
            // With an old handle, the datagram is lost like those before it.
            if self.raw.load(Ordering::Acquire).is_null() {
                renewed?;
            }
        }
        let raw = self.raw.load(Ordering::Acquire);
        if raw.is_null() { Err(NOT_REACHED) } else { Ok(raw) }
    }

    #[cold]
    fn renew(&self) -> Result<()> {
        let mut renewal = self.renewal.lock().unwrap_or_else(PoisonError::into_inner);
        let context = &self.pd.context;
        let index = context.gid_index().ok_or(NOT_REACHED)?;
        let begin = Instant::now();
        if renewal.due.is_some_and(|due| begin < due)
            || self.sgid_index.load(Ordering::Relaxed) == u16::from(index)
        {
            return Ok(());
        }
        let mut attr = address_vector(self.destination, index, self.traffic_class);
        // SAFETY: the domain exists. The call may wait until the kernel has resolved the address.
        let raw = unsafe { (context.lib.create_ah)(self.pd.raw, &raw mut attr) };
        let made = context.check_ptr("creating an address handle", raw);
        let end = Instant::now();
        renewal.due = made.is_err().then(|| end + RETRY.max(PAUSE * (end - begin)));
        renewal.replaced.push(AtomicPtr::new(self.raw.swap(made?, Ordering::AcqRel)));
        self.sgid_index.store(index.into(), Ordering::Relaxed);
        Ok(())
    }
}

const NOT_REACHED: Error = Error::Invalid("the NIC does not reach the peer at present; bring the link up");

impl Drop for AddressHandle {
    fn drop(&mut self) {
        let renewal = self.renewal.get_mut().unwrap_or_else(PoisonError::into_inner);
        for raw in renewal.replaced.iter_mut().chain([&mut self.raw]) {
            let raw = *raw.get_mut();
            if !raw.is_null() {
                // SAFETY: the handle exists. No post uses it, because a post holds the lock of the
                // table from which the handle was removed.
                unsafe { (self.pd.context.lib.destroy_ah)(raw) };
            }
        }
    }
}
