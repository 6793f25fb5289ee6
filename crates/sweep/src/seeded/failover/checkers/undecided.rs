//! `undecided`: if the NICs that keep an operation's evidence do not fail, the operation does not
//! fail.

use mitra_verbs::Capabilities;

use super::{Connection, Finding};
use mitra_sim::workload::{FailoverQp, OpKind};

pub(super) fn check<Q: FailoverQp + 'static>(connection: &Connection<'_, Q>) -> Vec<Finding> {
    if connection.reasons != [None; 2] || !keeps_evidence(connection) {
        return Vec::new();
    }
    let schedule = &connection.world.schedule;
    let ends = connection.verdicts.iter().enumerate();
    // The peer's NICs keep the evidence. If a NIC of the requester fails and loses the data of a
    // READ, the READ and the operations behind it fail.
    let must_decide = ends.filter(|(end, verdict)| {
        let has_reads = verdict.of(OpKind::Read).posted > 0;
        !schedule.has_nic_failure() || schedule.has_nic_failures_only_at(*end) && !has_reads
    });
    let failed = must_decide.filter(|(_, verdict)| verdict.is_exact() && !verdict.is_complete());
    let detail =
        |verdict| format!("an operation failed although no NIC that keeps evidence failed\n{verdict}");
    failed.map(|(_, verdict)| Finding::violation("undecided", detail(verdict))).collect()
}

/// Returns whether each NIC keeps the evidence of every operation, no program ends its queue pair,
/// and no message fails for lack of a receive.
fn keeps_evidence<Q: FailoverQp + 'static>(connection: &Connection<'_, Q>) -> bool {
    let keeps_evidence = |nic: Capabilities| nic.psn_query && nic.saved_results && nic.ack_after_placement;
    let (setup, schedule) = (&connection.world.setup, &connection.world.schedule);
    connection.all_nics(keeps_evidence)
        && !schedule.has_leave(connection.number)
        && (setup.receives_posted_ahead || setup.vqp.rnr_retry == 7)
}
