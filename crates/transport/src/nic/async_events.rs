//! The queue of asynchronous events.

use std::collections::VecDeque;

use mitra_verbs::{AsyncEvent, CqId, Qpn, SrqId};

/// Events that the driver has not fetched yet.
///
/// The number of objects bounds the queue, because a pending event is not added again and the
/// destruction of an object removes its events.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct AsyncEvents {
    queue: VecDeque<AsyncEvent>,
}

impl AsyncEvents {
    pub(crate) fn raise(&mut self, event: AsyncEvent) {
        if !self.queue.contains(&event) {
            self.queue.push_back(event);
        }
    }

    pub(crate) fn next(&mut self) -> Option<AsyncEvent> {
        self.queue.pop_front()
    }

    pub(crate) fn remove_qp(&mut self, qpn: Qpn) {
        self.queue.retain(|event| match *event {
            AsyncEvent::QpFatal(q)
            | AsyncEvent::QpRequestError(q)
            | AsyncEvent::QpAccessError(q)
            | AsyncEvent::SqDrained(q)
            | AsyncEvent::CommunicationEstablished(q)
            | AsyncEvent::LastWqeReached(q) => q != qpn,
            _ => true,
        });
    }

    pub(crate) fn remove_cq(&mut self, cq: CqId) {
        self.queue.retain(|&event| event != AsyncEvent::CqError(cq));
    }

    pub(crate) fn remove_srq(&mut self, srq: SrqId) {
        self.queue.retain(|&event| event != AsyncEvent::SrqLimitReached(srq));
    }
}
