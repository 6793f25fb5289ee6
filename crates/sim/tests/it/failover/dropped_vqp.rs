//! A vQP that is dropped without `close`.

use mitra_failover::{Outcome, VirtualQp};
use mitra_sim::Failure;
use mitra_verbs::Provider;

use crate::vqp_pair::{VqpPair, config};

/// The word of the second end's memory to which the first end writes.
const WORD: u64 = 8192;

/// Returns an unconnected vQP that replaces the second end's vQP.
fn unconnected(pair: &VqpPair) -> VirtualQp {
    VirtualQp::builder(pair.vqps[1].domain()).build().expect("the NICs have room")
}

#[test]
fn peer_cannot_write_after_drop() {
    for fails_over in [false, true] {
        let mut pair = VqpPair::new(2, config());
        pair.poll_times(&[0, 1], 10);
        if fails_over {
            pair.fail_over(400);
        }
        pair.vqps[1] = unconnected(&pair);
        pair.send_write(1, WORD, 5);
        pair.poll_times(&[0], 400);
        assert_eq!(pair.memory[1].load(WORD as usize), 0, "fails_over: {fails_over}");
        assert_ne!(pair.outcome(0, 1, false), Some(Outcome::Success));
    }
}

/// A hung NIC still executes requests of the peer.
#[test]
fn peer_cannot_write_through_hung_nic_after_drop() {
    let mut pair = VqpPair::new(2, config());
    pair.poll_times(&[0, 1], 10);
    let nic = pair.testbed.nics[1][0].id();
    let unconnected = unconnected(&pair);
    pair.testbed.world.fail(nic, Failure::NicHung);
    pair.vqps[1] = unconnected;
    pair.send_write(1, WORD, 5);
    pair.poll_times(&[0], 400);
    assert_eq!(pair.memory[1].load(WORD as usize), 0);
}

/// The queue pairs are destroyed, so their numbers become free.
#[test]
fn drop_destroys_the_queue_pairs() {
    let mut pair = VqpPair::new(2, config());
    pair.poll_times(&[0, 1], 10);
    let qpn = pair.vqps[1].qpn();
    assert!(pair.testbed.nics[1][0].query_qp(qpn).is_ok());
    pair.vqps[1] = unconnected(&pair);
    assert!(pair.testbed.nics[1][0].query_qp(qpn).is_err());
    assert_eq!(pair.vqps[1].domain().activity().vqps, 1);
}
