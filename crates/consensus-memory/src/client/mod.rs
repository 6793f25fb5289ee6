//! The client of one memory node: turns operations into one-sided work requests, and their
//! completions into responses.
//!
//! An RC NAK from the memory node's NIC breaks the connection. The memory node fences the old
//! connection before it accepts a new one. The client then responds with `Response::Nak` to each
//! WRITE that was posted on the old connection and whose outcome is unknown. Such a WRITE may have
//! been executed, but will not be executed later. The client posts reads, write-once operations and
//! changes of permissions again, because they are repeatable.

mod complete;
mod connection;
mod link;
mod post;

use std::collections::VecDeque;
use std::ops::Range;

use mitra_consensus::{Op, OpId, Region, Response};

pub use self::link::ClientLink;
use crate::layout::Layout;

/// The maximum length of a READ, in bytes. A READ of a single larger register may exceed it.
pub const MAX_READ_BYTES: usize = 64 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Disconnected,
    Connected,
    /// The memory lost its contents or has another layout, and is treated as crashed.
    Crashed,
}

/// The process's keys to a region, and the sequence numbers of its registers.
#[derive(Debug)]
struct RegionState<K> {
    read: Option<K>,
    write: Option<K>,
    /// The sequence number of each register's last write, or `None` if the client does not know it.
    seqs: Vec<Option<u64>>,
}

#[derive(Debug)]
struct SeqRequest {
    region: u8,
    registers: Range<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Queued,
    /// Posted as a work request.
    Posted,
    /// Sent to the CPU of the memory node.
    Requested,
    /// A WRITE whose outcome is unknown because its connection broke.
    OutcomeUnknown,
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
    /// `Some` if the last READ found one of a register's two slots torn: the sequence number of the
    /// whole slot. The operation reads this register again next, because `cells` ends before it.
    whole_beside_torn: Option<u64>,
    /// The number of READs of the same register so far that found a torn slot.
    torn_reads: u32,
}

/// The client of one memory node. `C` is the content of a register, `K` is [`ClientLink::Key`].
#[derive(Debug)]
pub struct Client<C, K> {
    layout: Layout,
    state: State,
    /// The incarnation of the memory at the first connection.
    incarnation: Option<u64>,
    regions: Vec<RegionState<K>>,
    /// The operations without a response, in the order of submission, which is also the order of
    /// `wr_id`.
    pending: VecDeque<PendingOp<C>>,
    /// The outstanding requests for sequence numbers, in the order in which the memory node answers
    /// them.
    seq_requests: VecDeque<SeqRequest>,
    last_wr_id: u64,
    /// The encoded register slot of the last write. Kept to reuse its allocation.
    encoded_slot: Vec<u8>,
    /// The encoded cell of the last write. Kept to reuse its allocation.
    encoded_cell: Vec<u8>,
}

impl<C, K> Client<C, K> {
    /// Creates the client of a memory with these regions. The client has no connection.
    pub fn new(regions: &[Region], register_capacity: usize) -> Client<C, K> {
        let unknown = |_| RegionState { read: None, write: None, seqs: Vec::new() };
        Client {
            layout: Layout::new(regions, register_capacity),
            state: State::Disconnected,
            incarnation: None,
            regions: regions.iter().map(unknown).collect(),
            pending: VecDeque::new(),
            seq_requests: VecDeque::new(),
            last_wr_id: 0,
            encoded_slot: Vec::new(),
            encoded_cell: Vec::new(),
        }
    }

    /// Queues an operation. [`Client::post`] posts it.
    pub fn submit(&mut self, id: OpId, op: Op<C>) {
        self.last_wr_id += 1;
        self.pending.push_back(PendingOp {
            wr_id: self.last_wr_id,
            id,
            op,
            stage: Stage::Queued,
            cells: Vec::new(),
            whole_beside_torn: None,
            torn_reads: 0,
        });
    }

    /// Returns whether the memory node is connected.
    pub fn is_connected(&self) -> bool {
        self.state == State::Connected
    }

    /// Returns whether the memory is treated as crashed: its contents were lost, or its layout is
    /// not the configured layout. The client never connects again.
    pub fn is_crashed(&self) -> bool {
        self.state == State::Crashed
    }

    fn respond(&mut self, at: usize, response: Response<C>, responses: &mut Vec<(OpId, Response<C>)>) {
        if let Some(pending) = self.pending.remove(at) {
            responses.push((pending.id, response));
        }
    }
}
