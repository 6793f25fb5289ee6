//! `ended-with-a-good-rail`: a connection stays open while both ends can use a rail.

use mitra_failover::CloseReason;

use super::super::fault_schedule::Fault;
use super::{Connection, Finding};
use mitra_sim::workload::FailoverQp;
use mitra_sim::workload::check_liveness;

pub(super) fn check<Q: FailoverQp + 'static>(connection: &Connection<'_, Q>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |detail| findings.push(Finding::stuck("ended-with-a-good-rail", detail));
    let schedule = &connection.world.schedule;
    let forbidden = connection.reasons.into_iter().flatten().find(|&reason| !may_close(connection, reason));
    if let Some(reason) = forbidden {
        let rail = schedule.spared_rail;
        found(format!("{reason:?} although rail {rail:?} was usable; {}", connection.describe()));
    }
    // The liveness rule ignores packets that are lost although the links are up, and addresses that
    // the peer does not know yet.
    let [a, b] = &connection.ends;
    if !schedule.has(|fault| matches!(fault, Fault::OneWay { .. } | Fault::Address { .. }))
        && let Err(dead) =
            check_liveness(&connection.world.world, connection.world.hosts, [&a.endpoint.qp, &b.endpoint.qp])
    {
        found(dead);
    }
    findings
}

fn may_close<Q: FailoverQp + 'static>(connection: &Connection<'_, Q>, reason: CloseReason) -> bool {
    let (setup, schedule) = (&connection.world.setup, &connection.world.schedule);
    let may_follow = || schedule.has_leave(connection.number) || an_end_may_close(connection);
    match reason {
        CloseReason::Closed | CloseReason::PeerClosed => may_follow(),
        CloseReason::Unfenced => !connection.all_nics(|nic| nic.reset),
        CloseReason::Contradiction => !connection.all_nics(|nic| nic.ack_after_placement),
        // The host of a hung NIC can post no receives.
        CloseReason::RequestError => {
            setup.vqp.rnr_retry < 7 && (!setup.receives_posted_ahead || schedule.has_hang())
        }
        CloseReason::EpochsUsedUp => setup.limits.may_use_up_epochs(),
        _ => schedule.spared_rail.is_none() || may_follow(),
    }
}

/// Returns whether an end has closed for an allowed reason of its own, so that its peer may close.
fn an_end_may_close<Q: FailoverQp + 'static>(connection: &Connection<'_, Q>) -> bool {
    connection.reasons.into_iter().flatten().any(|reason| match reason {
        CloseReason::Closed | CloseReason::PeerClosed => false,
        CloseReason::Unfenced
        | CloseReason::Contradiction
        | CloseReason::RequestError
        | CloseReason::EpochsUsedUp => may_close(connection, reason),
        _ => connection.world.schedule.spared_rail.is_none(),
    })
}
