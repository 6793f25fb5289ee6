//! `lost`, `doubled`, `wrong`, `order`, `stray`: each reported outcome is true, and no byte changed
//! that no operation writes.

use super::super::super::verdict_findings;
use super::{Connection, Finding};
use mitra_sim::workload::{FailoverQp, OpKind};

pub(super) fn check<Q: FailoverQp + 'static>(connection: &Connection<'_, Q>) -> Vec<Finding> {
    if connection.is_false_outcome_excused() {
        return Vec::new();
    }
    // An end that closes reports a receive as flushed if the completion is late.
    let has_late_receives =
        connection.world.setup.limits.late_completions.is_some() && connection.reasons != [None; 2];
    let verdicts = ["a", "b"].into_iter().zip(connection.verdicts.clone());
    let findings = verdicts.flat_map(|(end, mut verdict)| {
        if has_late_receives {
            for kind in [OpKind::Send, OpKind::WriteImm] {
                verdict.kinds[kind as usize].lost = 0;
                verdict.kinds[kind as usize].wrong_value = 0;
            }
        }
        verdict_findings::of_verdict(end, &verdict)
    });
    findings.map(|f| Finding { detail: format!("{}; {}", connection.describe(), f.detail), ..f }).collect()
}
