//! The checkers of a connection, one file each. A checker compares the reported outcomes and the
//! effects in memory with one rule.

mod bounded;
mod contradiction;
mod early;
mod edge;
mod half_open;
mod halt;
mod not_received;
mod outcomes;
mod refused;
mod undecided;
mod usable_rail;

use std::cell::Ref;

use mitra_failover::{CloseReason, Contradiction};
use mitra_verbs::Capabilities;

use super::{End, FailoverWorld, Finding, SeedRun};
use mitra_sim::workload::{FailoverQp, Verdict, verify};

struct Connection<'a, Q> {
    world: &'a FailoverWorld<Q>,
    number: usize,
    ends: [Ref<'a, End<Q>>; 2],
    reasons: [Option<CloseReason>; 2],
    contradictions: [Option<Contradiction>; 2],
    verdicts: [Verdict; 2],
}

impl<Q: FailoverQp + 'static> FailoverWorld<Q> {
    pub(super) fn check(&self, number: usize, result: &mut SeedRun) {
        let ends = self.connections[number].each_ref().map(|end| end.borrow());
        let plans = &self.setup.plans[number];
        let [a, b] = &ends;
        let verdicts = [
            verify(&plans[0], a.peer.requester_log(), b.peer.responder_log()),
            verify(&plans[1], b.peer.requester_log(), a.peer.responder_log()),
        ];
        let connection = Connection {
            world: self,
            number,
            reasons: ends.each_ref().map(|end| end.endpoint.qp.close_reason()),
            contradictions: ends.each_ref().map(|end| end.endpoint.qp.contradiction()),
            ends,
            verdicts,
        };
        let checkers: [Checker<Q>; 9] = [
            bounded::check,
            outcomes::check,
            early::check,
            contradiction::check,
            usable_rail::check,
            undecided::check,
            refused::check,
            halt::check,
            edge::check,
        ];
        result.findings.extend(checkers.iter().flat_map(|check| check(&connection)));
    }
}

type Checker<Q> = fn(&Connection<'_, Q>) -> Vec<Finding>;

impl<Q: FailoverQp + 'static> Connection<'_, Q> {
    fn all_nics(&self, has: fn(Capabilities) -> bool) -> bool {
        self.world.setup.nics().all(has)
    }

    fn describe(&self) -> String {
        format!("connection {} closed for {:?}, {:?}", self.number, self.reasons, self.contradictions)
    }

    /// Returns whether a report or the devices excuse a false outcome.
    fn is_false_outcome_excused(&self) -> bool {
        // After `Unfenced`, a hung NIC may continue to execute requests.
        if self.reasons.contains(&Some(CloseReason::Unfenced)) {
            return true;
        }
        // Without `ack_after_placement`, a responder may lose acknowledged data. In a failover,
        // only the completion log shows the loss.
        let world = self.world;
        let lost: u64 =
            world.nics.iter().flatten().map(|nic| world.world.stats(nic.id()).placement_bytes_lost).sum();
        let mut contradictions = self.contradictions.iter().flatten();
        let reports_loss = contradictions.any(|c| matches!(c, Contradiction::LostAfterAck { .. }));
        let vqp = &world.setup.vqp;
        !vqp.is_durable()
            && !self.all_nics(|nic| nic.ack_after_placement)
            && (reports_loss || lost > 0 && (vqp.completion_log.is_none() || self.reasons != [None; 2]))
    }
}
