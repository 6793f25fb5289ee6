//! Moves to a rail on which the peer cannot be reached: another ballot supersedes the move, or the
//! end closes before it has moved.

use core::time::Duration;

use mitra_failover::CloseReason;
use mitra_sim::{Config, Failure, Noise, Testbed, World};
use mitra_verbs::Capabilities;

use crate::vqp_pair::{VqpPair, config};

/// More polls than any of the moves takes.
const MAX_POLLS: usize = 100_000;

/// Starts or stops the loss of all packets on rail 0. Its ports stay up.
fn set_loss(pair: &mut VqpPair, loses: bool) {
    let noise = Noise { drop_ppm: if loses { 1_000_000 } else { 0 }, ..Noise::default() };
    for nic in pair.testbed.rail(0) {
        pair.testbed.world.faults(nic, |faults| faults.set_noise_tx(noise));
    }
}

fn poll_until(pair: &mut VqpPair, ends: &[usize], what: &str, is_done: impl Fn(&VqpPair) -> bool) {
    for _ in 0..MAX_POLLS {
        if is_done(pair) {
            return;
        }
        pair.poll(ends);
    }
    panic!("{what}: {:?}", pair.vqps);
}

/// The first end fences rail 0 and posts its receives on rail 1. The second end refuses rail 1.
/// Both ends replace the queue pairs of rail 0. Rail 0 fails again before the new queue pairs are
/// connected. The ends then move to rail 1, on which the receives are still posted. A receive that
/// is posted there twice takes two messages, and the second message overwrites the first.
#[test]
fn receives_of_a_refused_rail_are_posted_once() {
    const RECEIVES: u64 = 4;
    let mut pair =
        VqpPair::new(2, mitra_failover::Config { peer_timeout: Duration::from_millis(200), ..config() });
    (1..=RECEIVES).for_each(|id| pair.recv(0, id, 8));
    pair.poll_times(&[0, 1], 5);
    pair.link_down(1, 1);
    set_loss(&mut pair, true);
    pair.send_write(1, 0, 1);
    poll_until(&mut pair, &[0, 1], "the retries are exhausted", |pair| !pair.vqps[0].is_active());
    set_loss(&mut pair, false);
    let stays = |pair: &VqpPair| pair.vqps[0].last_failover().is_some();
    poll_until(&mut pair, &[0, 1], "rail 0 gets new queue pairs", stays);
    assert_eq!(pair.vqps[0].active_rail(), 0);
    set_loss(&mut pair, true);
    pair.link_up(1, 1);
    let moved =
        |pair: &VqpPair| pair.vqps.iter().all(|vqp| vqp.active_rail() == 1 && vqp.is_move_confirmed());
    poll_until(&mut pair, &[0, 1], "the vQP moves to rail 1", moved);
    for id in 1..=2 * RECEIVES {
        if id > RECEIVES {
            pair.recv(0, id, 8);
        }
        pair.send(1, id, mitra_verbs::SendOp::Send, mitra_verbs::Data::inline(&id.to_ne_bytes()));
        poll_until(&mut pair, &[0, 1], "the message is received", |pair| pair.outcome(0, id, true).is_some());
        assert_eq!(pair.memory[0].load(id as usize * 256), id, "the message is in the buffer of its receive");
    }
}

/// The second end sends its evidence for rail 1 and then loses both NICs. The NIC of rail 1 hangs
/// and cannot be reset. The first end moves to rail 1, whose NIC still executes requests after the
/// second end has closed. So the second end must report that it could not stop that NIC.
#[test]
fn end_that_cannot_stop_the_new_rail_closes_as_unfenced() {
    let mut world = World::with_config(1, Config::fault_free());
    let hosts = ["a", "b"].map(|name| world.add_host(name));
    let capabilities = Config::fault_free().capabilities;
    let nics = [0, 1].map(|h: usize| {
        let mut add = |rail: u8| {
            let reset = (h, rail) != (1, 1);
            world.add_nic_with(hosts[h], rail, Capabilities { reset, ..capabilities })
        };
        vec![add(0), add(1)]
    });
    let mut pair = VqpPair::with_testbed(Testbed { world, hosts, nics }, config());
    pair.recv(1, 1, 8);
    pair.poll_times(&[0, 1], 5);
    pair.link_down(0, 0);
    pair.send_message(1, 7);
    pair.poll_times(&[0], 20); // the first end proposes rail 1
    poll_until(&mut pair, &[1], "the second end fences rail 0", |pair| !pair.vqps[1].is_active());
    pair.poll_times(&[1], 40); // the second end sends its evidence
    let [nic0, nic1] = [0, 1].map(|rail| pair.testbed.nics[1][rail].id());
    pair.testbed.world.fail(nic1, Failure::NicHung);
    pair.testbed.world.fail(nic0, Failure::NicDead);
    poll_until(&mut pair, &[1], "the second end closes", |pair| pair.vqps[1].close_reason().is_some());
    assert!(pair.outcome(0, 1, false).is_none(), "the first end has not moved yet");
    poll_until(&mut pair, &[0, 1], "the message ends", |pair| pair.outcome(0, 1, false).is_some());
    assert_eq!(pair.memory[1].load(256), 7, "the hung NIC has executed the message");
    assert_eq!(pair.vqps[1].close_reason(), Some(CloseReason::Unfenced));
}
