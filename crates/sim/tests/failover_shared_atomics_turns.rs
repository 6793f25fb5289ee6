//! No rail reaches all clients that share a word, so the home alternates between the rails. The pauses between moves bound how often.

mod shared_word;

use core::time::Duration;

use shared_word::{PEER_TIMEOUT, Pace, Setup, Shape};

/// The number of moves of a vQP in a peer timeout, when it has moved often.
const MOVES: u16 = 8;
/// A refused proposal uses up an epoch, and the accepted one that follows it another.
const EPOCHS_PER_MOVE: u16 = 2;

/// The epoch of the vQP that has used up most.
fn highest_epoch(setup: &Setup) -> u16 {
    let server = setup.server.borrow();
    server.iter().filter_map(|vqp| vqp.last_failover()).map(|report| report.epoch).max().unwrap_or(0)
}

/// Each client reaches one rail, and each another. Without heartbeats a server learns only by refusals which rails its peers cannot use, so it does not
/// wait before it proposes another.
fn take_turns(rails: usize, heartbeats: bool) {
    let world = mitra_sim::Config::fault_free();
    let capabilities = vec![world.capabilities; rails];
    let shape = Shape { clients: rails, rails: capabilities, shares: true, server_pace: Pace::default() };
    let mut setup = Setup::with_shape(1, world, shape);
    if !heartbeats {
        setup.config.detector.max_missed_heartbeats = 0;
    }
    (0..rails).for_each(|n| setup.add_client(n == 1, 20));
    assert!(setup.run(Duration::from_secs(5)), "work is not done before the failures");
    for (client, rail) in (0..rails).flat_map(|client| (0..rails).map(move |rail| (client, rail))) {
        if rail != client {
            let nic = setup.nics[client + 1][rail].id();
            setup.world.set_link(nic, false);
        }
    }
    let mut seen = Vec::new();
    for _ in 0..10 {
        for client in &setup.clients {
            client.borrow_mut().target += 3;
        }
        setup.world.run_for(PEER_TIMEOUT);
        seen.push(highest_epoch(&setup));
    }
    let name = format!("{rails} rails, heartbeats: {heartbeats}, epochs {seen:?}");
    assert!(setup.run(PEER_TIMEOUT * 10), "work is not done, {name}");
    assert_eq!((setup.check(), setup.close_reasons()), (Ok(()), vec![None; rails]), "{name}");
    for (before, after) in seen[1..].iter().zip(&seen[2..]) {
        assert!(after - before > 0, "nobody takes a turn: {name}");
        assert!(after - before <= MOVES * EPOCHS_PER_MOVE, "the home alternates too often: {name}");
    }
}

#[test]
fn home_alternates_with_pauses_where_peers_refuse_it() {
    [2, 3, 4].into_iter().for_each(|rails| take_turns(rails, false));
}

#[test]
fn home_alternates_with_pauses_where_heartbeats_name_unusable_rails() {
    [2, 3, 4].into_iter().for_each(|rails| take_turns(rails, true));
}
