//! The send queues of reliable connections, as an observer sees them.

use mitra_verbs::{Psn, Qpn, SendOp};

use super::requester::Requester;
use super::{Qp, Service};
use crate::Nic;

/// A send that is posted and not completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PendingSend {
    /// The queue pair.
    pub qp: Qpn,
    /// The operation.
    pub op: SendOp,
    /// The first and the last PSN, or `None` if no packet was sent.
    pub psns: Option<(Psn, Psn)>,
}

impl Nic {
    /// Returns the sends of all queue pairs of the service RC or XRC that are posted and not
    /// completed, in posting order of each queue pair.
    pub fn pending_sends(&self) -> Vec<PendingSend> {
        self.qps.iter().flat_map(Qp::pending_sends).collect()
    }
}

impl Qp {
    fn pending_sends(&self) -> Vec<PendingSend> {
        let Service::Rc { requester, .. } = &self.service else { return Vec::new() };
        let sends = requester.pending_sends();
        sends.map(|(op, psns)| PendingSend { qp: self.attrs.qpn, op, psns }).collect()
    }
}

impl Requester {
    fn pending_sends(&self) -> impl Iterator<Item = (SendOp, Option<(Psn, Psn)>)> {
        self.queue.iter().zip(self.head..).map(|(request, position)| {
            let unsent = self.first_unsent_psn.distance(request.psn);
            // A distance of 2²³ or more means that the first unsent PSN is before the request.
            let is_sent = position < self.next_start && request.packets > 0 && (1..1 << 23).contains(&unsent);
            let psns = is_sent.then(|| (request.psn, request.psn.add(request.packets - 1)));
            (request.wr.op, psns)
        })
    }
}
