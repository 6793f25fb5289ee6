//! Receive queues of queue pairs, and shared receive queues.

use std::collections::VecDeque;

use mitra_verbs::{Error, GRH_LEN, Limits, PdId, RecvWr, SrqId};

use crate::nic::xrc::XrcSrq;
use crate::scatter_gather::total_len;

/// Posted receives in posting order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RecvQueue {
    wrs: VecDeque<RecvWr>,
    depth: u32,
    max_sges: u32,
}

pub(crate) enum RecvPostError {
    /// The caller names the queue in the error message.
    Full,
    Error(Error),
}

impl RecvQueue {
    pub(crate) fn new(depth: u32, max_sges: u32) -> RecvQueue {
        RecvQueue { wrs: VecDeque::new(), depth, max_sges }
    }

    pub(crate) fn post(&mut self, wr: &RecvWr, limits: &Limits) -> core::result::Result<(), RecvPostError> {
        if wr.sges.len() > self.max_sges as usize {
            return Err(RecvPostError::Error(Error::Limit {
                attribute: "scatter entries of a receive",
                requested: wr.sges.len() as u64,
                limit: self.max_sges.into(),
            }));
        }
        let bytes = total_len(&wr.sges);
        // A UD receive holds the GRH area in addition to the message.
        if bytes > u64::from(limits.message_bytes) + GRH_LEN as u64 {
            return Err(RecvPostError::Error(Error::Limit {
                attribute: "bytes of a receive",
                requested: bytes,
                limit: limits.message_bytes.into(),
            }));
        }
        if self.wrs.len() >= self.depth as usize {
            return Err(RecvPostError::Full);
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

    pub(crate) fn return_to_front(&mut self, wr: RecvWr) {
        self.wrs.push_front(wr);
    }

    pub(crate) fn len(&self) -> usize {
        self.wrs.len()
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    pub(crate) fn set_depth(&mut self, depth: u32) {
        self.depth = depth;
    }

    pub(crate) fn clear(&mut self) {
        self.wrs.clear();
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Srq {
    pub(crate) pd: PdId,
    pub(crate) queue: RecvQueue,
    /// The queue raises its limit event when it holds fewer receives than `limit`. 0 means not
    /// armed.
    pub(crate) limit: u32,
    /// The number of queue pairs that take receives from the queue.
    pub(crate) users: u32,
    /// Present if the queue is in an XRC domain.
    pub(crate) xrc: Option<XrcSrq>,
}

/// The queue from which a queue pair takes its receives.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum RecvSource {
    Own(RecvQueue),
    Shared(SrqId),
    /// The shared receive queue that the current message of an XRC queue pair names. Between two
    /// messages, the queue of the last message.
    Xrc(Option<SrqId>),
}
