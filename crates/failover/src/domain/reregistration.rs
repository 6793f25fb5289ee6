use std::sync::Arc;

use mitra_verbs::{Access, Buffer, Error, Mr, Result};
use smallvec::SmallVec;

use super::{Domain, Registered, find, lock};
use crate::memory_region::VirtualMr;

const REGION: &str = "memory region";

impl Domain {
    /// Replaces the memory and the access rights of a region on every live NIC, and moves the
    /// region to the domain `to`: this one or another over the same NICs. The keys stay. After
    /// `Ok`, no NIC accesses the earlier memory.
    ///
    /// # Errors
    /// The error of the first NIC that refuses; the region is then unchanged on every NIC that
    /// works. [`Error::NoSuchObject`] if the region is not of this domain. [`Error::Busy`] if a
    /// window is bound to the region, or if `to` has another region with the same key.
    /// [`Error::DeviceFatal`] if every NIC is dead.
    pub fn reregister(
        &self,
        mr: &VirtualMr,
        to: &Domain,
        memory: &Arc<Buffer>,
        access: Access,
    ) -> Result<VirtualMr> {
        let primary = mr.primary();
        self.check_unbound(primary.id)?;
        let moves = !std::ptr::eq(self, to);
        let (old_memory, old_access) = {
            let table = lock(&self.memory);
            let missing = Error::NoSuchObject { kind: REGION, id: primary.id.0 };
            let found = find(&table, primary.lkey).ok_or(missing)?;
            (Arc::clone(&found.memory), found.access)
        };
        if moves && find(&lock(&to.memory), primary.lkey).is_some() {
            return Err(Error::Busy { kind: REGION, id: primary.id.0, user: "a region with the same key" });
        }
        let mut rails = SmallVec::<[Option<Mr>; 2]>::new();
        for (nic, registration) in to.nics.iter().zip(mr.registrations()) {
            let Some(registration) = registration else {
                rails.push(None);
                continue;
            };
            let changed = match nic.provider.rereg_mr(registration.id, nic.pd, Arc::clone(memory), access) {
                // The NIC may be hung instead of dead. A reset ends its access to the earlier
                // memory.
                Err(Error::DeviceFatal) => nic.provider.reset().map(|()| None),
                other => other.map(Some),
            };
            match changed {
                Ok(registration) => rails.push(registration),
                Err(error) => {
                    self.undo_reregistrations(&mr.registrations()[..rails.len()], &old_memory, old_access);
                    return Err(error);
                }
            }
        }
        let changed = mr.reregistered(rails).ok_or(Error::DeviceFatal)?;
        let entry = Registered { mr: changed.clone(), memory: Arc::clone(memory), access };
        if moves {
            lock(&self.memory).retain(|r| r.mr.primary().lkey != primary.lkey);
        }
        let mut table = lock(&to.memory);
        match table.binary_search_by_key(&primary.lkey, |r| r.mr.primary().lkey) {
            Ok(at) => table[at] = entry,
            Err(at) => table.insert(at, entry),
        }
        drop(table);
        match moves {
            true => self.revoke_grants_to(primary.rkey)?,
            false => self.reregister_grants(primary.rkey, memory, access)?,
        }
        Ok(changed)
    }

    fn undo_reregistrations(&self, rails: &[Option<Mr>], memory: &Arc<Buffer>, access: Access) {
        for (nic, mr) in self.nics.iter().zip(rails) {
            // A NIC that works accepts the earlier registration. On any other NIC the registration
            // is lost.
            let _ = mr.map(|mr| nic.provider.rereg_mr(mr.id, nic.pd, Arc::clone(memory), access));
        }
    }
}
