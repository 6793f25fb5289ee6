//! `contradiction`: the evidence of the two ends agrees, unless a NIC has lost what it
//! acknowledged.

use mitra_failover::Contradiction;

use super::{Connection, Finding};
use mitra_sim::workload::FailoverQp;

pub(super) fn check<Q: FailoverQp + 'static>(connection: &Connection<'_, Q>) -> Vec<Finding> {
    // A durable operation is in flight until the responder's processor has seen it.
    let may_lose =
        !connection.world.setup.vqp.is_durable() && !connection.all_nics(|nic| nic.ack_after_placement);
    let is_excused = |c: &&Contradiction| may_lose && matches!(c, Contradiction::LostAfterAck { .. });
    let found = connection.contradictions.iter().flatten().filter(|c| !is_excused(c));
    found.map(|_| Finding::violation("contradiction", connection.describe())).collect()
}
