//! A memory node: accepts processes, changes their permissions, and reads the sequence numbers of
//! registers for a new writer. The NIC executes every other operation.

mod nic;
mod permissions;

use std::sync::Arc;

use mitra_consensus::{LegalChange, Permissions, ProcessId, Region};
use mitra_mutants::Mutant;
use mitra_verbs::{Buffer, Unmapped};

pub use self::nic::NodeNic;
use self::permissions::{KeyAccess, RegionKeys};
use crate::layout::Layout;
use crate::messages::{Hello, MAX_SEQS, MemoryReply, MemoryRequest, RegionGrant, Token, VERSION, Welcome};
use crate::storage::{Files, Storage};
use crate::two_slot_register;

/// The maximum number of incarnations of one process that a memory node accepts.
const MAX_INCARNATIONS: usize = 1 << 16;

/// The configuration of a [`Node`].
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The regions of the memory and their initial permissions.
    pub regions: Vec<Region>,
    /// The capacity of a register's contents, in bytes.
    pub register_capacity: usize,
    /// The token of each process, indexed by [`ProcessId`]. The length is the number of processes,
    /// which is 1 to 64.
    pub tokens: Vec<Token>,
    /// Whether a restarted process may connect again. A restarted process has lost its promises and
    /// accepted values, which only few protocols tolerate.
    pub allow_restarts: bool,
}

/// A memory node. `K` is [`NodeNic::Key`].
#[derive(Debug)]
pub struct Node<K, F: Files> {
    config: NodeConfig,
    layout: Layout,
    /// The bytes of each region.
    buffers: Vec<Arc<Buffer>>,
    /// The current permissions of each region.
    permissions: Vec<Permissions>,
    /// Per process, the keys of its connection to each region, or `None` without a connection.
    connections: Vec<Option<Vec<RegionKeys<K>>>>,
    /// Per process, the incarnations that have connected, oldest first.
    incarnations: Vec<Vec<u64>>,
    storage: Option<Storage<F>>,
    /// The random number that identifies the contents. A start after a loss of the contents draws a
    /// new number.
    incarnation: u64,
    /// The write keys whose revocation a NIC has not confirmed, each with its process. The NIC may
    /// still execute writes by these keys.
    pending_revocations: Vec<(ProcessId, K)>,
}

impl<K, F: Files> Node<K, F> {
    /// Creates a memory node. Registers hold the default cell, or the contents of `storage`.
    /// `incarnation` is a random number that identifies the contents if they are new.
    pub fn new(config: NodeConfig, storage: Option<Storage<F>>, incarnation: u64) -> Node<K, F> {
        let n = config.tokens.len();
        let layout = Layout::new(&config.regions, config.register_capacity);
        let mut incarnations = vec![Vec::new(); n];
        for &(p, incarnation) in storage.iter().flat_map(Storage::process_incarnations) {
            // To replace a failed record, the node records an accepted incarnation once more. This
            // repetition is not a new incarnation.
            let known =
                incarnations.get_mut(usize::from(p.0)).filter(|known| known.last() != Some(&incarnation));
            known.into_iter().for_each(|known| known.push(incarnation));
        }
        let buffer = |region| Arc::new(Buffer::new(layout.len(region)));
        Node {
            buffers: match &storage {
                Some(storage) => storage.buffers().to_vec(),
                None => (0..layout.regions() as u8).map(buffer).collect(),
            },
            permissions: config.regions.iter().map(|region| region.permissions).collect(),
            connections: (0..n).map(|_| None).collect(),
            incarnations,
            incarnation: storage.as_ref().map_or(incarnation, Storage::incarnation),
            storage,
            layout,
            config,
            pending_revocations: Vec::new(),
        }
    }

    /// Returns the bytes of each region.
    pub fn buffers(&self) -> &[Arc<Buffer>] {
        &self.buffers
    }

    /// Connects a process, after fencing the process's earlier connection: no request on the
    /// earlier connection is executed any more. Leaves the process unconnected and returns `None`
    /// if the node refuses the process or its incarnation, if a NIC does not confirm a revocation,
    /// or if the NIC or the storage fails. The process dials again.
    ///
    /// A reconnecting process must take an exclusive write permission again. The process may be a
    /// second process with the same id, started while the first process was suspended. After the
    /// reconnection, the memory node treats the earlier incarnation as crashed and refuses its
    /// handshakes, because neither incarnation knows the ballots of the other incarnation. After
    /// the node has reopened its storage, every process must take the permission again, because the
    /// storage does not record the permissions.
    pub fn accept(&mut self, hello: &Hello, nic: &mut impl NodeNic<Key = K>) -> Option<Welcome> {
        let p = hello.from;
        if hello.version != VERSION || self.config.tokens.get(usize::from(p.0)) != Some(&hello.token) {
            return None;
        }
        let known = &mut self.incarnations[usize::from(p.0)];
        let reconnects = !known.is_empty();
        let is_known = known.last() == Some(&hello.incarnation);
        if !is_known {
            let restarted = reconnects && !self.config.allow_restarts;
            let superseded =
                known.contains(&hello.incarnation) && !Mutant::EarlierIncarnationAccepted.is_on();
            let restarted = restarted && !Mutant::RestartAccepted.is_on();
            if superseded || known.len() == MAX_INCARNATIONS || restarted {
                return None;
            }
        }
        // A failed record of another incarnation must not supersede this incarnation at the next
        // start.
        if let Some(storage) = &mut self.storage
            && (!is_known || storage.has_failed_record())
            && !Mutant::IncarnationNotRecorded.is_on()
            && storage.record_incarnation(p, hello.incarnation).is_err()
        {
            return None;
        }
        if !is_known {
            known.push(hello.incarnation);
        }
        let reopened = self.storage.as_ref().is_some_and(Storage::reopened);
        let must_take_permission = reconnects && !Mutant::PermissionKeptAtReconnect.is_on()
            || reopened && !Mutant::PermissionKeptAtRestart.is_on();
        self.disconnect(p, nic);
        if !self.finish_revocations(nic) && !Mutant::AcceptedBeforeRevocation.is_on() {
            return None;
        }
        let Some(info) = nic.connect(p, &hello.info) else {
            nic.close(p);
            return None;
        };
        self.connections[usize::from(p.0)] = Some(Vec::new());
        let mut regions = Vec::new();
        for region in 0..self.layout.regions() {
            let mut permissions = self.permissions[region];
            if must_take_permission && self.config.regions[region].legal_change != LegalChange::Never {
                permissions.write = permissions.write.without(p);
            }
            let mut failed = false;
            let mut key = |allowed: bool, access| {
                let key = if allowed { self.register(p, region, access, nic) } else { None };
                failed |= allowed && key.is_none();
                key
            };
            let read = key(permissions.read.contains(p), KeyAccess::Read);
            let write = key(permissions.write.contains(p), KeyAccess::Write);
            let encode = |key: &Option<K>| key.as_ref().map(|key| nic.encode(key));
            regions.push(RegionGrant { read: encode(&read), write: encode(&write) });
            let connected = self.connections[usize::from(p.0)].as_mut();
            connected.expect("`accept` stored this connection above").push(RegionKeys { read, write });
            if failed {
                self.disconnect(p, nic);
                return None;
            }
        }
        let register_capacity = self.config.register_capacity as u32;
        Some(Welcome { info, incarnation: self.incarnation, register_capacity, regions })
    }

    /// Handles a request of a connected process, and returns the encoded reply if there is one.
    /// Disconnects a process that sends a malformed request.
    pub fn handle_request(
        &mut self,
        p: ProcessId,
        message: &[u8],
        nic: &mut impl NodeNic<Key = K>,
    ) -> Option<Vec<u8>> {
        let reply = match postcard::from_bytes(message) {
            Ok(MemoryRequest::ChangePermissions { region, read, write }) => {
                self.change_permissions(p, region.into(), Permissions { read, write }, nic)?
            }
            Ok(MemoryRequest::ReadSeqs { region, first, count }) => {
                let Ok(seqs) = self.read_seqs(p, region, first, count) else {
                    self.disconnect(p, nic);
                    return None;
                };
                MemoryReply::Seqs { seqs }
            }
            Err(_) => {
                self.disconnect(p, nic);
                return None;
            }
        };
        Some(postcard::to_stdvec(&reply).expect("postcard encodes any MemoryReply"))
    }

    /// Returns the sequence numbers of at most [`MAX_SEQS`] registers from `first`. Registers that
    /// do not exist and write-once words have no sequence number. If the process is the only
    /// writer, the node also makes sure that incomplete writes of these registers can never
    /// complete.
    fn read_seqs(&self, p: ProcessId, region: u8, first: u16, count: u16) -> Result<Vec<u64>, Unmapped> {
        let registers = first..first.saturating_add(count.min(MAX_SEQS)).min(self.layout.registers(region));
        if self.layout.is_write_once(region) {
            return Ok(Vec::new());
        }
        let stride = self.layout.stride(region);
        let mut slots = vec![0; stride];
        let ends_writes = self.is_only_writer(p, region.into()) && !Mutant::IncompleteWriteNotEnded.is_on();
        let seq = |register: u16| {
            let (buffer, offset) = (&self.buffers[usize::from(region)], usize::from(register) * stride);
            buffer.try_read_at(offset, &mut slots)?;
            if ends_writes && let Some((slot, seq)) = two_slot_register::unused_seq(&slots) {
                buffer.try_write_at(offset + slot * self.layout.slot_bytes(), &seq.to_le_bytes())?;
                return Ok(seq.wrapping_add(1));
            }
            Ok(two_slot_register::last_seq(&slots))
        };
        registers.map(seq).collect()
    }
}
