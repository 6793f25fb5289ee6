//! Memory windows on virtual queue pairs: binds, invalidations and SENDs with invalidate, before,
//! during and after failovers.

use crate::vqp_pair::{FULL_ACCESS, VqpPair, config};
use mitra_failover::{CloseReason, Config, Outcome, VirtualMr, VirtualMw, WritePolicy};
use mitra_sim::{DurationRange, fault_times};
use mitra_transport::fault::Failure;
use mitra_verbs::*;

/// The number of rounds of polling in which a failover ends and the old rail is rebuilt.
pub const FAILOVER: usize = 4000;
pub const SETTLE: usize = 40;

pub fn bindable(pair: &VqpPair) -> VirtualMr {
    let domain = pair.vqps[1].domain();
    domain.register(&pair.memory[1], FULL_ACCESS | Access::WINDOW_BIND).expect("the NICs have room")
}

pub fn window(pair: &VqpPair, window_type: WindowType) -> VirtualMw {
    pair.vqps[1].domain().alloc_mw(window_type).expect("the NICs have room")
}

pub fn bind_op(mw: &VirtualMw, mr: &VirtualMr, rkey: Key, len: u64) -> SendOp {
    let (mw, mr, addr) = (mw.primary().id, mr.primary().id, mr.primary().addr);
    let access = Access::REMOTE_WRITE;
    SendOp::BindWindow(WindowBind { mw, rkey, mr, addr, len, access, zero_based: false })
}

pub fn execute(pair: &mut VqpPair, wr_id: u64, op: SendOp) {
    pair.send(1, wr_id, op, Data::empty());
    pair.poll_times(&[0, 1], SETTLE);
    assert_eq!(pair.outcome(1, wr_id, false), Some(Outcome::Success));
}

/// Binds the window to the first 64 bytes of the second end's memory, and imports its key at the
/// first end.
pub fn bind(pair: &mut VqpPair, wr_id: u64, mw: &VirtualMw, mr: &VirtualMr, tag: u8) -> RemoteAddr {
    let rkey = mw.primary().rkey.with_consumer_bits(tag);
    execute(pair, wr_id, bind_op(mw, mr, rkey, 64));
    pair.vqps[0].import(&mw.remote(rkey)).expect("the vQP is connected");
    RemoteAddr { addr: mr.primary().addr, rkey }
}

fn write(pair: &mut VqpPair, wr_id: u64, to: RemoteAddr, value: u64) -> Option<Outcome> {
    pair.send(0, wr_id, SendOp::Write(to), Data::inline(&value.to_ne_bytes()));
    pair.poll_times(&[0, 1], 400);
    pair.outcome(0, wr_id, false)
}

fn check_permitted(pair: &mut VqpPair, wr_id: u64, to: RemoteAddr) {
    assert_eq!(write(pair, wr_id, to, wr_id), Some(Outcome::Success), "{:?}", pair.vqps[0].close_reason());
    assert_eq!(pair.memory[1].load(0), wr_id);
}

fn check_refused(pair: &mut VqpPair, wr_id: u64, to: RemoteAddr) {
    let before = pair.memory[1].load(0);
    assert_eq!(write(pair, wr_id, to, !before), Some(Outcome::Failed(WcStatus::RemoteAccess)));
    assert_eq!(pair.memory[1].load(0), before);
    assert_eq!(pair.vqps[0].close_reason(), Some(CloseReason::RequestError));
}

#[test]
fn bound_window_is_valid_on_every_rail() {
    for window_type in [WindowType::Type1, WindowType::Type2] {
        for rails in [2, 3] {
            let mut pair = VqpPair::new(rails, config());
            let (mr, mw) = (bindable(&pair), window(&pair, window_type));
            let to = bind(&mut pair, 1, &mw, &mr, 7);
            for i in 0..5 {
                check_permitted(&mut pair, 10 + i, to);
                pair.fail_over(FAILOVER);
            }
            check_permitted(&mut pair, 50, to);
            check_refused(&mut pair, 51, RemoteAddr { addr: to.addr + 60, ..to });
        }
    }
}

#[test]
fn invalidated_window_is_refused_on_every_rail() {
    for (failovers_before, failovers_after) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 1)] {
        for by_peer in [false, true] {
            let mut pair = VqpPair::new(2, config());
            let (mr, mw) = (bindable(&pair), window(&pair, WindowType::Type2));
            let to = bind(&mut pair, 1, &mw, &mr, 7);
            (0..failovers_before).for_each(|_| pair.fail_over(FAILOVER));
            check_permitted(&mut pair, 10, to);
            assert!(matches!(pair.vqps[1].domain().deregister(&mr), Err(Error::Busy { .. })));
            if by_peer {
                pair.recv(1, 3, 64);
                pair.send(0, 2, SendOp::SendWithInvalidate(to.rkey), Data::inline(b"message"));
                pair.poll_times(&[0, 1], SETTLE);
                assert_eq!(pair.outcome(0, 2, false), Some(Outcome::Success));
                assert_eq!(pair.outcome(1, 3, true), Some(Outcome::Success));
                assert_eq!(pair.completions[1].last().and_then(|c| c.invalidated), Some(to.rkey));
            } else {
                pair.send(1, 2, SendOp::LocalInvalidate(to.rkey), Data::empty());
                pair.poll_times(&[0, 1], SETTLE);
                assert_eq!(pair.outcome(1, 2, false), Some(Outcome::Success));
            }
            (0..failovers_after).for_each(|_| pair.fail_over(FAILOVER));
            // The window can be bound again, and the earlier key stays invalid.
            let again = bind(&mut pair, 4, &mw, &mr, 8);
            check_permitted(&mut pair, 11, again);
            check_refused(&mut pair, 12, to);
            pair.vqps[1].close().expect("the NICs are alive");
            pair.vqps[1].domain().deregister(&mr).expect("no window is bound");
        }
    }
}

/// A bind of no bytes ends the binding on every rail. A bind of other bytes makes the earlier key
/// invalid.
#[test]
fn type_1_window_is_bound_anew_on_every_rail() {
    for failovers in 0..3 {
        for ends in [false, true] {
            let mut pair = VqpPair::new(2, config());
            let (mr, mw) = (bindable(&pair), window(&pair, WindowType::Type1));
            let first = bind(&mut pair, 1, &mw, &mr, 1);
            check_permitted(&mut pair, 10, first);
            if ends {
                pair.send(1, 2, bind_op(&mw, &mr, first.rkey, 0), Data::empty());
                pair.poll_times(&[0, 1], SETTLE);
                assert_eq!(pair.outcome(1, 2, false), Some(Outcome::Success));
                pair.vqps[1].domain().deregister(&mr).expect("no window is bound");
            } else {
                let second = bind(&mut pair, 2, &mw, &mr, 2);
                check_permitted(&mut pair, 11, second);
            }
            (0..failovers).for_each(|_| pair.fail_over(FAILOVER));
            check_refused(&mut pair, 12, first);
        }
    }
}

#[test]
fn refused_bind_or_invalidation_ends_the_queue_pair_on_every_rail() {
    for failovers in 0..3 {
        for kind in 0..4 {
            let mut pair = VqpPair::new(2, config());
            let (mr, mw) = (bindable(&pair), window(&pair, WindowType::Type2));
            let to = bind(&mut pair, 1, &mw, &mr, 7);
            (0..failovers).for_each(|_| pair.fail_over(FAILOVER));
            let (op, status) = match kind {
                0 => (bind_op(&mw, &mr, to.rkey, 64), WcStatus::WindowBind),
                1 => (SendOp::LocalInvalidate(to.rkey.with_consumer_bits(9)), WcStatus::LocalQpOperation),
                2 => (SendOp::LocalInvalidate(Key(to.rkey.0 ^ 0x4000)), WcStatus::LocalQpOperation),
                _ => {
                    // The region does not permit windows.
                    let other = window(&pair, WindowType::Type2);
                    (bind_op(&other, &pair.mr[1], other.primary().rkey, 64), WcStatus::WindowBind)
                }
            };
            pair.send(1, 2, op, Data::empty());
            pair.send(1, 3, SendOp::Write(pair.remote(0, 0)), Data::inline(b"flushed"));
            pair.poll_times(&[0, 1], 400);
            assert_eq!(pair.outcome(1, 2, false), Some(Outcome::Failed(status)), "{kind}");
            assert_eq!(pair.outcome(1, 3, false), Some(Outcome::Failed(WcStatus::Flushed)));
            assert_eq!(pair.vqps[1].close_reason(), Some(CloseReason::RequestError));
        }
    }
}

/// The rail fails in each round of these steps: bind, tell the peer the key, use it, invalidate.
/// Every operation ends once, with the outcome that it has without a failure.
#[test]
fn window_operations_are_executed_once_whenever_a_rail_fails() {
    for (by_peer, failure) in [(false, 0), (false, 1), (false, 2), (true, 0), (true, 1), (true, 2)] {
        for rounds in fault_times(0..60) {
            // Without a log, the loss of a NIC of the responder may leave a WRITE undecided.
            let mut pair = VqpPair::new(2, Config { write_policy: WritePolicy::Repeatable, ..config() });
            let (mr, mw) = (bindable(&pair), window(&pair, WindowType::Type2));
            pair.poll_times(&[0, 1], 5);
            let mut failed = false;
            let (mut step, mut is_posted) = (0, false);
            for round in 0..FAILOVER {
                if round == rounds && !std::mem::replace(&mut failed, true) {
                    match failure {
                        0 => pair.link_down(0, 0),
                        n => {
                            let nic = pair.testbed.nics[n - 1][0].id();
                            pair.testbed.world.fail(nic, Failure::NicDead);
                        }
                    }
                }
                // Each operation is posted as soon as its predecessor has completed.
                let tag = (step / 3) as u8;
                let key = mw.primary().rkey.with_consumer_bits(tag);
                let to = RemoteAddr { addr: mr.primary().addr, rkey: key };
                let (end, id) = (usize::from(step % 3 == 0 || step % 3 == 2 && !by_peer), 100 + step);
                if !std::mem::replace(&mut is_posted, true) {
                    match step % 3 {
                        0 => pair.send(1, id, bind_op(&mw, &mr, key, 64), Data::empty()),
                        1 => {
                            pair.vqps[0].import(&mw.remote(key)).expect("the vQP is connected");
                            pair.send(0, id, SendOp::Write(to), Data::inline(&id.to_ne_bytes()));
                        }
                        _ if by_peer => {
                            pair.recv(1, 1000 + id, 0);
                            pair.send(0, id, SendOp::SendWithInvalidate(key), Data::empty());
                        }
                        _ => pair.send(1, id, SendOp::LocalInvalidate(key), Data::empty()),
                    }
                }
                pair.poll(&[0, 1]);
                let received = step % 3 != 2 || !by_peer || pair.outcome(1, 1000 + id, true).is_some();
                if let Some(outcome) = pair.outcome(end, id, false)
                    && received
                {
                    assert_eq!(outcome, Outcome::Success, "step {step}, rail failed in round {rounds}");
                    if step % 3 == 1 {
                        assert_eq!(pair.memory[1].load(0), id);
                    }
                    step += 1;
                    is_posted = false;
                }
            }
            assert!(step > 100, "{step} steps, rail failed in round {rounds}, {by_peer}, {failure}");
        }
    }
}

/// The receiver finds the SEND with invalidate when it fences the rail. The NIC of the new rail
/// executes its invalidation late, and the peer's next WRITE waits for the move.
#[test]
fn peer_uses_a_rail_only_after_the_invalidation_there() {
    for rounds in 0..60 {
        let mut world = mitra_sim::Config::fault_free();
        world.nic.doorbell_delay = DurationRange::micros(0, 400);
        let mut pair = VqpPair::with_world(3, config(), world);
        let (mr, mw) = (bindable(&pair), window(&pair, WindowType::Type2));
        let to = bind(&mut pair, 1, &mw, &mr, 7);
        check_permitted(&mut pair, 10, to);
        let before = pair.memory[1].load(0);
        // The receiver's NIC executes the SEND before the receiver polls.
        pair.recv(1, 3, 0);
        pair.poll_times(&[0, 1], SETTLE);
        pair.send(0, 2, SendOp::SendWithInvalidate(to.rkey), Data::empty());
        pair.poll_times(&[0], SETTLE + rounds);
        pair.link_down(0, 0);
        pair.send(0, 11, SendOp::Write(to), Data::inline(b"too late"));
        pair.poll_times(&[0], SETTLE); // the sender proposes the move
        pair.poll_times(&[0, 1], FAILOVER);
        assert_eq!(pair.outcome(0, 2, false), Some(Outcome::Success));
        assert_eq!(pair.outcome(1, 3, true), Some(Outcome::Success));
        // The Closed message of the peer may arrive before the refusal of the WRITE. The evidence
        // in that message shows that the WRITE was not executed.
        let outcomes = [WcStatus::RemoteAccess, WcStatus::Flushed].map(Outcome::Failed);
        assert!(pair.outcome(0, 11, false).is_some_and(|outcome| outcomes.contains(&outcome)), "{rounds}");
        assert_eq!(pair.memory[1].load(0), before);
    }
}

/// The NIC of a standby rail is dead, or hangs and still executes requests. The NIC is reset, and
/// the operation completes.
#[test]
fn failed_nic_of_another_rail_grants_nothing() {
    for failure in [Failure::NicDead, Failure::NicHung] {
        for window_type in [WindowType::Type1, WindowType::Type2] {
            let mut pair = VqpPair::new(3, config());
            let (mr, mw) = (bindable(&pair), window(&pair, window_type));
            let to = bind(&mut pair, 1, &mw, &mr, 7);
            check_permitted(&mut pair, 10, to);
            let nic = pair.testbed.nics[1][1].id();
            pair.testbed.world.fail(nic, failure);
            if window_type == WindowType::Type2 {
                pair.send(1, 2, SendOp::LocalInvalidate(to.rkey), Data::empty());
                pair.poll_times(&[0, 1], SETTLE);
                assert_eq!(pair.outcome(1, 2, false), Some(Outcome::Success), "{failure:?}");
            }
            let again = bind(&mut pair, 3, &mw, &mr, 8);
            pair.fail_over(FAILOVER);
            check_permitted(&mut pair, 11, again);
            check_refused(&mut pair, 12, to);
        }
    }
}

/// When the completion of an invalidation is delivered, no NIC has the window bound, although some
/// NICs execute the invalidation late.
#[test]
fn region_is_free_when_the_invalidation_completes() {
    for by_peer in [false, true] {
        for rounds in 0..20 {
            let mut world = mitra_sim::Config::fault_free();
            world.nic.doorbell_delay = DurationRange::micros(0, 400);
            let mut pair = VqpPair::with_world(3, config(), world);
            let (mr, mw) = (bindable(&pair), window(&pair, WindowType::Type2));
            let to = bind(&mut pair, 1, &mw, &mr, 7);
            pair.poll_times(&[0, 1], rounds);
            if by_peer {
                pair.recv(1, 2, 0);
                pair.send(0, 2, SendOp::SendWithInvalidate(to.rkey), Data::empty());
            } else {
                pair.send(1, 2, SendOp::LocalInvalidate(to.rkey), Data::empty());
            }
            while pair.outcome(1, 2, by_peer).is_none() {
                pair.poll(&[0, 1]);
            }
            assert_eq!(pair.outcome(1, 2, by_peer), Some(Outcome::Success));
            assert_eq!(pair.vqps[1].domain().deregister(&mr), Ok(()));
        }
    }
}
