//! A memory node that sends arbitrary answers to a process. No answer panics the client. The client
//! accesses only memory that its keys allow, and answers each operation at most once. Then the
//! memory node becomes correct, and each operation ends unless the memory counts as crashed.
//!
//! The input is a sequence of calls (1 byte and their arguments).

use std::collections::HashMap;

use mitra_consensus::{LegalChange, Op, OpId, Permissions, ProcessId, Region, RegisterKind, Response};
use mitra_consensus_memory::{Client, ClientLink, Layout, MAX_READ_BYTES, MemoryReply, RegionGrant, Welcome};
use mitra_verbs::Ended;

use super::bytes::Bytes;

/// The maximum numbers of calls and of operations.
const CALLS: usize = 200;
const OPERATIONS: u64 = 24;
/// The capacity of a register's contents, in bytes.
const CAPACITY: usize = 16;
/// After this number of answers of a correct memory node, every operation has ended. A read reads a
/// torn register at most 256 times, and the regions have 100 registers.
const ANSWERS: usize = 40_000;

type Cell = Vec<u8>;

pub(crate) fn run(data: &[u8]) {
    let mut input = Bytes(data);
    let mut world = World {
        client: Client::new(&regions(), CAPACITY),
        link: Link {
            is_open: false,
            posted: Vec::new(),
            messages: Vec::new(),
            slots: 4,
            layout: Layout::new(&regions(), CAPACITY),
        },
        incarnation: None,
        pending: HashMap::new(),
        submitted: 0,
    };
    for _ in 0..CALLS {
        if input.0.is_empty() {
            break;
        }
        world.call(&mut input);
        if world.client.is_crashed() {
            return;
        }
    }
    world.end_operations();
}

fn regions() -> Vec<Region> {
    let permissions = Permissions::single_writer(3, ProcessId(0));
    let legal_change = LegalChange::ExclusiveWriter;
    let region = |registers, kind| Region { registers, permissions, legal_change, kind };
    vec![region(90, RegisterKind::ReadWrite), region(10, RegisterKind::WriteOnce)]
}

struct World {
    client: Client<Cell, RegionLen>,
    link: Link,
    /// The incarnation that the first Welcome named.
    incarnation: Option<u64>,
    /// The operations without a response.
    pending: HashMap<u64, Op<Cell>>,
    submitted: u64,
}

impl World {
    fn call(&mut self, input: &mut Bytes<'_>) {
        match input.byte() % 8 {
            0 => self.submit(input),
            1 => {
                if let Ok(welcome) = postcard::from_bytes(input.string()) {
                    self.welcome(&welcome);
                }
            }
            2 => {
                let grants = input.byte();
                self.welcome(&honest_welcome(self.incarnation, grants));
            }
            3 => self.message(input.string()),
            4 => {
                let (len, seq) = (usize::from(input.word() % 300), u64::from(input.byte()));
                let seqs = vec![if seq == 255 { u64::MAX } else { seq }; len];
                self.message(&encode(&MemoryReply::Seqs { seqs }));
            }
            5 => {
                let (at, ended) = (usize::from(input.byte()), ended(input.byte()));
                let bytes = input.string();
                self.complete(at, ended, bytes);
            }
            6 => self.disconnect(),
            _ => {
                let write = (input.byte() & 1 == 1).then(|| vec![0]);
                self.message(&encode(&MemoryReply::PermissionsChanged { write }));
            }
        }
        self.post();
    }

    fn submit(&mut self, input: &mut Bytes<'_>) {
        let (kind, region, register) = (input.byte() % 4, input.byte() % 3, input.word() % 100);
        if self.submitted == OPERATIONS {
            return;
        }
        let op = match kind {
            0 => Op::Read { region, first: register, count: u16::from(input.byte()) },
            1 => Op::Write { region, register, cell: input.string().to_vec() },
            2 => Op::WriteOnce { region, register, cell: input.string().to_vec() },
            _ => Op::ChangePermissions { region, permissions: Permissions::single_writer(3, ProcessId(0)) },
        };
        self.submitted += 1;
        self.pending.insert(self.submitted, op.clone());
        self.client.submit(OpId(self.submitted), op);
    }

    fn welcome(&mut self, welcome: &Welcome) {
        if self.client.is_connected() {
            self.disconnect();
        }
        self.incarnation.get_or_insert(welcome.incarnation);
        self.respond(|client, link, responses| client.on_welcome(welcome, link, responses));
    }

    fn message(&mut self, message: &[u8]) {
        if self.client.is_connected() {
            self.respond(|client, link, responses| client.on_message(message, link, responses));
        }
    }

    /// Completes a posted request. A READ returns as many bytes as it asked for, and an atomic 8:
    /// the connection guarantees that.
    fn complete(&mut self, at: usize, ended: Ended, bytes: &[u8]) {
        if self.link.posted.is_empty() {
            return;
        }
        let posted = self.link.posted.remove(at % self.link.posted.len());
        let data: Vec<u8> = bytes.iter().copied().cycle().take(posted.len).collect();
        let data = if data.is_empty() { vec![0; posted.len] } else { data };
        let responses =
            self.respond(|client, _, responses| client.on_completion(posted.wr_id, ended, &data, responses));
        let was_executed = matches!(ended, Ended::Success | Ended::ValueLost);
        assert!(was_executed || !responses.contains(&Response::Ack), "{ended:?} acknowledged a write");
    }

    fn disconnect(&mut self) {
        self.client.on_disconnect();
        self.link.is_open = false;
        self.link.posted.clear();
        self.link.messages.clear();
    }

    fn post(&mut self) {
        self.respond(|client, link, responses| {
            client.nak_impossible(responses);
            client.post(link);
        });
        assert!(self.client.is_connected() || self.link.posted.is_empty(), "posted without a connection");
    }

    /// Makes a call of the client, and returns the responses. Each must be the first response to
    /// its operation, and of the operation's kind.
    fn respond(
        &mut self,
        call: impl FnOnce(&mut Client<Cell, RegionLen>, &mut Link, &mut Vec<(OpId, Response<Cell>)>),
    ) -> Vec<Response<Cell>> {
        let mut responses = Vec::new();
        call(&mut self.client, &mut self.link, &mut responses);
        for (id, response) in &responses {
            let op = self.pending.remove(&id.0).expect("an operation has one response");
            match (&op, response) {
                (Op::Read { count, .. }, Response::Cells(cells)) => {
                    assert_eq!(cells.len(), usize::from(*count))
                }
                (Op::WriteOnce { .. }, Response::Cells(cells)) => assert_eq!(cells.len(), 1),
                (Op::Write { .. } | Op::ChangePermissions { .. }, Response::Ack) => {}
                (Op::Read { .. } | Op::Write { .. } | Op::WriteOnce { .. }, Response::Nak) => {}
                (op, response) => panic!("{response:?} to {op:?}"),
            }
        }
        responses.into_iter().map(|(_, response)| response).collect()
    }

    /// Connects to a correct memory node, whose registers hold nothing, and answers until no
    /// operation is pending.
    fn end_operations(&mut self) {
        self.welcome(&honest_welcome(self.incarnation, u8::MAX));
        for _ in 0..ANSWERS {
            self.post();
            if self.pending.is_empty() {
                return;
            }
            if self.link.messages.is_empty() {
                self.complete(0, Ended::Success, &[]);
            } else {
                let request = self.link.messages.remove(0);
                self.message(&honest_reply(&request));
            }
        }
        panic!("operations do not end: {:?}, {:?}", self.pending, self.client);
    }
}

/// Returns the Welcome of a correct memory node. Each bit of `grants` grants one key.
fn honest_welcome(incarnation: Option<u64>, grants: u8) -> Welcome {
    let key = |region: u8, bit| (grants >> bit & 1 == 1).then(|| vec![region]);
    let grant =
        |region: u8| RegionGrant { read: key(region, 2 * region), write: key(region, 2 * region + 1) };
    Welcome {
        info: Vec::new(),
        incarnation: incarnation.unwrap_or(1),
        register_capacity: CAPACITY as u32,
        regions: vec![grant(0), grant(1)],
    }
}

fn honest_reply(request: &[u8]) -> Vec<u8> {
    use mitra_consensus_memory::MemoryRequest::{ChangePermissions, ReadSeqs};
    encode(&match postcard::from_bytes(request).expect("a client's request is well-formed") {
        ChangePermissions { region, .. } => MemoryReply::PermissionsChanged { write: Some(vec![region]) },
        ReadSeqs { count, .. } => MemoryReply::Seqs { seqs: vec![0; count.into()] },
    })
}

fn encode(reply: &MemoryReply) -> Vec<u8> {
    postcard::to_stdvec(reply).expect("postcard encodes any MemoryReply")
}

fn ended(choice: u8) -> Ended {
    match choice % 5 {
        0 | 1 => Ended::Success,
        2 => Ended::NotExecuted,
        3 => Ended::Unknown,
        _ => Ended::ValueLost,
    }
}

/// An imported key: the length of its region.
#[derive(Clone, Copy, Debug)]
struct RegionLen(u64);

/// The client's end of the connection.
struct Link {
    is_open: bool,
    posted: Vec<Posted>,
    messages: Vec<Vec<u8>>,
    slots: usize,
    layout: Layout,
}

struct Posted {
    wr_id: u64,
    /// The number of bytes that the completion brings.
    len: usize,
}

impl Link {
    fn post(&mut self, wr_id: u64, key: RegionLen, offset: u64, len: usize, returned: usize) -> bool {
        assert!(self.is_open);
        assert!(offset + len as u64 <= key.0, "{len} bytes at {offset} of {}", key.0);
        if self.free_send_slots() == 0 {
            return false;
        }
        self.posted.push(Posted { wr_id, len: returned });
        true
    }
}

impl ClientLink for Link {
    type Key = RegionLen;

    fn connect(&mut self, info: &[u8]) -> bool {
        self.is_open = info.len() < 8;
        self.is_open
    }

    fn import(&mut self, encoded: &[u8], len: u64) -> Option<RegionLen> {
        (encoded.len() == 1).then_some(RegionLen(len))
    }

    fn free_send_slots(&self) -> usize {
        self.slots - self.posted.len()
    }

    fn write(&mut self, wr_id: u64, key: &RegionLen, offset: u64, data: &[u8]) -> bool {
        assert!(data.len() <= self.layout.slot_bytes());
        self.post(wr_id, *key, offset, data.len(), 0)
    }

    fn read(&mut self, wr_id: u64, key: &RegionLen, offset: u64, len: usize) -> bool {
        assert!(len > 0 && len <= MAX_READ_BYTES);
        self.post(wr_id, *key, offset, len, len)
    }

    fn compare_swap(&mut self, wr_id: u64, key: &RegionLen, offset: u64, _: u64, _: u64) -> bool {
        assert!(offset.is_multiple_of(8));
        self.post(wr_id, *key, offset, 8, 8)
    }

    fn send(&mut self, message: Vec<u8>) -> bool {
        assert!(self.is_open);
        let is_accepted = self.messages.len() < 64;
        if is_accepted {
            self.messages.push(message);
        }
        is_accepted
    }
}
