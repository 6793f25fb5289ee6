//! Tests of the hazards of a failover that have no test elsewhere. `docs/protocol/hazards.md` has
//! the table of all hazards. The markers `// Hazard: …` here and in other files are its source.

use core::time::Duration;

use crate::vqp_pair::{VqpPair, config};
use mitra_failover::{CloseReason, CompletionLogConfig, Config, Fencing, Outcome, UnresolvedError};
use mitra_sim::{DurationRange, Failure, Noise, Stage};
use mitra_verbs::{Data, LocalAckTimeout, SendFlags, SendOp, SendWr, WcStatus};

const US: Duration = Duration::from_micros(1);
/// The number of polls after which a move is over, even if a NIC must be reset first.
const SETTLE_POLLS: usize = 4_000;

fn fault_free() -> mitra_sim::Config {
    mitra_sim::Config::fault_free()
}

fn with_heartbeats() -> Config {
    let mut config = config();
    config.detector.heartbeat_interval = Duration::from_millis(1);
    config.detector.max_missed_heartbeats = 4;
    config
}

/// A WRITE with immediate is torn on two rails, and an atomic fails on two rails. Each packet is
/// executed once. The receive has the length of the whole message.
// Hazard: the same request fails twice
#[test]
fn request_that_fails_twice_is_executed_once() {
    const LEN: u32 = 40 * 1024;
    for (first, second) in [(3, 2), (1, 7), (5, 3)] {
        let mut pair = VqpPair::new(3, config());
        pair.recv(1, 0, 64);
        pair.poll_times(&[0, 1], 20);
        let placed = |pair: &VqpPair| -> u64 {
            pair.testbed.nics[1].iter().map(|nic| pair.testbed.world.placed_bytes(nic.id())).sum()
        };
        let before = placed(&pair);
        for (rail, nth) in [(0, first), (1, second)] {
            let [a, b] = pair.testbed.rail(rail);
            let link = [(a, Failure::LinkDown)];
            pair.testbed.world.fail_at_stage(b, Stage::PartlyExecuted, nth, &link, None);
        }
        let data = Data::sge(pair.mr[0].sge(0, LEN));
        pair.memory[0].write_at(0, &[7; LEN as usize]);
        pair.send(0, 1, SendOp::WriteWithImm(pair.remote(1, 0), 5), data);
        let (counter, result) = (pair.remote(1, 60_000), pair.mr[0].sge(60_000, 8));
        pair.send(0, 2, SendOp::FetchAdd { remote: counter, add: 1 }, Data::sge(result));
        pair.poll_times(&[0, 1], SETTLE_POLLS);
        assert_eq!(pair.vqps[0].active_rail(), 2, "both rails have failed");
        let outcomes = [1, 2].map(|id| pair.outcome(0, id, false));
        assert_eq!(outcomes, [Some(Outcome::Success); 2]);
        let received: Vec<_> = pair.completions[1].iter().map(|c| (c.wr_id, c.byte_len, c.imm)).collect();
        assert_eq!(received, [(0, LEN, Some(5))]);
        assert_eq!((pair.memory[1].load(60_000), pair.memory[0].load(60_000)), (1, 0));
        // The control messages together are shorter than the payload of one packet.
        let more = placed(&pair) - before - u64::from(LEN);
        assert!(more < 4096, "{more} bytes are placed besides the message");
    }
}

/// On rail 0, all packets of one end are lost. That end notices nothing: its port is up, and the
/// other end's heartbeats arrive.
// Hazard: one side sees nothing (half-open)
#[test]
fn rail_that_is_open_in_one_direction_only_is_left_by_both_ends() {
    for deaf in 0..2 {
        let mut pair = VqpPair::new(2, with_heartbeats());
        pair.poll_times(&[0, 1], 400);
        let mute = pair.testbed.nics[1 - deaf][0].id();
        let lost = Noise { drop_ppm: 1_000_000, ..Noise::default() };
        pair.testbed.world.faults(mute, |faults| faults.set_noise_tx(lost));
        pair.poll_times(&[0, 1], 6 * SETTLE_POLLS); // the ends are idle
        assert_eq!(pair.vqps.each_ref().map(|vqp| vqp.active_rail()), [1; 2], "end {deaf} is deaf");
        pair.send_write(1, 0, 9);
        pair.poll_times(&[0, 1], 20);
        assert_eq!(pair.outcome(0, 1, false), Some(Outcome::Success));
    }
}

/// The first end cannot use rail 1, and the second end cannot use rail 2. Both propose a rail when
/// rail 0 fails at both.
// Hazard: two ends propose different rails
#[test]
fn ends_that_propose_different_rails_agree_on_one() {
    for gap in 0..40 {
        let mut pair = VqpPair::new(4, config());
        pair.poll_times(&[0, 1], 20);
        pair.link_down(0, 1);
        pair.link_down(1, 2);
        pair.poll_times(&[0, 1], 4);
        for id in 0..4 {
            pair.recv(1, id, 64);
            pair.send_message(id, id);
        }
        pair.link_down(gap % 2, 0);
        pair.testbed.world.run_for(US * (gap as u32 / 2));
        pair.vqps[gap % 2].progress();
        pair.link_down(1 - gap % 2, 0);
        pair.poll_times(&[1 - gap % 2, gap % 2], SETTLE_POLLS);
        assert_eq!(pair.vqps.each_ref().map(|vqp| vqp.active_rail()), [3; 2], "gap {gap}");
        assert_eq!(pair.received_ids(), [0, 1, 2, 3], "gap {gap}");
    }
}

/// The process of one end runs, and answers on rail 1. Its NIC of rail 0 hangs: no verb returns,
/// but the NIC executes requests of the peer.
// Hazard: a process is alive, and its NIC is wedged
#[test]
fn rail_whose_nic_is_wedged_is_left_although_the_process_is_alive() {
    for wedged in 0..2 {
        let mut pair = VqpPair::new(2, with_heartbeats());
        (0..8).for_each(|id| pair.recv(1, id, 64));
        pair.poll_times(&[0, 1], 400);
        let nic = pair.testbed.nics[wedged][0].id();
        pair.testbed.world.fail(nic, Failure::NicHung);
        (0..8).for_each(|id| pair.send_message(id, id));
        pair.poll_times(&[0, 1], SETTLE_POLLS);
        assert_eq!(pair.vqps.each_ref().map(|vqp| vqp.active_rail()), [1; 2], "NIC of end {wedged}");
        assert_eq!(pair.received_ids(), [0, 1, 2, 3, 4, 5, 6, 7], "NIC of end {wedged}");
    }
}

/// Returns the word at the target of a READ after three events. The READ completes, the program
/// uses the memory for something else, and a delayed response arrives on the old rail.
fn memory_after_late_read_response(fencing: Fencing) -> u64 {
    const HELD: Duration = Duration::from_millis(5);
    let mut world = fault_free();
    world.link.survivor_ppm = 1_000_000;
    let mut pair = VqpPair::with_world(2, Config { fencing, ..config() }, world);
    pair.memory[1].write_at(0, &1_u64.to_ne_bytes());
    pair.poll_times(&[0, 1], 20);
    let [a, b] = pair.testbed.rail(0);
    let link = [(a, Failure::LinkDown)];
    pair.testbed.world.fail_at_stage(b, Stage::AckOnWire, 1, &link, Some(HELD));
    let posted_at = pair.testbed.world.now();
    let target = Data::sge(pair.mr[0].sge(0, 8));
    pair.send(0, 1, SendOp::Read(pair.remote(1, 0)), target);
    pair.poll_times(&[0, 1], 100);
    assert!(pair.testbed.world.stage_reached(b), "the response is delayed");
    assert_eq!(pair.outcome(0, 1, false), Some(Outcome::Success));
    assert_eq!((pair.vqps[0].active_rail(), pair.memory[0].load(0)), (1, 1));
    pair.memory[0].write_at(0, &2_u64.to_ne_bytes());
    // The link is up when the response arrives.
    let passed = pair.testbed.world.now().saturating_since(posted_at);
    pair.testbed.world.run_for(HELD - passed - US * 20);
    pair.link_up(0, 0);
    pair.testbed.world.run_for(Duration::from_millis(10));
    pair.memory[0].load(0)
}

// Hazard: a late READ response is written into freed memory
#[test]
fn late_read_response_changes_no_memory_of_a_completed_read() {
    assert_eq!(memory_after_late_read_response(Fencing::On), 2);
    assert_eq!(memory_after_late_read_response(Fencing::Off), 1, "the response is late enough");
}

/// No rail reaches the peer until the vQP has given up. The program then uses the buffer of the
/// WRITE again. Afterwards the links come up before the retries of a queue pair are exhausted.
// Hazard: the buffer of a request is reused after a time-out
#[test]
fn buffer_that_is_reused_after_a_timeout_is_not_sent() {
    let mut config = with_heartbeats();
    config.peer_timeout = Duration::from_millis(20);
    config.detector.local_ack_timeout = LocalAckTimeout::from_code(13);
    let mut pair = VqpPair::new(2, config);
    pair.poll_times(&[0, 1], 400);
    for rail in 0..2 {
        // The links fail between the switch and the other host, so that the port of the requester
        // stays up.
        pair.link_down(1, rail);
    }
    pair.memory[0].write_at(0, &1_u64.to_ne_bytes());
    let data = Data::sge(pair.mr[0].sge(0, 8));
    pair.send(0, 1, SendOp::Write(pair.remote(1, 0)), data);
    pair.poll_times(&[0], SETTLE_POLLS);
    let undecided = |reason| Some(Outcome::Unresolved(UnresolvedError::Undecided(reason)));
    assert_eq!(pair.outcome(0, 1, false), undecided(CloseReason::PeerUnreachable));
    pair.memory[0].write_at(0, &2_u64.to_ne_bytes());
    (0..2).for_each(|rail| pair.link_up(1, rail));
    pair.testbed.world.run_for(Duration::from_secs(2));
    assert_eq!(pair.memory[1].load(0), 0, "the WRITE was not executed before it ended");
}

/// Each rail fails as soon as the vQP has moved there, and heals soon after. The vQP stays on a
/// failed rail for increasing times, so that it does not use up its epochs. When the flapping ends,
/// the vQP works.
// Hazard: links flap
#[test]
fn flapping_links_move_the_vqp_ever_more_rarely() {
    const FLAPS: u16 = 300;
    let mut pair = VqpPair::new(2, config());
    pair.poll_times(&[0, 1], 20);
    for _ in 0..FLAPS {
        let rail = pair.vqps[0].active_rail();
        pair.link_down(0, rail);
        pair.poll_times(&[0, 1], 60);
        pair.link_up(0, rail);
        pair.poll_times(&[0, 1], 60);
    }
    let epoch = pair.vqps[0].last_failover().expect("the vQP has moved").epoch;
    assert!((8..FLAPS / 8).contains(&epoch), "{epoch} epochs for {FLAPS} flaps");
    pair.send_write(1, 0, 9);
    pair.poll_times(&[0, 1], SETTLE_POLLS);
    assert_eq!(pair.outcome(0, 1, false), Some(Outcome::Success));
}

/// The NIC of the requester hangs with requests in flight, and is reset, so none of the requests
/// has a completion on the NIC. Some have no SIGNALED flag.
// Hazard: a reset discards requests without a completion
#[test]
fn requests_that_a_reset_discards_without_a_completion_end() {
    for delay in 0..12 {
        let mut pair = VqpPair::new(2, config());
        pair.poll_times(&[0, 1], 20);
        for id in 0..8 {
            let (remote, result) = (pair.remote(1, 0), pair.mr[0].sge(8 * id, 8));
            pair.send(0, id, SendOp::FetchAdd { remote, add: 1 }, Data::sge(result));
            let write = SendOp::Write(pair.remote(1, 64 + 8 * id));
            let unsignalled = SendWr::new(100 + id, write, Data::inline(&id.to_ne_bytes()));
            pair.vqps[0].post_send(unsignalled.with_flags(SendFlags::empty())).expect("the queue has room");
        }
        pair.testbed.world.run_for(US * delay);
        let nic = pair.testbed.nics[0][0].id();
        pair.testbed.world.fail(nic, Failure::NicHung);
        pair.poll_times(&[0, 1], SETTLE_POLLS);
        let ended: Vec<_> = pair.completions[0].iter().map(|c| (c.wr_id, c.outcome)).collect();
        assert_eq!(ended, (0..8).map(|id| (id, Outcome::Success)).collect::<Vec<_>>(), "{delay} µs");
        assert_eq!((pair.vqps[0].active_rail(), pair.vqps[0].outstanding()), (1, 0));
        assert_eq!(pair.memory[1].load(0), 8, "{delay} µs");
        for id in 0..8 {
            assert_eq!(pair.memory[0].load(8 * id), id as u64, "the value of add {id}");
            assert_eq!(pair.memory[1].load(64 + 8 * id), id as u64);
        }
    }
}

/// The link fails while the notifications, or their acknowledgements, are on the wire.
// Hazard: a notification is lost or doubled when it is sent again
#[test]
fn notification_is_delivered_once_whether_its_request_or_its_acknowledgement_is_lost() {
    let mut replayed = [false; 2];
    for delay in (0..120).step_by(3) {
        let mut world = fault_free();
        world.link.latency = DurationRange::micros(30, 30);
        let mut pair = VqpPair::with_world(2, config(), world);
        (0..4).for_each(|id| pair.recv(1, id, 64));
        pair.poll_times(&[0, 1], 20);
        pair.send_message(0, 10);
        pair.send(0, 1, SendOp::WriteWithImm(pair.remote(1, 8192), 11), Data::inline(&[1; 8]));
        pair.testbed.world.run_for(US * delay);
        pair.link_down(0, 0);
        pair.poll_times(&[0, 1], 400);
        pair.send_message(2, 12);
        pair.poll_times(&[0, 1], 40);
        assert_eq!([0, 1, 2].map(|id| pair.outcome(0, id, false)), [Some(Outcome::Success); 3]);
        let received: Vec<_> = pair.completions[1].iter().map(|c| (c.wr_id, c.imm)).collect();
        assert_eq!(received, [(0, None), (1, Some(11)), (2, None)], "{delay} µs");
        assert_eq!([0, 512].map(|at| pair.memory[1].load(at)), [10, 12], "{delay} µs");
        let report = pair.vqps[0].last_failover().expect("the vQP has moved");
        replayed[usize::from(report.stats.replayed > 0)] |= report.stats.in_flight > 0;
    }
    assert_eq!(replayed, [true; 2], "in some runs the request is lost, in others the acknowledgement");
}

/// Another owner holds the lock. The NIC of the memory dies, and nothing shows whether the CAS that
/// locks was executed.
// Hazard: an unlock runs although its lock's outcome is unknown
#[test]
fn unlock_is_not_executed_if_the_outcome_of_its_lock_is_unknown() {
    const OTHER: u64 = 7;
    let mut pair =
        VqpPair::new(2, Config { completion_log: Some(CompletionLogConfig::default()), ..config() });
    pair.memory[1].write_at(0, &OTHER.to_ne_bytes());
    pair.poll_times(&[0, 1], 20);
    let (word, result) = (pair.remote(1, 0), pair.mr[0].sge(0, 8));
    pair.send(0, 1, SendOp::CompareSwap { remote: word, compare: 0, swap: 5 }, Data::sge(result));
    pair.send(0, 2, SendOp::Write(word), Data::inline(&0_u64.to_ne_bytes()));
    let nic = pair.testbed.nics[1][0].id();
    pair.testbed.world.fail(nic, Failure::NicDead);
    pair.poll_times(&[0, 1], SETTLE_POLLS);
    assert_eq!(
        [1, 2].map(|id| pair.outcome(0, id, false)),
        [Some(Outcome::Unresolved(UnresolvedError::Indeterminate)), Some(Outcome::Failed(WcStatus::Flushed))]
    );
    assert_eq!((pair.vqps[0].active_rail(), pair.memory[1].load(0)), (1, OTHER));
}
