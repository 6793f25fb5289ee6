//! The local memory into which READs and atomics return their values.

use std::sync::Arc;

use mitra_verbs::{Buffer, Data, Error, Result, SendOp, SendWr, Sge};

use crate::request::{Outcome, Request, WordOp};

/// The maximum number of requests that an operation posts at once.
pub const MAX_REQUESTS: usize = 8;

/// The length of the local memory of a session, in bytes: one word for each request.
pub const SCRATCH_BYTES: usize = 8 * MAX_REQUESTS;

/// The bits of a `wr_id` that contain the position in the batch.
const INDEX_BITS: u32 = 3;
const _: () = assert!(MAX_REQUESTS == 1 << INDEX_BITS);

/// The memory of a session, and the `wr_id`s of its requests: the caller's base, plus the number of
/// the batch, plus the position in the batch.
#[derive(Debug)]
pub(crate) struct Scratch {
    memory: Arc<Buffer>,
    /// The scatter entry of the whole memory.
    sge: Sge,
    /// The session's `wr_id`s are from `base` to `base + 2³² − 1`.
    base: u64,
    /// The number of the last batch, modulo 2²⁹.
    batch: u32,
}

impl Scratch {
    pub(crate) fn new(memory: Arc<Buffer>, sge: Sge, base: u64) -> Scratch {
        Scratch { memory, sge, base, batch: 0 }
    }

    /// Begins a batch, and returns its work requests.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the batch is empty or has more than [`MAX_REQUESTS`] requests.
    pub(crate) fn begin(&mut self, requests: &[Request]) -> Result<impl Iterator<Item = SendWr> + use<>> {
        if !(1..=MAX_REQUESTS).contains(&requests.len()) {
            return Err(Error::Invalid("an operation posts 1 to 8 requests at once"));
        }
        self.batch = (self.batch + 1) & (u32::MAX >> INDEX_BITS);
        let first = self.first_wr_id();
        let sge = self.sge;
        let wr = move |(index, request): (usize, Request)| {
            let remote = request.word.remote();
            let returned = Sge { addr: sge.addr + 8 * index as u64, len: 8, key: sge.key };
            let (op, data) = match request.op {
                WordOp::Read => (SendOp::Read(remote), Data::sge(returned)),
                WordOp::Write(value) => (SendOp::Write(remote), Data::inline(&value.to_ne_bytes())),
                WordOp::CompareSwap { compare, swap } => {
                    (SendOp::CompareSwap { remote, compare, swap }, Data::sge(returned))
                }
                WordOp::FetchAdd(add) => (SendOp::FetchAdd { remote, add }, Data::sge(returned)),
            };
            SendWr::new(first + index as u64, op, data)
        };
        let requests: crate::Requests = requests.iter().copied().collect();
        Ok(requests.into_iter().enumerate().map(wr))
    }

    fn first_wr_id(&self) -> u64 {
        self.base + u64::from(self.batch << INDEX_BITS)
    }

    /// Whether the `wr_id` belongs to the session, in this or an earlier batch.
    pub(crate) fn owns(&self, wr_id: u64) -> bool {
        wr_id.checked_sub(self.base).is_some_and(|offset| offset <= u64::from(u32::MAX))
    }

    /// Returns the position of a request of the current batch.
    pub(crate) fn index(&self, wr_id: u64) -> Option<usize> {
        let index = wr_id.checked_sub(self.first_wr_id())? as usize;
        (index < MAX_REQUESTS).then_some(index)
    }

    pub(crate) fn executed(&self, index: usize, returns_value: bool) -> Outcome {
        Outcome::Executed { value: if returns_value { self.memory.load(8 * index) } else { 0 } }
    }
}
