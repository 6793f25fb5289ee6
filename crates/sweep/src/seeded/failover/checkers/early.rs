//! `early`: the effect of an operation is in memory when its success is reported. On a durable
//! connection, a message is received by then.

use super::{Connection, Finding};
use mitra_sim::workload::FailoverQp;

pub(super) fn check<Q: FailoverQp + 'static>(connection: &Connection<'_, Q>) -> Vec<Finding> {
    if connection.is_false_outcome_excused() {
        return Vec::new();
    }
    let first = connection.ends.iter().find_map(|end| end.early.first());
    let finding = |first| Finding::violation("early", format!("{}; {first}", connection.describe()));
    first.map(finding).into_iter().collect()
}
