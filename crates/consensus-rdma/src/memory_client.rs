//! The client of one memory node: turns operations into one-sided work requests, and their completions into responses.
//!
//! The client replaces a broken connection. An RC NAK from the memory node's NIC breaks the connection, too. The memory node fences the
//! old connection before it accepts the new connection. The client then responds with `Response::Nak` to each WRITE that was posted
//! on the old connection and whose outcome is unknown: the WRITE may have been executed, but will not be executed later. The client
//! posts reads, write-once operations and changes of permissions again, because they are repeatable.

mod complete;
mod connection;
mod post;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use mitra_consensus::{Op, OpId, Region, Response};
use mitra_failover::{FailoverReport, RemoteRegion, VirtualMr};
use mitra_verbs::{Access, Buffer, Error};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::layout::Layout;
use crate::link::{Link, LinkEvent};
use crate::memory_protocol::MAX_MESSAGE_BYTES;
use crate::pending_connect::{Identity, PendingConnect};
use crate::two_slot_register;

/// The maximum length of a READ, in bytes. A READ of a single larger register may exceed it.
const MAX_READ_BYTES: usize = 64 << 10;
/// The number of staging slots for READs and compare-and-swaps, which bounds the number of these requests in flight.
const READ_SLOTS: usize = 4;
/// The number of staging slots for WRITEs that are too long to be inline, which bounds the number of these requests in flight.
const WRITE_SLOTS: usize = 16;

/// The state of the connection.
#[derive(Debug)]
enum State {
    Connecting(PendingConnect),
    Connected(Link),
    /// No queue pair or descriptor was free. The client dials again at this time.
    Backoff(Instant),
    /// The memory lost its contents or has another layout, and is treated as crashed.
    Crashed,
}

/// The process's keys to a region, and the sequence numbers of its registers.
#[derive(Debug, Default)]
struct RegionState {
    read: Option<RemoteRegion>,
    write: Option<RemoteRegion>,
    /// The sequence number of each register's last write, or `None` if the client does not know it.
    seqs: Vec<Option<u64>>,
}

/// Registers whose sequence numbers the client has requested.
#[derive(Debug)]
struct SeqRequest {
    region: u8,
    registers: Range<u16>,
}

/// The progress of an operation.
#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// Not posted.
    Queued,
    /// Posted as a work request that uses this staging slot.
    Posted(StagingSlot),
    /// Sent to the CPU of the memory node.
    Requested,
    /// A WRITE whose outcome is unknown because its connection broke.
    OutcomeUnknown,
}

/// The part of the staging memory that a work request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StagingSlot {
    None,
    Read(usize),
    Write(usize),
}

/// An operation without a response.
#[derive(Debug)]
struct PendingOp<C> {
    /// The id of the operation's work requests, which increases from one operation to the next.
    wr_id: u64,
    id: OpId,
    op: Op<C>,
    stage: Stage,
    /// The cells that a read operation has read so far.
    cells: Vec<C>,
    /// The sequence number of the whole slot, if the last READ found the other slot of the register torn. The register is the one that
    /// the operation reads next, after `cells`.
    whole_beside_torn: Option<u64>,
    /// The number of READs of the same register so far that found a torn slot.
    torn_reads: u32,
}

impl<C> PendingOp<C> {
    fn new(wr_id: u64, id: OpId, op: Op<C>) -> PendingOp<C> {
        let (stage, cells) = (Stage::Queued, Vec::new());
        PendingOp { wr_id, id, op, stage, cells, whole_beside_torn: None, torn_reads: 0 }
    }
}

/// The client of one memory node.
#[derive(Debug)]
pub(crate) struct MemoryClient<C> {
    address: SocketAddr,
    identity: Identity,
    layout: Layout,
    state: State,
    /// The incarnation of the memory at the first connection.
    incarnation: Option<u64>,
    regions: Vec<RegionState>,
    /// The operations without a response, in the order of submission, which is also the order of `wr_id`.
    pending: VecDeque<PendingOp<C>>,
    /// The outstanding requests for sequence numbers, in the order in which the memory node answers them.
    seq_requests: VecDeque<SeqRequest>,
    last_wr_id: u64,
    /// The staging memory: the read slots, followed by the write slots.
    staging: Arc<Buffer>,
    staging_mr: VirtualMr,
    read_slot_bytes: usize,
    free_reads: Vec<usize>,
    free_writes: Vec<usize>,
    /// The encoded register slot of the last write. Kept to reuse its allocation.
    encoded_slot: Vec<u8>,
    /// The encoded cell of the last write. Kept to reuse its allocation.
    encoded_cell: Vec<u8>,
    connections: u64,
}

impl<C: Serialize + DeserializeOwned + Default + Clone + PartialEq> MemoryClient<C> {
    /// Creates a client and starts to connect to the memory node at `address`.
    pub(crate) fn new(
        identity: Identity,
        address: SocketAddr,
        regions: &[Region],
        register_capacity: usize,
    ) -> Result<MemoryClient<C>, Error> {
        let layout = Layout::new(regions, register_capacity);
        let write_slot_bytes = two_slot_register::slot_bytes(register_capacity);
        let read_slot_bytes = MAX_READ_BYTES.max(2 * write_slot_bytes);
        let staging = Arc::new(Buffer::new(READ_SLOTS * read_slot_bytes + WRITE_SLOTS * write_slot_bytes));
        let staging_mr = identity.domain.register(&staging, Access::LOCAL_WRITE)?;
        let connecting = identity.connect(address, identity.new_link(MAX_MESSAGE_BYTES)?, Duration::ZERO)?;
        Ok(MemoryClient {
            address,
            identity,
            layout,
            state: State::Connecting(connecting),
            incarnation: None,
            regions: (0..regions.len()).map(|_| RegionState::default()).collect(),
            pending: VecDeque::new(),
            seq_requests: VecDeque::new(),
            last_wr_id: 0,
            staging,
            staging_mr,
            read_slot_bytes,
            free_reads: (0..READ_SLOTS).collect(),
            free_writes: (0..WRITE_SLOTS).collect(),
            encoded_slot: Vec::new(),
            encoded_cell: Vec::new(),
            connections: 0,
        })
    }

    /// Queues an operation, and posts it if possible.
    pub(crate) fn submit(&mut self, id: OpId, op: Op<C>) {
        self.last_wr_id += 1;
        self.pending.push_back(PendingOp::new(self.last_wr_id, id, op));
        self.post();
    }

    /// Returns whether the memory node is connected.
    pub(crate) fn is_connected(&self) -> bool {
        matches!(self.state, State::Connected(_))
    }

    /// Returns whether the memory is treated as crashed: its contents were lost, or its layout is not the configured one.
    pub(crate) fn is_crashed(&self) -> bool {
        matches!(self.state, State::Crashed)
    }

    /// Returns how many times a connection was established.
    pub(crate) fn connections(&self) -> u64 {
        self.connections
    }

    /// Returns the report of the current connection's last failover.
    pub(crate) fn last_failover(&self) -> Option<FailoverReport> {
        let State::Connected(link) = &self.state else { return None };
        link.last_failover()
    }

    /// Requests an event for the next completion.
    pub(crate) fn arm(&self) {
        if let State::Connected(link) = &self.state {
            link.arm();
        }
    }

    /// Drives the connection, and appends the responses of finished operations to `responses`.
    pub(crate) fn poll(&mut self, responses: &mut Vec<(OpId, Response<C>)>) {
        match &mut self.state {
            State::Crashed => return,
            State::Backoff(until) if *until > Instant::now() => return,
            State::Backoff(_) => return self.reconnect(),
            State::Connecting(connecting) => match connecting.response.try_recv() {
                Ok(Ok(welcome)) => self.finish_connect(&welcome, responses),
                Err(TryRecvError::Empty) => return,
                Ok(Err(_)) | Err(TryRecvError::Disconnected) => return self.redial(),
            },
            State::Connected(link) => {
                let mut events = Vec::new();
                link.poll(|event| events.push(event));
                let broken = link.is_broken();
                for event in events {
                    match event {
                        LinkEvent::Completed(completion) => self.handle_completion(&completion, responses),
                        LinkEvent::Message(message) => self.handle_reply(&message, responses),
                    }
                }
                if broken {
                    return self.reconnect();
                }
            }
        }
        self.post();
        self.nak_impossible(responses);
    }
}

impl<C> Drop for MemoryClient<C> {
    fn drop(&mut self) {
        self.state = State::Crashed;
        // A NIC that does not confirm the deregistration is dead or hung, and the client cannot do more.
        let _ = self.identity.domain.deregister(&self.staging_mr);
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use mitra_consensus::{LegalChange, Permissions, ProcessId, RegisterKind};
    use mitra_failover::Domain;
    use mitra_softnic::{Config, SoftNic};

    use super::*;
    use crate::memory_node::{MemoryConfig, MemoryNode};

    fn domain() -> Arc<Domain> {
        let nic = SoftNic::open(Config::loopback()).expect("a loopback NIC opens");
        Domain::with_completion_channels(vec![nic]).expect("the NIC has the resources of a domain")
    }

    /// The client's NIC runs out of queue pairs while the connection to the memory node is down.
    #[test]
    fn client_reconnects_once_queue_pairs_are_free() {
        let permissions = Permissions::single_writer(1, ProcessId(0));
        let region = Region {
            registers: 1,
            permissions,
            legal_change: LegalChange::Never,
            kind: RegisterKind::ReadWrite,
        };
        let regions = vec![region];
        let failover = mitra_failover::Config::default();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let config = MemoryConfig {
            regions: regions.clone(),
            register_capacity: 64,
            tokens: vec![[7; 16]],
            allow_restarts: false,
            storage: None,
            failover,
        };
        let mut memory = MemoryNode::new(domain(), listener, config).expect("the configuration is valid");
        let (process, token) = (ProcessId(0), [7; 16]);
        let identity = Identity { process, domain: domain(), failover, token, incarnation: 1 };
        let mut client: MemoryClient<u64> =
            MemoryClient::new(identity.clone(), memory.address(), &regions, 64).expect("a free queue pair");
        let mut until_connected = |client: &mut MemoryClient<u64>| {
            let end = Instant::now() + Duration::from_secs(10);
            while !client.is_connected() && Instant::now() < end {
                memory.serve_for(Duration::from_millis(1));
                client.poll(&mut Vec::new());
            }
            client.is_connected()
        };
        assert!(until_connected(&mut client));
        // Take all free queue pairs, break the connection, and take those that it had as well.
        let mut all: Vec<Link> = std::iter::from_fn(|| identity.new_link(MAX_MESSAGE_BYTES).ok()).collect();
        client.state = State::Crashed;
        all.extend(std::iter::from_fn(|| identity.new_link(MAX_MESSAGE_BYTES).ok()));
        client.reconnect();
        client.poll(&mut Vec::new());
        assert!(!client.is_connected() && !client.is_crashed());
        drop(all);
        assert!(until_connected(&mut client));
    }
}
