//! Virtual queue pairs that receive malformed, stale and forged control messages.

use mitra_failover::{CloseReason, Outcome, UnresolvedError};
use mitra_verbs::WcStatus;

use crate::vqp_pair::forger::Forger;
use crate::vqp_pair::{VqpPair, config};

const PROPOSE: u8 = 2;
const EVIDENCE: u8 = 3;
const RESUME: u8 = 4;
const REFUSE: u8 = 5;
const CLOSED: u8 = 6;
const NEW_QP: u8 = 7;

/// The field for the home rail in a message whose sender knows no home.
const NO_HOME: [u8; 10] = [0; 10];

fn proposal(rail: u8) -> Vec<u8> {
    [&[rail][..], &NO_HOME].concat()
}

/// Returns a `Refuse` body that names every rail and the highest epoch.
fn refusal() -> Vec<u8> {
    [&[0xff, 0xff, 0xff][..], &NO_HOME].concat()
}

/// Returns an `Evidence` body for rail 1 in which most fields have their largest value.
fn evidence() -> Vec<u8> {
    let mut body = proposal(1);
    body.extend([3, 1]);
    body.resize(body.len() + 3 + 8 + 8 + 4 + 11, 0xff);
    body
}

#[test]
fn malformed_and_stale_control_messages_have_no_effect() {
    run_forged_messages(false);
}

#[test]
fn ballots_for_unusable_rails_have_no_effect() {
    run_forged_messages(true);
}

/// Sends forged messages, and checks that they change nothing and that messages are still received.
/// `with_ballots` adds proposals for unusable rails, with higher ballots than the current one.
/// These proposals make the vQP promise to accept no lower ballot. The peer can propose only lower
/// ballots, so the test then expects no failover.
fn run_forged_messages(with_ballots: bool) {
    let mut pair = VqpPair::new(2, config());
    (0..32).for_each(|i| pair.recv(1, i, 64));
    pair.poll_times(&[0, 1], 50);
    let forger = Forger::new(&pair);
    let mut well_formed = vec![
        forger.encode(PROPOSE, 0, 1, &proposal(1)),
        forger.encode(PROPOSE, 1, 0, &proposal(1)),
        forger.encode(EVIDENCE, 1, 0, &evidence()),
        forger.encode(REFUSE, 1, 0, &refusal()),
        forger.encode(REFUSE, 777, 1, &refusal()),
        forger.encode(CLOSED, 0, 1, &[0]),
    ];
    // `NewQp` messages for rails that were not left or do not exist.
    for (epoch, rail) in [(0, 0), (1, 0), (1, 1), (777, 1), (777, 200)] {
        well_formed.push(forger.encode(NEW_QP, epoch, 1, &[rail, 3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]));
    }
    // `Resume` messages for failovers that do not take place.
    well_formed.extend((0..50).map(|i| forger.encode(RESUME, 2 + i * 1000, 1, &[0, 0xff, 0xff, 0xff, 0xff])));
    if with_ballots {
        well_formed.extend((0..50).map(|i| forger.encode(PROPOSE, 2 + i, 1, &proposal(200))));
        well_formed.extend((0..50).map(|i| forger.encode(PROPOSE, 100 + i, 0, &proposal(2))));
    }
    let valid = forger.encode(EVIDENCE, 1, 0, &evidence());
    let mut rejected: Vec<Vec<u8>> = (0..valid.len()).map(|n| valid[..n].to_vec()).collect();
    rejected.extend((0..8).map(|bit| {
        let mut foreign = valid.clone();
        foreign[4 + bit] ^= 1 << bit;
        foreign
    }));
    rejected.extend([
        [valid.as_slice(), &[0]].concat(),
        forger.encode(200, 1, 0, &[]),
        forger.encode(NEW_QP, 1, 0, &[0; 7]),
        forger.encode(CLOSED, 9, 2, &[0]),
        forger.encode(CLOSED, 9, 1, &[2]),
        forger.encode(PROPOSE, 0, 1, &[1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        forger.encode(PROPOSE, 0, 1, &[1, 1, 200, 0, 0, 0, 0, 0, 0, 0, 0]),
    ]);
    rejected.push(vec![0xff; 256]);
    let mut sizes = Vec::new();
    for round in 0..20 {
        for bytes in well_formed.iter().chain(&rejected) {
            forger.send(bytes);
            pair.poll_times(&[0, 1], 3);
        }
        pair.poll_times(&[0, 1], 8);
        assert_eq!(pair.vqps[1].rejected_messages(), (round + 1) * rejected.len() as u64);
        sizes.push(format!("{:?}", pair.vqps[1]).len());
    }
    assert!(sizes.iter().all(|&n| n < sizes[0] + 500), "the state of the vQP grows: {sizes:?}");
    assert_eq!([pair.vqps[0].close_reason(), pair.vqps[1].close_reason()], [None, None]);
    assert_eq!([pair.vqps[0].last_failover(), pair.vqps[1].last_failover()], [None, None]);
    pair.send_message(100, 1);
    pair.poll_times(&[0, 1], 20);
    let mut expected_rails = [0, 0];
    if !with_ballots {
        let nic = pair.testbed.nics[0][0].id();
        pair.testbed.world.set_link(nic, false);
        expected_rails = [1, 1];
    }
    pair.send_message(101, 2);
    pair.poll_times(&[0, 1], 400);
    assert_eq!(pair.received_ids(), [0, 1]);
    assert_eq!(
        [pair.vqps[0].active_rail(), pair.vqps[1].active_rail()],
        expected_rails,
        "{:?}",
        pair.vqps[1].close_reason()
    );
}

#[test]
fn exhausted_epochs_close_both_ends() {
    for failing_end in [0, 1] {
        let mut pair = VqpPair::new(2, config());
        pair.poll_times(&[0, 1], 50);
        // The second end declines this ballot, but promises to accept no lower ballot.
        let forger = Forger::new(&pair);
        forger.send(&forger.encode(PROPOSE, u16::MAX, 0, &proposal(200)));
        pair.poll_times(&[0, 1], 20);
        assert_eq!(pair.vqps[1].close_reason(), None);
        let nic = pair.testbed.nics[1][0].id();
        if failing_end == 1 {
            pair.send_write(1, 0, 7);
            pair.testbed.world.set_link(nic, false);
            pair.poll_times(&[0, 1], 2000);
            assert_eq!(pair.vqps[1].close_reason(), Some(CloseReason::EpochsUsedUp));
            assert_eq!(pair.vqps[0].close_reason(), Some(CloseReason::PeerClosed));
            let is_executed = pair.memory[1].load(0) == 7;
            let expected = if is_executed { Outcome::Success } else { Outcome::Failed(WcStatus::Flushed) };
            assert_eq!(pair.outcome(0, 1, false), Some(expected));
        } else {
            // Only the first end detects the failure. The refusal of its ballot names the promised
            // epoch. This is the highest epoch, so the first end cannot propose a higher ballot.
            let nic = pair.testbed.nics[0][0].id();
            pair.testbed.world.set_link(nic, false);
            pair.send_write(1, 0, 7);
            for _ in 0..6 {
                pair.poll_times(&[0, 1], 40_000);
            }
            assert_eq!(pair.vqps[0].close_reason(), Some(CloseReason::EpochsUsedUp));
            assert_eq!(
                pair.outcome(0, 1, false),
                Some(Outcome::Unresolved(UnresolvedError::Undecided(CloseReason::EpochsUsedUp)))
            );
            assert_eq!(pair.vqps[1].close_reason(), Some(CloseReason::PeerClosed));
        }
    }
}
