//! Receive queues, of a queue pair or shared.

use std::collections::VecDeque;

use mitra_verbs::{Error, Limits, PdId, RecvWr, SrqId};

/// Receives waiting for messages, in posting order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RecvQueue {
    wrs: VecDeque<RecvWr>,
    depth: u32,
    max_sges: u32,
}

/// Why a receive was not posted.
pub(crate) enum Refused {
    /// The queue is full.
    Full,
    /// Another reason.
    Error(Error),
}

impl RecvQueue {
    pub(crate) fn new(depth: u32, max_sges: u32) -> RecvQueue {
        RecvQueue { wrs: VecDeque::new(), depth, max_sges }
    }

    pub(crate) fn post(&mut self, wr: &RecvWr, limits: &Limits) -> core::result::Result<(), Refused> {
        if wr.sges.len() > self.max_sges as usize {
            return Err(Refused::Error(Error::Limit {
                attribute: "scatter entries of a receive",
                requested: wr.sges.len() as u64,
                limit: self.max_sges.into(),
            }));
        }
        let bytes = crate::sges::total(&wr.sges);
        // The GRH area of a UD receive comes on top of the message.
        if bytes > u64::from(limits.message_bytes) + crate::ud::GRH_LEN as u64 {
            return Err(Refused::Error(Error::Limit {
                attribute: "bytes of a receive",
                requested: bytes,
                limit: limits.message_bytes.into(),
            }));
        }
        if self.wrs.len() >= self.depth as usize {
            return Err(Refused::Full);
        }
        self.wrs.push_back(wr.clone());
        Ok(())
    }

    pub(crate) fn first(&self) -> Option<&RecvWr> {
        self.wrs.front()
    }

    pub(crate) fn take(&mut self) -> Option<RecvWr> {
        self.wrs.pop_front()
    }

    /// Puts one back that was taken and not used.
    pub(crate) fn give_back(&mut self, wr: RecvWr) {
        self.wrs.push_front(wr);
    }

    pub(crate) fn len(&self) -> usize {
        self.wrs.len()
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    pub(crate) fn clear(&mut self) {
        self.wrs.clear();
    }
}

/// A shared receive queue.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Srq {
    pub(crate) pd: PdId,
    pub(crate) queue: RecvQueue,
    /// An event is due when fewer are left; 0 is not armed.
    pub(crate) limit: u32,
    /// Queue pairs that use it.
    pub(crate) users: u32,
}

/// Where a queue pair takes its receives from.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Receives {
    Own(RecvQueue),
    Shared(SrqId),
}
