//! `halt`: behind an operation that failed, no operation succeeds until posting resumes.

use super::{Connection, Finding};
use mitra_sim::workload::{FailoverQp, Halt};

pub(super) fn check<Q: FailoverQp + 'static>(connection: &Connection<'_, Q>) -> Vec<Finding> {
    let halts = connection.ends.iter().flat_map(|end| &end.endpoint.halts);
    let text = |halt: &Halt| {
        let succeeded = halt.succeeded?;
        Some(format!("operation {succeeded} succeeded behind operation {}, which failed", halt.failed))
    };
    halts.filter_map(text).map(|text| Finding::violation("halt", text)).collect()
}
