//! The checks of a finished world.

use mitra_failover::{CloseReason, Contradiction};
use mitra_verbs::Capabilities;

use super::super::verdict_findings;
use super::{FailoverWorld, Finding, SeedRun};
use crate::check_liveness;
use crate::workload::{FailoverQp, verify};

/// Whether a connection may end only for a reason that the liveness rule allows.
const CHECKS_LIVENESS: bool = true;

impl<Q: FailoverQp + 'static> FailoverWorld<Q> {
    /// Checks the records of both ends of the connection with this index.
    pub(super) fn check(&self, connection: usize, result: &mut SeedRun) {
        let [a, b] = self.connections[connection].each_ref().map(|end| end.borrow());
        let reasons = [a.endpoint.qp.close_reason(), b.endpoint.qp.close_reason()];
        let contradictions = [a.endpoint.qp.contradiction(), b.endpoint.qp.contradiction()];
        let plans = &self.setup.plans[connection];
        let verdicts = [
            verify(&plans[0], a.peer.requester_log(), b.peer.responder_log()),
            verify(&plans[1], b.peer.requester_log(), a.peer.responder_log()),
        ];
        let says = format!("connection {connection} closed for {reasons:?}, {contradictions:?}");
        if !self.is_false_outcome_excused(reasons, contradictions) {
            for (name, verdict) in ["a", "b"].into_iter().zip(&verdicts) {
                result.findings.extend(verdict_findings::of_verdict(name, verdict).into_iter().map(
                    |mut f| {
                        f.detail = format!("{says}; {}", f.detail);
                        f
                    },
                ));
            }
            if let Some(first) = a.early.first().or(b.early.first()) {
                result.findings.push(Finding::violation("early", format!("{says}; {first}")));
            }
        }
        let is_loss = |c: &Contradiction| matches!(c, Contradiction::LostAfterAck { .. });
        for contradiction in contradictions.iter().flatten() {
            // A durable operation is in flight until the responder's processor has seen it.
            let may_lose = !self.setup.vqp.durable && !self.all_nics(|nic| nic.ack_after_placement);
            if !is_loss(contradiction) || !may_lose {
                result.findings.push(Finding::violation("contradiction", says.clone()));
            }
        }
        if !CHECKS_LIVENESS {
            return;
        }
        if let Some(reason) =
            reasons.into_iter().flatten().find(|&reason| !self.may_close(connection, reason))
        {
            let detail =
                format!("{reason:?} although rail {:?} was usable; {says}", self.schedule.spared_rail);
            result.findings.push(Finding::stuck("ended-with-a-good-rail", detail));
        }
        // Packets that are lost although the links are up do not count as an isolation of the ends.
        if !self.schedule.has_one_way_loss()
            && let Err(dead) = check_liveness(&self.world, self.hosts, [&a.endpoint.qp, &b.endpoint.qp])
        {
            result.findings.push(Finding::stuck("ended-with-a-good-rail", dead));
        }
        let all_open = reasons == [None; 2];
        if all_open && self.must_decide_all(connection) {
            for verdict in verdicts.iter().filter(|verdict| verdict.is_exact() && !verdict.is_complete()) {
                let detail = format!("an operation failed although all NICs are alive\n{verdict}");
                result.findings.push(Finding::violation("undecided", detail));
            }
        }
    }

    fn all_nics(&self, has: fn(Capabilities) -> bool) -> bool {
        self.setup.nics().all(has)
    }

    /// Returns whether a report or the devices excuse a false outcome.
    fn is_false_outcome_excused(
        &self,
        reasons: [Option<CloseReason>; 2],
        contradictions: [Option<Contradiction>; 2],
    ) -> bool {
        // After `Unfenced`, a hung NIC may continue to execute requests.
        if reasons.contains(&Some(CloseReason::Unfenced)) {
            return true;
        }
        // Without `ack_after_placement`, the responder may lose data that it has acknowledged. Only a log shows that, in a failover.
        let lost: u64 =
            self.nics.iter().flatten().map(|nic| self.world.stats(nic.id()).placement_bytes_lost).sum();
        let reports_loss =
            contradictions.iter().flatten().any(|c| matches!(c, Contradiction::LostAfterAck { .. }));
        !self.setup.vqp.durable
            && !self.all_nics(|nic| nic.ack_after_placement)
            && (reports_loss || lost > 0 && (!self.setup.vqp.completion_log || reasons != [None; 2]))
    }

    /// Returns whether the connection may close for this reason.
    fn may_close(&self, connection: usize, reason: CloseReason) -> bool {
        match reason {
            CloseReason::Closed | CloseReason::PeerClosed => {
                self.schedule.has_leave(connection) || self.an_end_may_close(connection)
            }
            CloseReason::Unfenced => !self.all_nics(|nic| nic.reset),
            CloseReason::Contradiction => !self.all_nics(|nic| nic.ack_after_placement),
            // A hung NIC answers, but its host can post no receives.
            CloseReason::RequestError => {
                self.setup.vqp.rnr_retry < 7
                    && (!self.setup.receives_posted_ahead || self.schedule.has_hang())
            }
            CloseReason::EpochsUsedUp => false,
            _ => {
                self.schedule.spared_rail.is_none()
                    || self.schedule.has_leave(connection)
                    || self.an_end_may_close(connection)
            }
        }
    }

    /// Returns whether an end has closed for a reason of its own that is allowed, so that its peer may close too.
    fn an_end_may_close(&self, connection: usize) -> bool {
        let ends = &self.connections[connection];
        let reasons = ends.each_ref().map(|end| end.borrow().endpoint.qp.close_reason());
        reasons.into_iter().flatten().any(|reason| match reason {
            CloseReason::Closed | CloseReason::PeerClosed => false,
            CloseReason::Unfenced | CloseReason::Contradiction | CloseReason::RequestError => {
                self.may_close(connection, reason)
            }
            _ => self.schedule.spared_rail.is_none(),
        })
    }

    /// Returns whether the evidence of every operation survives all faults of the schedule.
    fn must_decide_all(&self, connection: usize) -> bool {
        let keeps_evidence =
            |nic: Capabilities| nic.psn_query && nic.saved_results && nic.ack_after_placement;
        self.all_nics(keeps_evidence)
            && !self.schedule.has_nic_failure()
            && !self.schedule.has_leave(connection)
            && (self.setup.receives_posted_ahead || self.setup.vqp.rnr_retry == 7)
    }
}
