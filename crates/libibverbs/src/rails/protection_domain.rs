//! A protection domain of the program on a device with several rails.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use mitra_failover::{Domain, RemoteRegion, VirtualMr, VirtualMw};
use mitra_verbs::{Access, Buffer, Error, Key, Mw, MwId, Result, WindowType};

use super::drive_queue::DriveQueue;
use crate::common::lock::lock;

/// A protection domain of the program. Each NIC has a separate protection domain for it, and
/// refuses the keys of other protection domains.
pub(crate) struct MultiRailPd {
    /// The failover domain of the virtual queue pairs in this protection domain.
    pub(super) failover: Arc<Domain>,
    pub(super) drive_queue: Arc<DriveQueue>,
    /// The memory regions by the rkey that the program knows. The peers query their keys on all
    /// rails.
    regions: Mutex<HashMap<Key, VirtualMr>>,
    windows: Mutex<HashMap<MwId, VirtualMw>>,
}

impl MultiRailPd {
    /// # Errors
    /// The errors of [`Domain::with_own_pds`].
    pub(super) fn new(device: &Domain, drive_queue: &Arc<DriveQueue>) -> Result<Arc<MultiRailPd>> {
        let (failover, drive_queue) = (device.with_own_pds()?, Arc::clone(drive_queue));
        let (regions, windows) = (Mutex::default(), Mutex::default());
        Ok(Arc::new(MultiRailPd { failover, drive_queue, regions, windows }))
    }

    /// Registers memory with every live NIC.
    ///
    /// # Errors
    /// The error of the first live NIC that refuses, or `DeviceFatal` if all NICs are dead.
    pub(crate) fn register(&self, memory: &Arc<Buffer>, access: Access) -> Result<VirtualMr> {
        let mr = self.failover.register(memory, access)?;
        lock(&self.regions).insert(mr.primary().rkey, mr.clone());
        Ok(mr)
    }

    /// # Errors
    /// `NoSuchObject` if no region has this rkey.
    fn registered(&self, rkey: Key) -> Result<VirtualMr> {
        let mr = lock(&self.regions).get(&rkey).cloned();
        mr.ok_or(Error::NoSuchObject { kind: "memory region", id: rkey.0 })
    }

    /// Replaces the memory and the access rights of a region on all rails, and moves the region to
    /// the domain `to`, which may be this one. The keys stay. After `Ok`, no NIC accesses the
    /// earlier memory.
    ///
    /// # Errors
    /// The errors of [`Domain::reregister`]. The region is then unchanged on every NIC that works.
    pub(crate) fn reregister(
        &self,
        rkey: Key,
        to: &MultiRailPd,
        memory: &Arc<Buffer>,
        access: Access,
    ) -> Result<VirtualMr> {
        let changed = self.failover.reregister(&self.registered(rkey)?, &to.failover, memory, access)?;
        lock(&self.regions).remove(&rkey);
        lock(&to.regions).insert(rkey, changed.clone());
        Ok(changed)
    }

    /// Revokes a registration on all rails. After `Ok`, no NIC accesses the memory.
    ///
    /// # Errors
    /// `Busy` if a window is bound to the region, which then stays registered. Otherwise the error
    /// of the first NIC that does not confirm the revocation. This NIC may still access the memory,
    /// and another call asks it again.
    pub(crate) fn deregister(&self, rkey: Key) -> Result<()> {
        let revoked = self.failover.deregister(&self.registered(rkey)?);
        if revoked.is_ok() {
            lock(&self.regions).remove(&rkey);
        }
        revoked
    }

    /// Allocates a memory window on every live NIC, and returns the window that the program knows.
    ///
    /// # Errors
    /// The errors of [`Domain::alloc_mw`].
    pub(crate) fn alloc_mw(&self, window_type: WindowType) -> Result<Mw> {
        let mw = self.failover.alloc_mw(window_type)?;
        let primary = mw.primary();
        lock(&self.windows).insert(primary.id, mw);
        Ok(primary)
    }

    /// Unbinds and removes a memory window on all rails.
    ///
    /// # Errors
    /// The errors of [`Domain::dealloc_mw`].
    pub(crate) fn dealloc_mw(&self, id: MwId) -> Result<()> {
        let removed = lock(&self.windows).remove(&id);
        self.failover.dealloc_mw(&removed.ok_or(Error::NoSuchObject { kind: "memory window", id: id.0 })?)
    }

    /// Returns the keys on all rails of the region or window whose rkey on rail 0 is `key`. A
    /// window need not be bound, because binds do not change these keys.
    pub(super) fn region(&self, key: Key) -> Option<RemoteRegion> {
        let region = lock(&self.regions).get(&key).map(VirtualMr::remote);
        region.or_else(|| self.failover.window_with_key(key))
    }
}
