//! The permissions of processes on regions, enforced by the memory's NIC.
//!
//! Each process has remote keys of its own for each region, one to read and one to write. To take a permission away, the memory node
//! deregisters the memory region of the key. After the deregistration, no access by this key is in progress, and the NIC answers later
//! accesses with a NAK (remote access error).

use mitra_consensus::{Permissions, ProcessId, RegisterKind};
use mitra_failover::VirtualMr;
use mitra_verbs::{Access, Error};

use super::MemoryNode;
use crate::memory_protocol::MemoryReply;

/// The memory regions whose keys one process has for one region of the memory.
#[derive(Debug, Default)]
pub(super) struct RegionKeys {
    pub(super) read: Option<VirtualMr>,
    pub(super) write: Option<VirtualMr>,
}

/// The access that a key permits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyAccess {
    Read,
    Write,
}

impl MemoryNode {
    /// Registers a region of the memory for access by a process.
    pub(super) fn register(
        &self,
        p: ProcessId,
        region: usize,
        access: KeyAccess,
    ) -> Result<VirtualMr, Error> {
        let access = match (access, self.config.regions[region].kind) {
            (KeyAccess::Read, _) => Access::REMOTE_READ,
            (KeyAccess::Write, RegisterKind::ReadWrite) => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            (KeyAccess::Write, RegisterKind::WriteOnce) => Access::LOCAL_WRITE | Access::REMOTE_ATOMIC,
        };
        self.domains[usize::from(p.0)].register(&self.buffers[region], access)
    }

    /// Ends the connection of a process and revokes its keys.
    pub(super) fn disconnect(&mut self, p: ProcessId) {
        let Some(mut connected) = self.connections[usize::from(p.0)].take() else { return };
        // A NIC that does not confirm the close may keep the queue pair, which can access nothing once the keys are revoked.
        let _ = connected.link.close();
        for keys in connected.keys {
            let _ = keys.read.map(|mr| self.domains[usize::from(p.0)].deregister(&mr));
            self.pending_revocations.extend(keys.write.map(|mr| (p, mr)));
        }
        self.finish_revocations();
    }

    /// Deregisters the write keys that are to be revoked, and returns whether the NICs have confirmed all of them.
    ///
    /// A NIC that does not confirm may continue to write by the key. Until all NICs have confirmed, the memory node therefore reports
    /// no change of permissions and connects no process. An operator must reset a hung NIC.
    pub(super) fn finish_revocations(&mut self) -> bool {
        self.pending_revocations.retain(|(p, mr)| self.domains[usize::from(p.0)].deregister(mr).is_err());
        self.pending_revocations.is_empty()
    }

    /// Changes the permissions of a region if the region's rule allows the change, and returns the reply. Returns `None` if a NIC has
    /// not confirmed a revocation.
    ///
    /// Only write keys change, because no legal change concerns the permission to read.
    pub(super) fn change_permissions(
        &mut self,
        p: ProcessId,
        region: usize,
        permissions: Permissions,
    ) -> Option<MemoryReply> {
        let n = self.connections.len() as u8;
        let legal = self.config.regions.get(region).is_some_and(|r| r.legal_change.allows(n, p, permissions));
        if legal {
            self.permissions[region] = permissions;
            for (q, connection) in (0..).map(ProcessId).zip(&mut self.connections) {
                let Some(keys) = connection.as_mut().and_then(|connected| connected.keys.get_mut(region))
                else {
                    continue;
                };
                if !permissions.write.contains(q) {
                    self.pending_revocations.extend(keys.write.take().map(|mr| (q, mr)));
                }
            }
            if !self.finish_revocations() {
                return None;
            }
            let grant = permissions.write.contains(p)
                && self.keys(p, region).is_some_and(|keys| keys.write.is_none());
            if grant && let Ok(mr) = self.register(p, region, KeyAccess::Write) {
                self.keys(p, region).expect("`grant` implies that the keys exist").write = Some(mr);
            }
        }
        let write = self.keys(p, region).and_then(|keys| keys.write.as_ref()).map(|mr| mr.remote().encode());
        Some(MemoryReply::PermissionsChanged { write })
    }

    fn keys(&mut self, p: ProcessId, region: usize) -> Option<&mut RegionKeys> {
        self.connections[usize::from(p.0)].as_mut()?.keys.get_mut(region)
    }
}
