//! `refused`: an open queue pair refuses no valid request while it has a free sequence number.
//! `numbers`: a queue pair takes no request when it has used up its sequence numbers.

use super::{Connection, Finding};
use mitra_sim::workload::FailoverQp;

pub(super) fn check<Q: FailoverQp + 'static>(connection: &Connection<'_, Q>) -> Vec<Finding> {
    let limits = &connection.world.setup.limits;
    let mut findings = Vec::new();
    for (end, reason) in connection.ends.iter().zip(connection.reasons) {
        let posted = end.peer.posted();
        let is_excused =
            |error: &String| reason.is_some() || error.contains("2^48") && limits.has_used_up_numbers(posted);
        let refused = end.peer.requester_log().refused.as_ref().filter(|error| !is_excused(error));
        findings.extend(refused.map(|error| Finding::violation("refused", error.clone())));
        if limits.has_too_many(posted) {
            let text = format!("{posted} operations were posted from number {} on", limits.first_seq);
            findings.push(Finding::violation("numbers", text));
        }
    }
    findings
}
