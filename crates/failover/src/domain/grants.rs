//! Keys of memory for one queue pair with a shared backup.
//!
//! All queue pairs with one backup send their requests on the same queue pairs of the NICs. Each
//! queue pair with the backup has keys of its own, which the responder's NIC checks. When the queue
//! pair closes, its keys are revoked, so the NIC refuses its late requests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use mitra_verbs::{Access, Buffer, Error, Key, MrId, Result};
use smallvec::SmallVec;

use super::{Domain, LocalNic, deregister, lock};
use crate::home_rail::VqpId;
use crate::memory_region::{RemoteRegion, VirtualMr};

/// By queue pair and primary rkey of the memory.
pub(super) type Grants = Mutex<BTreeMap<(VqpId, Key), Grant>>;

#[derive(Debug)]
pub(super) struct Grant {
    /// By rail. `None` if the NIC was dead.
    ids: SmallVec<[Option<MrId>; 2]>,
    rights: Access,
}

impl Domain {
    /// Registers the memory of the primary rkey `rkey` again for one queue pair, with the rights
    /// that both the memory and `access` have. Returns the description for the peer, and these
    /// rights. Returns `None` if no such memory or right exists, if the queue pair already has a
    /// grant of the memory, or if a NIC refuses.
    pub(crate) fn grant(&self, owner: VqpId, rkey: Key, access: Access) -> Option<(RemoteRegion, Access)> {
        // The lock of the grants is taken before the lock of the memory. A revocation has then
        // either removed the memory already, or waits and finds this grant.
        let mut grants = lock(&self.grants);
        let (memory, rights) = {
            let table = lock(&self.memory);
            let found = table.iter().find(|r| r.mr.primary().rkey == rkey)?;
            (found.memory.clone(), found.access)
        };
        let mut granted = Access::LOCAL_WRITE;
        for right in [Access::REMOTE_WRITE, Access::REMOTE_READ] {
            granted.set(right, rights.contains(right) && access.contains(right));
        }
        if granted == Access::LOCAL_WRITE || grants.contains_key(&(owner, rkey)) {
            return None;
        }
        let register = |nic: &LocalNic| nic.provider.reg_mr(nic.pd, memory.clone(), granted);
        let rails = self.on_live_nics(register, deregister).ok()?;
        let ids = rails.iter().map(|mr| mr.map(|mr| mr.id)).collect();
        let region = VirtualMr::new(rails)?.remote();
        grants.insert((owner, rkey), Grant { ids, rights: granted });
        Some((region, granted))
    }

    pub(crate) fn grant_count(&self, owner: VqpId) -> usize {
        lock(&self.grants).range((owner, Key(0))..=(owner, Key(u32::MAX))).count()
    }

    /// After `Ok`, no NIC accepts the keys of the queue pair.
    ///
    /// # Errors
    /// The error of the first NIC that confirms neither the revocation nor a reset.
    pub(crate) fn revoke_grants_of(&self, owner: VqpId) -> Result<()> {
        let of_owner = (owner, Key(0))..=(owner, Key(u32::MAX));
        let mut grants = lock(&self.grants);
        let keys: Vec<_> = grants.range(of_owner).map(|(key, _)| *key).collect();
        let revoked = keys.iter().filter_map(|key| grants.remove(key)).map(|grant| grant.ids).collect();
        revoke(&self.nics, revoked)
    }

    /// Withdraws all rights but `access` from the grants of a queue pair. After `Ok`, no NIC
    /// accepts requests that need a withdrawn right.
    ///
    /// # Errors
    /// As [`Domain::revoke_grants_of`].
    pub(crate) fn limit_grants_of(&self, owner: VqpId, access: Access) -> Result<()> {
        let mut grants = lock(&self.grants);
        let table = lock(&self.memory);
        self.replace_grants(&mut grants, access, |(of, rkey)| {
            let found = || table.iter().find(|r| r.mr.primary().rkey == rkey);
            if of == owner { found().map(|r| &r.memory) } else { None }
        })
    }

    /// Moves the grants of a memory to the memory that replaces it, and withdraws all rights but
    /// `access`.
    ///
    /// # Errors
    /// As [`Domain::revoke_grants_of`].
    pub(super) fn reregister_grants(&self, rkey: Key, memory: &Arc<Buffer>, access: Access) -> Result<()> {
        self.replace_grants(&mut lock(&self.grants), access, |(_, of)| (of == rkey).then_some(memory))
    }

    /// Registers the memory that `memory` returns for a grant under the same keys, and withdraws
    /// all rights but `access`. A grant without a remaining right ends.
    fn replace_grants<'a>(
        &self,
        grants: &mut BTreeMap<(VqpId, Key), Grant>,
        access: Access,
        memory: impl Fn((VqpId, Key)) -> Option<&'a Arc<Buffer>>,
    ) -> Result<()> {
        let mut revoked = Vec::new();
        grants.retain(|&key, grant| {
            let Some(memory) = memory(key) else { return true };
            let rights = grant.rights & (access | Access::LOCAL_WRITE);
            let mut registrations = self.nics.iter().zip(&grant.ids);
            let is_kept = rights.intersects(Access::REMOTE)
                && registrations.all(|(nic, id)| {
                    let replace = |id| nic.provider.rereg_mr(id, nic.pd, Arc::clone(memory), rights);
                    id.is_none_or(|id| replace(id).is_ok())
                });
            grant.rights = rights;
            if !is_kept {
                revoked.push(core::mem::take(&mut grant.ids));
            }
            is_kept
        });
        revoke(&self.nics, revoked)
    }

    /// # Errors
    /// As [`Domain::revoke_grants_of`].
    pub(super) fn revoke_grants_to(&self, rkey: Key) -> Result<()> {
        let mut grants = lock(&self.grants);
        let mut revoked = Vec::new();
        grants.retain(|(_, memory), grant| {
            let stays = *memory != rkey;
            if !stays {
                revoked.push(core::mem::take(&mut grant.ids));
            }
            stays
        });
        revoke(&self.nics, revoked)
    }
}

fn revoke(nics: &[LocalNic], registrations: Vec<SmallVec<[Option<MrId>; 2]>>) -> Result<()> {
    let mut first = Ok(());
    for ids in registrations {
        for (nic, id) in nics.iter().zip(ids) {
            let Some(id) = id else { continue };
            first = first.and(match nic.provider.dereg_mr(id) {
                // The NIC may be hung instead of dead. A reset destroys its registrations.
                Err(Error::DeviceFatal) => nic.provider.reset(),
                // A reset has destroyed the registration.
                Err(Error::NoSuchObject { .. }) => Ok(()),
                other => other,
            });
        }
    }
    first
}
