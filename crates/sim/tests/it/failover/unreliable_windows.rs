//! Memory windows on unreliable connections: binds and invalidations before, during and after
//! failovers. If no window permits a WRITE, the NIC drops the WRITE without an answer. So the tests
//! send a message behind the WRITE, and look at the memory when the message has arrived.

use core::ops::Range;
use core::time::Duration;

use super::windows::{FAILOVER, SETTLE, bind, bind_op, bindable, execute, window};
use crate::vqp_pair::{VqpPair, config};
use mitra_failover::{Config, Outcome, Service};
use mitra_sim::{DurationRange, fault_times};
use mitra_transport::fault::Failure;
use mitra_verbs::*;

const TYPES: [WindowType; 2] = [WindowType::Type1, WindowType::Type2];

fn unreliable() -> Config {
    Config { service: Service::Unreliable, ..config() }
}

/// With heartbeats every millisecond, an end sends nothing before it has heard its peer.
fn with_heartbeats() -> Config {
    let mut config = Config { peer_timeout: Duration::from_millis(200), ..unreliable() };
    config.detector.heartbeat_interval = Duration::from_millis(1);
    config.detector.max_missed_heartbeats = 5;
    config.detector.first_contact_timeout = Duration::from_millis(100);
    config
}

/// Writes by a key. Returns whether the WRITE was executed when the message behind it has arrived.
fn is_permitted(pair: &mut VqpPair, wr_id: u64, to: RemoteAddr) -> bool {
    let before = pair.memory[1].load(0);
    assert_ne!(before, wr_id);
    pair.recv(1, wr_id, 0);
    pair.send(0, wr_id, SendOp::Write(to), Data::inline(&wr_id.to_ne_bytes()));
    pair.send(0, wr_id + 1000, SendOp::Send, Data::empty());
    pair.poll_times(&[0, 1], SETTLE);
    for end_of in [wr_id, wr_id + 1000] {
        assert_eq!(pair.outcome(0, end_of, false), Some(Outcome::Success));
    }
    assert_eq!(pair.outcome(1, wr_id, true), Some(Outcome::Success));
    assert_eq!(pair.vqps.each_ref().map(|vqp| vqp.close_reason()), [None, None]);
    match pair.memory[1].load(0) {
        after if after == wr_id => true,
        after => {
            assert_eq!(after, before);
            false
        }
    }
}

#[test]
fn bound_window_is_valid_on_every_rail() {
    for window_type in TYPES {
        for rails in [2, 3] {
            let mut pair = VqpPair::new(rails, unreliable());
            let (mr, mw) = (bindable(&pair), window(&pair, window_type));
            let to = bind(&mut pair, 1, &mw, &mr, 7);
            for i in 0..5 {
                assert!(is_permitted(&mut pair, 10 + 2 * i, to), "{window_type:?}, {rails} rails, move {i}");
                assert!(!is_permitted(&mut pair, 11 + 2 * i, RemoteAddr { addr: to.addr + 60, ..to }));
                pair.fail_over(FAILOVER);
            }
            assert!(is_permitted(&mut pair, 50, to));
        }
    }
}

/// The owner can bind the window again, and can deregister its region when no window is bound.
#[test]
fn invalidated_window_permits_nothing_on_any_rail() {
    for (failovers_before, failovers_after) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 1)] {
        let mut pair = VqpPair::new(2, unreliable());
        let (mr, mw) = (bindable(&pair), window(&pair, WindowType::Type2));
        let to = bind(&mut pair, 1, &mw, &mr, 7);
        (0..failovers_before).for_each(|_| pair.fail_over(FAILOVER));
        assert!(is_permitted(&mut pair, 10, to));
        assert!(matches!(pair.vqps[1].domain().deregister(&mr), Err(Error::Busy { .. })));
        execute(&mut pair, 2, SendOp::LocalInvalidate(to.rkey));
        (0..failovers_after).for_each(|_| pair.fail_over(FAILOVER));
        assert!(!is_permitted(&mut pair, 11, to));
        let again = bind(&mut pair, 3, &mw, &mr, 8);
        assert!(is_permitted(&mut pair, 12, again));
        assert!(!is_permitted(&mut pair, 13, to));
        execute(&mut pair, 4, SendOp::LocalInvalidate(again.rkey));
        pair.vqps[1].domain().deregister(&mr).expect("no window is bound");
    }
}

/// A bind of other bytes makes the earlier key invalid on every rail.
#[test]
fn type_1_window_is_bound_anew_on_every_rail() {
    for failovers in 0..3 {
        let mut pair = VqpPair::new(2, unreliable());
        let (mr, mw) = (bindable(&pair), window(&pair, WindowType::Type1));
        let first = bind(&mut pair, 1, &mw, &mr, 1);
        let second = bind(&mut pair, 2, &mw, &mr, 2);
        (0..failovers).for_each(|_| pair.fail_over(FAILOVER));
        assert!(is_permitted(&mut pair, 10, second));
        assert!(!is_permitted(&mut pair, 11, first));
    }
}

/// UC has no SEND with invalidate (IBTA volume 1, table 38).
#[test]
fn refused_operations_stop_the_sends_only() {
    for failovers in 0..3 {
        for kind in 0..4 {
            let mut pair = VqpPair::new(2, unreliable());
            let (mr, mw) = (bindable(&pair), window(&pair, WindowType::Type2));
            let to = bind(&mut pair, 1, &mw, &mr, 7);
            (0..failovers).for_each(|_| pair.fail_over(FAILOVER));
            let (op, status) = match kind {
                0 => (bind_op(&mw, &mr, to.rkey, 64), WcStatus::WindowBind),
                1 => {
                    let other = to.rkey.with_consumer_bits(9);
                    (SendOp::LocalInvalidate(other), WcStatus::LocalQpOperation)
                }
                2 => (bind_op(&mw, &pair.mr[1], to.rkey.with_consumer_bits(9), 64), WcStatus::WindowBind),
                _ => (SendOp::SendWithInvalidate(pair.remote(0, 0).rkey), WcStatus::LocalQpOperation),
            };
            pair.send(1, 2, op, Data::empty());
            pair.send(1, 3, SendOp::Send, Data::inline(b"flushed"));
            pair.poll_times(&[0, 1], 400);
            assert_eq!(pair.outcome(1, 2, false), Some(Outcome::Failed(status)), "{kind}");
            assert_eq!(pair.outcome(1, 3, false), Some(Outcome::Failed(WcStatus::Flushed)), "{kind}");
            assert!(pair.vqps[1].is_halted() && pair.vqps[1].close_reason().is_none());
            // The window is still bound, also after another move.
            assert!(is_permitted(&mut pair, 10, to), "{kind}");
            pair.fail_over(FAILOVER);
            assert!(is_permitted(&mut pair, 11, to), "{kind}");
            pair.vqps[1].resume();
            execute(&mut pair, 4, SendOp::LocalInvalidate(to.rkey));
            assert!(!is_permitted(&mut pair, 12, to), "{kind}");
        }
    }
}

/// The rail fails in each round of these steps: bind, tell the peer the key, use it, invalidate it,
/// use it in vain. A bind and an invalidation are executed before the operations behind them,
/// whatever fails. The failure may lose a WRITE.
#[test]
fn window_operations_are_executed_once_whenever_a_rail_fails() {
    const ROUNDS: Range<usize> = 0..60;
    for failure in 0..3 {
        let mut lost = 0;
        for rounds in fault_times(ROUNDS) {
            let mut pair = VqpPair::new(2, unreliable());
            let (mr, mw) = (bindable(&pair), window(&pair, WindowType::Type2));
            pair.poll_times(&[0, 1], 5);
            let (mut failed, mut step, mut is_posted) = (false, 0, false);
            let mut written = 0;
            for round in 0..FAILOVER {
                if round == rounds && !core::mem::replace(&mut failed, true) {
                    match failure {
                        0 => pair.link_down(0, 0),
                        n => {
                            let nic = pair.testbed.nics[n - 1][0].id();
                            pair.testbed.world.fail(nic, Failure::NicDead);
                        }
                    }
                }
                let key = mw.primary().rkey.with_consumer_bits((step / 4) as u8);
                let to = RemoteAddr { addr: mr.primary().addr, rkey: key };
                let (end, id) = (usize::from(step % 2 == 0), 100 + step);
                if !core::mem::replace(&mut is_posted, true) {
                    match step % 4 {
                        0 => pair.send(1, id, bind_op(&mw, &mr, key, 64), Data::empty()),
                        2 => pair.send(1, id, SendOp::LocalInvalidate(key), Data::empty()),
                        _ => {
                            pair.vqps[0].import(&mw.remote(key)).expect("the vQP is connected");
                            pair.send(0, id, SendOp::Write(to), Data::inline(&id.to_ne_bytes()));
                        }
                    }
                }
                pair.poll(&[0, 1]);
                if let Some(outcome) = pair.outcome(end, id, false) {
                    assert_eq!(outcome, Outcome::Success, "step {step}, rail failed in round {rounds}");
                    // After these rounds, a message without a receive has been dropped.
                    pair.poll_times(&[0, 1], 2);
                    match (step % 4, pair.memory[1].load(0)) {
                        (1, value) if value == id => written = id,
                        (1, value) => {
                            assert_eq!(value, written, "step {step}, rail failed in round {rounds}");
                            lost += 1;
                        }
                        (_, value) => {
                            assert_eq!(value, written, "step {step}, rail failed in round {rounds}")
                        }
                    }
                    step += 1;
                    is_posted = false;
                }
            }
            assert!(step > 100, "{step} steps, rail failed in round {rounds}, {failure}");
        }
        let runs = fault_times(ROUNDS).count();
        assert!(lost <= runs, "a failure loses what was in flight: {lost} WRITEs in {runs} runs");
    }
}

/// The NIC of the new rail executes the invalidation late. The peer's WRITE by the invalid key
/// waits for the move, and the NIC then drops the WRITE.
#[test]
fn peer_uses_a_rail_only_after_the_invalidation_there() {
    for rounds in 0..60 {
        let mut world = mitra_sim::Config::fault_free();
        world.nic.doorbell_delay = DurationRange::micros(0, 400);
        let mut pair = VqpPair::with_world(3, unreliable(), world);
        let (mr, mw) = (bindable(&pair), window(&pair, WindowType::Type2));
        let to = bind(&mut pair, 1, &mw, &mr, 7);
        assert!(is_permitted(&mut pair, 10, to));
        let before = pair.memory[1].load(0);
        pair.send(1, 2, SendOp::LocalInvalidate(to.rkey), Data::empty());
        pair.poll_times(&[1], rounds % 20);
        pair.link_down(0, 0);
        while pair.outcome(1, 2, false).is_none() {
            pair.poll(&[0, 1]);
        }
        // This WRITE is behind the completion of the invalidation.
        pair.send(0, 11, SendOp::Write(to), Data::inline(b"too late"));
        pair.poll_times(&[0, 1], FAILOVER);
        assert_eq!(pair.outcome(0, 11, false), Some(Outcome::Success));
        assert_eq!(pair.memory[1].load(0), before, "{rounds}");
    }
}

/// A bind and an invalidation need no peer, so they are executed before the end has heard the peer.
/// If they are behind a message that waits for the peer, they wait too.
#[test]
fn binds_do_not_wait_for_the_peer() {
    for rails in [1, 2] {
        let mut pair = VqpPair::new(rails, with_heartbeats());
        let (mr, mw) = (bindable(&pair), window(&pair, WindowType::Type2));
        let rkey = mw.primary().rkey.with_consumer_bits(3);
        pair.send(1, 1, bind_op(&mw, &mr, rkey, 64), Data::empty());
        pair.poll_times(&[1], 100);
        assert_eq!(pair.outcome(1, 1, false), Some(Outcome::Success));
        pair.send(1, 2, SendOp::Send, Data::inline(b"message"));
        pair.send(1, 3, SendOp::LocalInvalidate(rkey), Data::empty());
        pair.poll_times(&[1], 100);
        assert_eq!(pair.completions[1].len(), 1);
        pair.recv(0, 4, 64);
        pair.poll_times(&[0, 1], 400);
        assert_eq!(pair.outcome(0, 4, true), Some(Outcome::Success));
        assert_eq!([2, 3].map(|wr_id| pair.outcome(1, wr_id, false)), [Some(Outcome::Success); 2]);
    }
}
