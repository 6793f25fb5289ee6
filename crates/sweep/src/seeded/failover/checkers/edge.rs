//! `edge`: with a log entry for each WRITE and atomic, a recovery leaves at most one operation
//! undecided.

use mitra_failover::WritePolicy;

use super::{Connection, Finding};
use mitra_sim::workload::FailoverQp;

pub(super) fn check<Q: FailoverQp + 'static>(connection: &Connection<'_, Q>) -> Vec<Finding> {
    let vqp = &connection.world.setup.vqp;
    let logs_each = vqp.completion_log.is_some_and(|log| log.interval <= 1);
    if !logs_each || vqp.write_policy != WritePolicy::Strict {
        return Vec::new();
    }
    let halts = connection.ends.iter().flat_map(|end| &end.endpoint.halts);
    let wide = halts.filter(|halt| halt.indeterminate > 1);
    wide.map(|halt| Finding::violation("edge", format!("{halt:?} leaves more than one operation open")))
        .collect()
}
