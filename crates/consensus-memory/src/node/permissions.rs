//! The permissions of processes on regions, enforced by the memory's NIC.
//!
//! Each process has remote keys of its own for each region, one to read and one to write. To take a
//! permission away, the memory node deregisters the memory region of the key. After the
//! deregistration, no access by this key is in progress, and the NIC answers later accesses with a
//! NAK (remote access error).

use mitra_consensus::{Permissions, ProcessId, ProcessSet, RegisterKind};
use mitra_mutants::Mutant;
use mitra_verbs::Access;

use super::{Node, NodeNic};
use crate::messages::MemoryReply;
use crate::storage::Files;

/// The keys of one process to one region of the memory.
#[derive(Debug)]
pub(super) struct RegionKeys<K> {
    pub(super) read: Option<K>,
    pub(super) write: Option<K>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyAccess {
    Read,
    Write,
}

impl<K, F: Files> Node<K, F> {
    pub(super) fn register(
        &self,
        p: ProcessId,
        region: usize,
        access: KeyAccess,
        nic: &mut impl NodeNic<Key = K>,
    ) -> Option<K> {
        let access = match (access, self.config.regions[region].kind) {
            (KeyAccess::Read, _) => Access::REMOTE_READ,
            (KeyAccess::Write, RegisterKind::ReadWrite) => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            (KeyAccess::Write, RegisterKind::WriteOnce) => Access::LOCAL_WRITE | Access::REMOTE_ATOMIC,
        };
        nic.register(p, &self.buffers[region], access)
    }

    /// Ends the connection of a process and revokes its keys.
    pub fn disconnect(&mut self, p: ProcessId, nic: &mut impl NodeNic<Key = K>) {
        let Some(keys) = self.connections[usize::from(p.0)].take() else { return };
        if Mutant::ConnectionNotFenced.is_on() {
            return;
        }
        nic.close(p);
        if Mutant::RevokedByClose.is_on() {
            return;
        }
        for RegionKeys { read, write } in keys {
            // Without the connection, the process cannot read by a key that a NIC does not confirm
            // as revoked.
            let _ = read.map(|key| nic.deregister(p, &key));
            self.pending_revocations.extend(write.map(|key| (p, key)));
        }
        self.finish_revocations(nic);
    }

    /// Deregisters the write keys that are to be revoked, and returns whether the NICs have
    /// confirmed all of them.
    ///
    /// A NIC that does not confirm may continue to write by the key. Until all NICs have confirmed,
    /// the memory node therefore reports no change of permissions and connects no process. An
    /// operator must reset a hung NIC.
    pub(super) fn finish_revocations(&mut self, nic: &mut impl NodeNic<Key = K>) -> bool {
        self.pending_revocations.retain(|(p, key)| !nic.deregister(*p, key));
        self.pending_revocations.is_empty()
    }

    /// Changes the permissions of a region if the region's rule allows the change, and returns the
    /// reply. Disconnects the process, and returns `None`, if a NIC has not confirmed a revocation.
    /// The process then repeats its request on its next connection.
    ///
    /// Only write keys change, because no legal change concerns the permission to read.
    pub(super) fn change_permissions(
        &mut self,
        p: ProcessId,
        region: usize,
        permissions: Permissions,
        nic: &mut impl NodeNic<Key = K>,
    ) -> Option<MemoryReply> {
        let n = self.connections.len() as u8;
        let legal = self.config.regions.get(region).is_some_and(|r| r.legal_change.allows(n, p, permissions));
        if legal {
            self.permissions[region] = permissions;
            for (q, connection) in (0..).map(ProcessId).zip(&mut self.connections) {
                let Some(keys) = connection.as_mut().and_then(|keys| keys.get_mut(region)) else { continue };
                if !permissions.write.contains(q) && !Mutant::PermissionNotRevoked.is_on() {
                    self.pending_revocations.extend(keys.write.take().map(|key| (q, key)));
                }
            }
            if !self.finish_revocations(nic) && !Mutant::ChangedBeforeRevocation.is_on() {
                if !Mutant::UnconfirmedChangeUnanswered.is_on() {
                    self.disconnect(p, nic);
                }
                return None;
            }
            let grant = permissions.write.contains(p)
                && self.keys(p, region).is_some_and(|keys| keys.write.is_none());
            if grant {
                let key = self.register(p, region, KeyAccess::Write, nic);
                self.keys(p, region).expect("`grant` implies that the keys exist").write = key;
            }
        }
        let write = self.keys(p, region).and_then(|keys| keys.write.as_ref()).map(|key| nic.encode(key));
        Some(MemoryReply::PermissionsChanged { write })
    }

    /// Returns whether a process holds the key to write a region, and no other process may write
    /// it.
    pub(super) fn is_only_writer(&self, p: ProcessId, region: usize) -> bool {
        let keys = self.connections[usize::from(p.0)].as_ref().and_then(|keys| keys.get(region));
        keys.is_some_and(|keys| keys.write.is_some())
            && self.permissions[region].write.without(p) == ProcessSet::NONE
    }

    fn keys(&mut self, p: ProcessId, region: usize) -> Option<&mut RegionKeys<K>> {
        self.connections[usize::from(p.0)].as_mut()?.get_mut(region)
    }
}
