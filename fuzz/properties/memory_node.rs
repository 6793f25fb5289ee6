//! Processes that send arbitrary requests to a memory node, whose NICs refuse calls or do not
//! confirm them. No call panics. A process gets only keys that its permissions allow. A change of
//! permissions is reported only if the NICs have revoked every other key. An earlier incarnation
//! never comes back.
//!
//! The input is the configuration (1 byte) and the calls (1 byte and their arguments).

use std::collections::HashSet;
use std::sync::Arc;

use mitra_consensus::{LegalChange, Permissions, ProcessId, ProcessSet, Region, RegisterKind};
use mitra_consensus_memory::{
    Hello, MAX_MESSAGE_BYTES, MemoryReply, MemoryRequest, Node, NodeConfig, NodeNic, VERSION,
};
use mitra_verbs::{Access, Buffer};

use super::bytes::Bytes;
use super::memory_files::MemoryFiles;

const PROCESSES: u8 = 3;
/// The maximum number of calls.
const CALLS: usize = 200;

pub(crate) fn run(data: &[u8]) {
    let mut input = Bytes(data);
    let allow_restarts = input.byte() & 1 == 1;
    let tokens = (0..PROCESSES).map(|p| [p; 16]).collect();
    let config = NodeConfig { regions: regions(), register_capacity: 16, tokens, allow_restarts };
    let node: Node<usize, MemoryFiles> = Node::new(config, None, 1);
    let nics = Nics { buffers: node.buffers().to_vec(), ..Nics::default() };
    let mut world = World { node, nics, allow_restarts, incarnations: vec![Vec::new(); PROCESSES.into()] };
    for _ in 0..CALLS {
        if input.0.is_empty() {
            return;
        }
        world.call(&mut input);
        world.check_keys();
    }
}

/// One region of each rule, the last one of write-once words.
fn regions() -> Vec<Region> {
    let single = Permissions::single_writer(PROCESSES, ProcessId(0));
    let all = Permissions { read: ProcessSet::first(PROCESSES), write: ProcessSet::first(PROCESSES) };
    let region =
        |registers, permissions, legal_change, kind| Region { registers, permissions, legal_change, kind };
    vec![
        region(4, single, LegalChange::ExclusiveWriter, RegisterKind::ReadWrite),
        region(300, single, LegalChange::Never, RegisterKind::ReadWrite),
        region(3, all, LegalChange::ReadOnly, RegisterKind::WriteOnce),
    ]
}

struct World {
    node: Node<usize, MemoryFiles>,
    nics: Nics,
    allow_restarts: bool,
    /// The incarnations of each process that the memory node has accepted.
    incarnations: Vec<Vec<u64>>,
}

impl World {
    fn call(&mut self, input: &mut Bytes<'_>) {
        let p = ProcessId(input.byte() % PROCESSES);
        match input.byte() % 8 {
            0 => self.accept(&Hello {
                version: VERSION,
                from: p,
                token: [p.0; 16],
                incarnation: u64::from(input.byte() % 4),
                info: Vec::new(),
            }),
            1 => {
                let hello = postcard::from_bytes(input.string());
                _ = hello.map(|hello| self.accept(&hello));
            }
            2 => {
                let (region, masks) = (input.byte() % 4, input.byte());
                let set = |mask: u8| {
                    (0..8)
                        .filter(|p| mask >> p & 1 == 1)
                        .fold(ProcessSet::NONE, |set, p| set.with(ProcessId(p)))
                };
                let legal = [Permissions::single_writer(PROCESSES, p), Permissions::read_only(PROCESSES)];
                let Permissions { read, write } = match masks {
                    0 | 1 => legal[usize::from(masks)],
                    _ => Permissions { read: set(masks & 15), write: set(masks >> 4) },
                };
                let request = MemoryRequest::ChangePermissions { region, read, write };
                self.request(p, &postcard::to_stdvec(&request).expect("postcard encodes any MemoryRequest"));
            }
            3 => {
                let (region, first, count) = (input.byte(), input.word(), input.word());
                let request = MemoryRequest::ReadSeqs { region, first, count };
                self.request(p, &postcard::to_stdvec(&request).expect("postcard encodes any MemoryRequest"));
            }
            4 => self.request(p, input.string()),
            5 => {
                (self.nics.refuses, self.nics.confirms_late) = (input.byte() % 8, input.byte() % 8);
            }
            6 => {
                let buffer = &self.nics.buffers[usize::from(input.byte()) % 3];
                let (at, written) = (usize::from(input.word()), input.string());
                let at = at % buffer.len();
                buffer.write_at(at, &written[..written.len().min(buffer.len() - at)]);
            }
            _ => self.node.disconnect(p, &mut self.nics),
        }
    }

    /// Executes a handshake.
    fn accept(&mut self, hello: &Hello) {
        let p = hello.from;
        let welcome = self.node.accept(hello, &mut self.nics);
        let is_known = p.0 < PROCESSES && hello.version == VERSION && hello.token == [p.0; 16];
        let Some(welcome) = welcome else { return };
        assert!(is_known, "{hello:?} was accepted");
        let earlier = &mut self.incarnations[usize::from(p.0)];
        if earlier.last() != Some(&hello.incarnation) {
            assert!(!earlier.contains(&hello.incarnation), "{p:?} came back as {}", hello.incarnation);
            assert!(earlier.is_empty() || self.allow_restarts, "{p:?} restarted");
            earlier.push(hello.incarnation);
        }
        assert!(self.nics.connected.contains(&p.0));
        assert_eq!(welcome.regions.len(), regions().len());
        for (region, grant) in welcome.regions.iter().enumerate() {
            for (encoded, is_write) in [(&grant.read, false), (&grant.write, true)] {
                _ = encoded.as_ref().map(|encoded| self.nics.check_grant(encoded, p, region, is_write));
            }
        }
    }

    /// Sends a request, if the process is connected.
    fn request(&mut self, p: ProcessId, message: &[u8]) {
        if !self.nics.connected.contains(&p.0) {
            return;
        }
        let Some(reply) = self.node.handle_request(p, message, &mut self.nics) else { return };
        assert!(reply.len() <= MAX_MESSAGE_BYTES, "a reply of {} bytes", reply.len());
        let request = postcard::from_bytes(message).expect("the memory node has parsed this request");
        let reply = postcard::from_bytes(&reply).expect("a reply is encoded");
        match (request, reply) {
            (MemoryRequest::ReadSeqs { region, first, count }, MemoryReply::Seqs { seqs }) => {
                let registers = regions().get(usize::from(region)).map_or(0, |r| match r.kind {
                    RegisterKind::ReadWrite => r.registers.saturating_sub(first),
                    RegisterKind::WriteOnce => 0,
                });
                assert_eq!(seqs.len(), usize::from(registers.min(count).min(256)));
            }
            (
                MemoryRequest::ChangePermissions { region, read, write },
                MemoryReply::PermissionsChanged { write: key },
            ) => {
                let asked = Permissions { read, write };
                let rule = regions().get(usize::from(region)).map(|r| r.legal_change);
                if let Some(key) = &key {
                    self.nics.check_grant(key, p, region.into(), true);
                }
                if rule.is_some_and(|rule| rule.allows(PROCESSES, p, asked)) {
                    for (q, _) in self.nics.live(region.into(), true) {
                        assert!(write.contains(q), "{q:?} may still write region {region}");
                    }
                }
            }
            (request, reply) => panic!("{reply:?} to {request:?}"),
        }
    }

    /// Checks that a legal change could have given each key to its holder, and that the number of
    /// keys is bounded.
    fn check_keys(&self) {
        assert!(
            self.nics.live(1, true).all(|(p, _)| p == ProcessId(0)),
            "the permissions of region 1 never change"
        );
        let unconfirmed = self.nics.keys.iter().filter(|key| key.is_live && key.is_refused).count();
        let live = self.nics.keys.iter().filter(|key| key.is_live).count();
        assert!(live - unconfirmed <= usize::from(PROCESSES) * 2 * regions().len(), "{live} keys");
    }
}

/// NICs that refuse and delay the calls that the input selects.
#[derive(Default)]
struct Nics {
    buffers: Vec<Arc<Buffer>>,
    connected: HashSet<u8>,
    keys: Vec<NicKey>,
    /// Every call after this number of calls is refused, until the input says otherwise. 0 refuses
    /// nothing.
    refuses: u8,
    /// The number of deregistrations that are not confirmed.
    confirms_late: u8,
}

struct NicKey {
    owner: ProcessId,
    region: usize,
    access: Access,
    is_live: bool,
    is_refused: bool,
}

impl Nics {
    fn live(&self, region: usize, is_write: bool) -> impl Iterator<Item = (ProcessId, &NicKey)> {
        let is_meant = move |key: &&NicKey| key.is_live && key.region == region && key.is_write() == is_write;
        self.keys.iter().filter(is_meant).map(|key| (key.owner, key))
    }

    /// Checks that the process owns the granted key, and that the key is registered for this
    /// region.
    fn check_grant(&self, encoded: &[u8], p: ProcessId, region: usize, is_write: bool) {
        let at = usize::from_le_bytes(encoded.try_into().expect("a key has 8 bytes"));
        let key = &self.keys[at];
        assert_eq!((key.owner, key.region, key.is_write(), key.is_live), (p, region, is_write, true));
    }

    fn is_refused(&mut self) -> bool {
        let is_refused = self.refuses == 1;
        self.refuses = self.refuses.saturating_sub(1).max(u8::from(is_refused));
        is_refused
    }
}

impl NicKey {
    fn is_write(&self) -> bool {
        self.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
    }
}

impl NodeNic for Nics {
    type Key = usize;

    fn connect(&mut self, p: ProcessId, info: &[u8]) -> Option<Vec<u8>> {
        assert!(!self.connected.contains(&p.0), "{p:?} is connected twice");
        let is_refused = self.is_refused();
        (!is_refused).then(|| {
            self.connected.insert(p.0);
            info.to_vec()
        })
    }

    fn close(&mut self, p: ProcessId) {
        self.connected.remove(&p.0);
    }

    fn register(&mut self, p: ProcessId, buffer: &Arc<Buffer>, access: Access) -> Option<usize> {
        let region =
            self.buffers.iter().position(|known| Arc::ptr_eq(known, buffer)).expect("a buffer of the node");
        let is_refused = self.is_refused();
        (!is_refused).then(|| {
            self.keys.push(NicKey { owner: p, region, access, is_live: true, is_refused: false });
            self.keys.len() - 1
        })
    }

    fn encode(&self, key: &usize) -> Vec<u8> {
        key.to_le_bytes().to_vec()
    }

    fn deregister(&mut self, p: ProcessId, &key: &usize) -> bool {
        let key = &mut self.keys[key];
        assert_eq!(key.owner, p);
        assert!(key.is_live, "a key is deregistered twice");
        if self.confirms_late > 0 {
            self.confirms_late -= 1;
            key.is_refused = true;
            return false;
        }
        key.is_live = false;
        true
    }
}
