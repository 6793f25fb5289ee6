//! A protection domain of the program on a device with several rails.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use mitra_failover::{Domain, Policy, RemoteRegion, VirtualMr, VirtualMw};
use mitra_verbs::{Access, Buffer, Error, Key, PdId, Result, WindowType};

use super::drive_queue::DriveQueue;
use crate::common::lock::lock;

/// A protection domain of the program. Each NIC has a separate protection domain for it, and
/// refuses the keys of other protection domains.
pub(crate) struct MultiRailPd {
    /// The failover domain of the virtual queue pairs in this protection domain.
    pub(super) failover: Arc<Domain>,
    pub(super) drive_queue: Arc<DriveQueue>,
    policy: Policy,
    /// For each memory region of the protection domain, its keys on all rails, by the rkey on rail
    /// 0. The peers query these keys.
    regions: Mutex<HashMap<Key, RemoteRegion>>,
}

impl MultiRailPd {
    /// # Errors
    /// The errors of [`Domain::with_own_pds`].
    pub(super) fn new(
        device: &Domain,
        drive_queue: &Arc<DriveQueue>,
        policy: Policy,
    ) -> Result<Arc<MultiRailPd>> {
        let (failover, drive_queue) = (device.with_own_pds()?, Arc::clone(drive_queue));
        Ok(Arc::new(MultiRailPd { failover, drive_queue, policy, regions: Mutex::default() }))
    }

    /// Returns the protection domain on rail 0, which contains the queue pairs that use rail 0
    /// only.
    pub(crate) fn id(&self) -> PdId {
        self.failover.nics()[0].pd
    }

    /// Prepares for the peers' atomics if `access` permits them: from now on, all virtual queue
    /// pairs of the device are on one rail ([`Domain::share_atomics`]). The caller grants the
    /// access afterwards. The rule does not apply to the baseline policies, because they fence no
    /// rail.
    ///
    /// # Errors
    /// `DeviceFatal` if the virtual queue pairs are on several rails and a NIC can be neither
    /// fenced nor reset.
    pub(crate) fn share_atomics(&self, access: Access) -> Result<()> {
        if access.contains(Access::REMOTE_ATOMIC) && self.policy == Policy::Exact {
            self.failover.share_atomics()?;
        }
        Ok(())
    }

    /// Registers memory with every live NIC.
    ///
    /// # Errors
    /// The error of the first live NIC that refuses, or `DeviceFatal` if all NICs are dead; the
    /// error of [`MultiRailPd::share_atomics`].
    pub(crate) fn register(&self, memory: &Arc<Buffer>, access: Access) -> Result<VirtualMr> {
        self.share_atomics(access)?;
        let mr = self.failover.register(memory, access)?;
        lock(&self.regions).insert(mr.primary().rkey, mr.remote());
        Ok(mr)
    }

    /// Replaces the memory and the access rights of a region on all rails, and moves the region to
    /// the domain `to`, which may be this one. The keys stay. After `Ok`, no NIC accesses the
    /// earlier memory.
    ///
    /// # Errors
    /// The errors of [`Domain::reregister`] and [`MultiRailPd::share_atomics`]. The region is then
    /// unchanged on every NIC that works.
    pub(crate) fn reregister(
        &self,
        mr: &VirtualMr,
        to: &MultiRailPd,
        memory: &Arc<Buffer>,
        access: Access,
    ) -> Result<VirtualMr> {
        to.share_atomics(access)?;
        let changed = self.failover.reregister(mr, &to.failover, memory, access)?;
        let key = changed.primary().rkey;
        lock(&self.regions).remove(&key);
        lock(&to.regions).insert(key, changed.remote());
        Ok(changed)
    }

    /// Revokes a registration on all rails. After `Ok`, no NIC accesses the memory.
    ///
    /// # Errors
    /// `Busy` if a window is bound to the region, which then stays registered. Otherwise the error
    /// of the first NIC that does not confirm the revocation. This NIC may still access the memory.
    pub(crate) fn deregister(&self, mr: &VirtualMr) -> Result<()> {
        let revoked = self.failover.deregister(mr);
        if !matches!(revoked, Err(Error::Busy { .. })) {
            lock(&self.regions).remove(&mr.primary().rkey);
        }
        revoked
    }

    /// Allocates a memory window on every live NIC.
    ///
    /// # Errors
    /// The errors of [`Domain::alloc_mw`].
    pub(crate) fn alloc_mw(&self, window_type: WindowType) -> Result<VirtualMw> {
        self.failover.alloc_mw(window_type)
    }

    /// Unbinds and removes a memory window on all rails.
    ///
    /// # Errors
    /// The errors of [`Domain::dealloc_mw`].
    pub(crate) fn dealloc_mw(&self, mw: &VirtualMw) -> Result<()> {
        self.failover.dealloc_mw(mw)
    }

    /// Returns the keys on all rails of the region or window whose rkey on rail 0 is `key`. A
    /// window need not be bound, because binds do not change these keys.
    pub(super) fn region(&self, key: Key) -> Option<RemoteRegion> {
        let region = lock(&self.regions).get(&key).cloned();
        region.or_else(|| self.failover.window_with_key(key))
    }
}
