//! What the queue pairs of a NIC share.

use mitra_verbs::{AsyncEvent, CqId, Gid, PdId, RecvWr, SrqId, Wc, WcStatus};

use crate::NicConfig;
use crate::counters::Counters;
use crate::cq::Cqs;
use crate::events::Events;
use crate::keys::Keys;
use crate::recv_queue::{Receives, Srq};
use crate::table::Table;

/// An address handle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Ah {
    pub(crate) pd: PdId,
    pub(crate) destination: Gid,
}

/// Between which addresses a packet travelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Route {
    pub(crate) source: Gid,
    /// The NIC's own, or a multicast group.
    pub(crate) destination: Gid,
}

/// All of a NIC but its queue pairs.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) config: NicConfig,
    pub(crate) keys: Keys,
    pub(crate) cqs: Cqs,
    pub(crate) srqs: Table<Srq>,
    pub(crate) ahs: Table<Ah>,
    pub(crate) events: Events,
    pub(crate) counters: Counters,
}

impl Host {
    /// Writes a completion. If its queue is full, it is lost and the queue is broken.
    pub(crate) fn complete(&mut self, cq: CqId, wc: Wc, solicited: bool) {
        if !matches!(wc.status, WcStatus::Success | WcStatus::Flushed) {
            self.counters.failed_requests += 1;
        }
        if !self.cqs.push(cq, wc, solicited) {
            self.counters.cq_overruns += 1;
        }
    }

    /// The next receive.
    pub(crate) fn next_receive<'a>(&'a self, receives: &'a Receives) -> Option<&'a RecvWr> {
        match receives {
            Receives::Own(queue) => queue.first(),
            Receives::Shared(id) => self.srqs.get(id.0).ok()?.queue.first(),
        }
    }

    /// Takes the next receive.
    pub(crate) fn take_receive(&mut self, receives: &mut Receives) -> Option<RecvWr> {
        match receives {
            Receives::Own(queue) => queue.take(),
            Receives::Shared(id) => self.take_shared(*id),
        }
    }

    /// Puts a receive back that was taken and not used.
    pub(crate) fn give_back(&mut self, receives: &mut Receives, wr: RecvWr) {
        match receives {
            Receives::Own(queue) => queue.give_back(wr),
            Receives::Shared(id) => {
                if let Ok(srq) = self.srqs.get_mut(id.0) {
                    srq.queue.give_back(wr);
                }
            }
        }
    }

    fn take_shared(&mut self, id: SrqId) -> Option<RecvWr> {
        let wr = self.srqs.get_mut(id.0).ok()?.queue.take()?;
        self.check_srq_limit(id);
        Some(wr)
    }

    /// Tells, once, that an armed shared receive queue has fewer left than its limit.
    pub(crate) fn check_srq_limit(&mut self, id: SrqId) {
        if let Ok(srq) = self.srqs.get_mut(id.0)
            && srq.queue.len() < srq.limit as usize
        {
            srq.limit = 0;
            self.events.raise(AsyncEvent::SrqLimitReached(id));
        }
    }
}
