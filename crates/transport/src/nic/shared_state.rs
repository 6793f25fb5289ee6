//! The state that all queue pairs of a NIC share.

use mitra_verbs::{AsyncEvent, CqId, Gid, PdId, RecvWr, SrqId, Wc, WcStatus};

use crate::nic::async_events::AsyncEvents;
use crate::nic::completion_queues::CompletionQueues;
use crate::nic::counters::Counters;
use crate::nic::handle_table::HandleTable;
use crate::nic::key_table::KeyTable;
use crate::nic::recv_queue::{RecvSource, Srq};
use crate::nic::xrc::XrcDomains;
use crate::{IpPath, NicConfig};

/// An address handle: the stored destination of UD sends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct AddressHandle {
    pub(crate) pd: PdId,
    pub(crate) path: IpPath,
}

/// The IP source and destination of a received packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Route {
    pub(crate) source: IpPath,
    /// The NIC's own address, or a multicast group.
    pub(crate) destination: Gid,
}

#[derive(Clone, Debug)]
pub(crate) struct SharedState {
    pub(crate) config: NicConfig,
    pub(crate) keys: KeyTable,
    pub(crate) cqs: CompletionQueues,
    pub(crate) srqs: HandleTable<Srq>,
    pub(crate) xrc: XrcDomains,
    pub(crate) ahs: HandleTable<AddressHandle>,
    pub(crate) events: AsyncEvents,
    pub(crate) counters: Counters,
}

impl SharedState {
    /// Adds a completion to a completion queue. If the queue is full, the completion is lost and
    /// the queue enters its error state.
    pub(crate) fn complete(&mut self, cq: CqId, wc: Wc, solicited: bool) {
        if !matches!(wc.status, WcStatus::Success | WcStatus::Flushed) {
            self.counters.failed_requests += 1;
        }
        if !self.cqs.push(cq, wc, solicited) {
            self.counters.cq_overruns += 1;
        }
    }

    pub(crate) fn peek_recv<'a>(&'a self, receives: &'a RecvSource) -> Option<&'a RecvWr> {
        match receives {
            RecvSource::Own(queue) => queue.first(),
            RecvSource::Shared(id) | RecvSource::Xrc(Some(id)) => self.srqs.get(id.0).ok()?.queue.first(),
            RecvSource::Xrc(None) => None,
        }
    }

    pub(crate) fn take_recv(&mut self, receives: &mut RecvSource) -> Option<RecvWr> {
        match receives {
            RecvSource::Own(queue) => queue.take(),
            RecvSource::Shared(id) | RecvSource::Xrc(Some(id)) => self.take_shared_recv(*id),
            RecvSource::Xrc(None) => None,
        }
    }

    /// Puts an unused receive back at the front of its queue.
    pub(crate) fn return_recv(&mut self, receives: &mut RecvSource, wr: RecvWr) {
        match receives {
            RecvSource::Own(queue) => queue.return_to_front(wr),
            RecvSource::Shared(id) | RecvSource::Xrc(Some(id)) => {
                if let Ok(srq) = self.srqs.get_mut(id.0) {
                    srq.queue.return_to_front(wr);
                }
            }
            RecvSource::Xrc(None) => {}
        }
    }

    fn take_shared_recv(&mut self, id: SrqId) -> Option<RecvWr> {
        let wr = self.srqs.get_mut(id.0).ok()?.queue.take()?;
        self.check_srq_limit(id);
        Some(wr)
    }

    /// Raises the limit event if the shared receive queue is armed and holds fewer receives than
    /// its limit. The event disarms the queue.
    pub(crate) fn check_srq_limit(&mut self, id: SrqId) {
        if let Ok(srq) = self.srqs.get_mut(id.0)
            && srq.queue.len() < srq.limit as usize
        {
            srq.limit = 0;
            self.events.raise(AsyncEvent::SrqLimitReached(id));
        }
    }
}
