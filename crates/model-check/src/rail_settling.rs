//! The liveness of the rail negotiation: after the last failure, the two ends settle on a rail that
//! both can use.

use std::time::Duration;

use mitra_failover::rail_negotiation::{Body, CloseReason, RailFailure};

use crate::rail_world::{PEER_TIMEOUT, RAILS, RailWorld};

/// The number of rounds of a stable period. A round lasts 1 ms.
const ROUNDS: u32 = 40 * PEER_TIMEOUT.as_millis() as u32;

/// Returns the liveness property that a stable period after `world` violates. In the stable period,
/// nothing fails, both ends run, and every message arrives within a round if some rail is up at
/// both ends.
pub(crate) fn stable_period_violation(mut world: RailWorld) -> Option<&'static str> {
    let was_closed = world.ends.iter().any(|e| e.closed.is_some() || e.is_crashed);
    let usable = (0..RAILS).any(|rail| world.is_rail_up(rail));
    world.take_messages(); // lost
    for round in 0..ROUNDS {
        run_round(&mut world, round);
        if is_settled(&world) {
            break;
        }
    }
    if world.violation.is_some() {
        return world.violation;
    }
    let crashed = world.ends.iter().any(|e| e.is_crashed);
    let live = world.ends.iter().filter(|e| !e.is_crashed);
    if crashed {
        // The survivor closes, and never decides alone.
        return live.clone().any(|e| e.closed.is_none()).then_some("an end whose peer died closes");
    }
    if was_closed || !usable {
        return None;
    }
    // An end that slept for the peer timeout may give up, and so may its peer.
    if !world.was_late && live.clone().any(|e| e.closed.is_some()) {
        return Some("no end closes while both can use a rail");
    }
    (!is_settled(&world)).then_some("both ends settle on a rail that both can use")
}

/// Returns whether both ends may post on the same rail and await nothing, or both have closed.
fn is_settled(world: &RailWorld) -> bool {
    let [a, b] = &world.ends;
    if a.is_crashed || b.is_crashed {
        return world.ends.iter().all(|e| e.is_crashed || e.closed.is_some());
    }
    let is_bound = world.ends.iter().all(|e| {
        e.negotiation.may_post()
            && e.negotiation.is_move_confirmed()
            && !e.negotiation.is_stranded()
            && !e.negotiation.awaits_peer_moved()
    });
    is_bound && a.moves == b.moves && world.is_rail_up(a.negotiation.active())
        || a.closed.is_some() && b.closed.is_some()
}

fn run_round(world: &mut RailWorld, round: u32) {
    let is_up = (0..RAILS).any(|rail| world.is_rail_up(rail));
    for end in 0..2 {
        if world.ends[end].is_crashed {
            continue;
        }
        let e = &mut world.ends[end];
        e.now += Duration::from_millis(1);
        e.negotiation.handle_timeout(e.now);
        world.run_actions(end);
        world.fenced(end);
        world.free_home(end);
        for rail in 0..RAILS {
            if round.is_multiple_of(4) && world.ends[end].negotiation.awaits_new_qps(rail) {
                world.send_new_qp(end, rail, None);
            }
        }
        if round.is_multiple_of(8) {
            beat(world, end, is_up, round);
        }
    }
    for (to, message) in world.take_messages() {
        let passes = match message.body {
            Body::NewQp(qp) => world.is_rail_up(qp.rail.into()),
            _ => is_up,
        };
        let to = usize::from(to);
        if passes && !world.ends[to].is_crashed {
            world.receive(to, message);
            world.run_actions(to);
        }
    }
}

/// Passes the peer's heartbeat to an end. Reports the silence of the active rail if the peer
/// answers on another one. Closes the end if it has not heard the peer for the peer timeout.
fn beat(world: &mut RailWorld, end: usize, is_up: bool, round: u32) {
    let peer = &world.ends[1 - end];
    let is_peer_alive = !peer.is_crashed && peer.closed.is_none();
    if is_peer_alive && is_up {
        world.heartbeat(end);
    }
    let e = &mut world.ends[end];
    let active = e.negotiation.active();
    let now = e.now;
    if e.negotiation.is_active() {
        let is_answered = is_peer_alive && is_up;
        if is_answered && !world.is_rail_up(active) {
            world.ends[end].negotiation.rail_failed(now, active, RailFailure::Silent);
        } else if !is_answered && u128::from(round) >= PEER_TIMEOUT.as_millis() {
            world.ends[end].negotiation.close(CloseReason::PeerUnreachable);
        }
        world.run_actions(end);
    }
    debug_assert!(world.ends[end].closed != Some(CloseReason::Unfenced));
}
