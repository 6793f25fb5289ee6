//! `not-received`: a message that was reported as executed is received, unless the receiver closes.
//! A message that waits for a receive is received even if the receiver closes.

use std::rc::Rc;

use super::super::{End, FailoverWorld, LIVENESS_LIMIT, SeedRun};
use mitra_sim::World;
use mitra_sim::workload::FailoverQp;

impl<Q: FailoverQp + 'static> FailoverWorld<Q> {
    /// Runs the world until all messages that were reported as executed are received.
    pub(in super::super) fn check_that_messages_are_received(&mut self, result: &mut SeedRun) {
        let connections = self.connections.clone();
        let received = World::programs_are(move || {
            connections.iter().all(|ends| {
                let [a, b] = ends.each_ref().map(|end| end.borrow());
                a.has_received_from(&b) && b.has_received_from(&a)
            })
        });
        result.must_reach("not-received", self.world.run_until(received, LIVENESS_LIMIT));
    }

    /// Runs the world until no message waits for a receive.
    pub(in super::super) fn check_that_waiting_messages_are_received(&mut self, result: &mut SeedRun) {
        let ends: Vec<_> = self.connections.iter().flatten().map(Rc::clone).collect();
        let received = World::programs_are(move || {
            ends.iter().all(|end| end.borrow().endpoint.qp.waiting_messages() == 0)
        });
        result.must_reach("not-received", self.world.run_until(received, LIVENESS_LIMIT));
    }
}

impl<Q: FailoverQp> End<Q> {
    /// Returns whether this end has closed, or has received all messages that the other end reports
    /// as executed.
    fn has_received_from(&self, other: &End<Q>) -> bool {
        let log = self.peer.responder_log();
        self.endpoint.qp.close_reason().is_some() || log.received.len() >= other.peer.delivered_messages()
    }
}
