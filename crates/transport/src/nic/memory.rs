//! The verbs on memory regions and memory windows.

use mitra_verbs::{Access, Error, Mr, MrId, Mw, MwId, PdId, RegionId, Result, Time, WindowType};

use crate::Nic;

impl Nic {
    /// Registers a memory region at the addresses `addr .. addr + len`. The NIC passes `region` to
    /// [`crate::Memory`].
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the protection domain does not exist.
    /// - [`Error::Invalid`]: `access` has remote write or remote atomic rights without local write,
    ///   or the region ends beyond the last address.
    /// - [`Error::Limit`]: the NIC has the maximum number of regions, or all free keys are
    ///   quarantined.
    pub fn reg_mr(
        &mut self,
        now: Time,
        pd: PdId,
        region: RegionId,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Mr> {
        self.pds.get(pd.0)?;
        self.shared.keys.reg_mr(now, &mut self.rng, pd, region, addr, len, access)
    }

    /// Revokes a memory region and returns its [`RegionId`]. From then on the key is invalid, and
    /// the NIC does not access the region's memory.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the region does not exist.
    /// - [`Error::Busy`]: a memory window is bound to the region.
    pub fn dereg_mr(&mut self, now: Time, mr: MrId) -> Result<RegionId> {
        self.shared.keys.dereg_mr(now, mr)
    }

    /// Replaces the protection domain, the memory and the rights of a region. Its keys stay.
    /// Returns the region and the [`RegionId`] of the earlier memory, which the NIC no longer
    /// accesses.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the protection domain or the region does not exist.
    /// - [`Error::Invalid`]: as [`Nic::reg_mr`].
    /// - [`Error::Busy`]: a memory window is bound to the region.
    pub fn rereg_mr(
        &mut self,
        mr: MrId,
        pd: PdId,
        region: RegionId,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(Mr, RegionId)> {
        self.pds.get(pd.0)?;
        self.shared.keys.rereg_mr(mr, pd, region, addr, len, access)
    }

    /// Creates an unbound memory window.
    ///
    /// # Errors
    /// - [`Error::NoSuchObject`]: the protection domain does not exist.
    /// - [`Error::Unsupported`]: the configuration disables memory windows.
    /// - [`Error::Limit`]: the NIC has the maximum number of windows, or all free keys are
    ///   quarantined.
    pub fn alloc_mw(&mut self, now: Time, pd: PdId, window_type: WindowType) -> Result<Mw> {
        self.pds.get(pd.0)?;
        if !self.attr.capabilities.windows {
            return Err(Error::Unsupported("memory windows"));
        }
        self.shared.keys.alloc_mw(now, pd, window_type)
    }

    /// Revokes and removes a memory window.
    ///
    /// # Errors
    /// [`Error::NoSuchObject`]: the window does not exist.
    pub fn dealloc_mw(&mut self, now: Time, mw: MwId) -> Result<()> {
        self.shared.keys.dealloc_mw(now, mw)
    }
}
