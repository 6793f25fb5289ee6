use mitra_verbs::{Access, Error, Mr, MrId, PdId, RegionId, Result};

use super::{AddressRange, KeyTable, Object, REGION, Region, check_region};

impl KeyTable {
    /// Replaces the protection domain, the memory and the rights of a region, and returns the
    /// driver's identifier of the earlier memory. The keys stay.
    ///
    /// # Errors
    /// As [`KeyTable::reg_mr`] and [`KeyTable::dereg_mr`], except `Limit`.
    pub(crate) fn rereg_mr(
        &mut self,
        id: MrId,
        pd: PdId,
        memory: RegionId,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<(Mr, RegionId)> {
        check_region(addr, len, access)?;
        let Some(Object::Region(region)) = self.object_mut(id.0) else {
            return Err(Error::NoSuchObject { kind: REGION, id: id.0 });
        };
        if region.windows > 0 {
            return Err(Error::Busy { kind: REGION, id: id.0, user: "a memory window" });
        }
        let earlier = region.region;
        *region = Region { pd, region: memory, range: AddressRange { addr, len }, access, ..*region };
        Ok((Mr { id, pd, addr, len, lkey: region.key, rkey: region.key }, earlier))
    }
}
