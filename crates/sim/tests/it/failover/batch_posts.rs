//! `post_send_all` of a virtual queue pair posts all requests of a batch or none.

use mitra_failover::Outcome;
use mitra_sim::Failure;
use mitra_verbs::{Data, Error, SendOp, SendWr};

use crate::vqp_pair::{VqpPair, config};

fn writes(pair: &VqpPair, ids: std::ops::Range<u64>) -> Vec<SendWr> {
    let target = pair.remote(1, 0);
    ids.map(|id| SendWr::new(id, SendOp::Write(target), Data::inline(&id.to_ne_bytes()))).collect()
}

#[test]
fn batch_is_posted_completely_or_not_at_all() {
    let mut pair = VqpPair::new(2, mitra_failover::Config { send_wrs: 4, ..config() });
    let all = writes(&pair, 1..5);
    pair.vqps[0].post_send(writes(&pair, 0..1).remove(0)).expect("the send queue has room");
    let refused = pair.vqps[0].post_send_all(all.clone()).unwrap_err();
    assert!(matches!(refused.error, Error::QueueFull { depth: 4, .. }), "{refused}");
    assert_eq!((refused.index, pair.vqps[0].outstanding()), (3, 1));
    let mut bad = all[..3].to_vec();
    bad[1].data = Data::inline(&[0; 1 << 12]);
    let refused = pair.vqps[0].post_send_all(bad).unwrap_err();
    assert!(matches!(refused.error, Error::Limit { .. }), "{refused}");
    assert_eq!((refused.index, pair.vqps[0].outstanding()), (1, 1));
    pair.poll_times(&[0, 1], 40);
    pair.vqps[0].post_send_all(all).expect("the send queue has room for the batch");
    pair.poll_times(&[0, 1], 40);
    let outcomes: Vec<_> = pair.completions[0].iter().map(|c| (c.wr_id, c.outcome)).collect();
    assert_eq!(outcomes, (0..5).map(|id| (id, Outcome::Success)).collect::<Vec<_>>());
}

/// The NIC of the only rail is dead, but the end has not noticed the failure when it posts. The end
/// accepts all requests, and each request completes with an error.
#[test]
fn batch_is_accepted_before_dead_nic_is_noticed() {
    let mut pair = VqpPair::new(1, config());
    let nic = pair.testbed.nics[0][0].id();
    pair.testbed.world.fail(nic, Failure::NicDead);
    let all = writes(&pair, 0..3);
    pair.vqps[0].post_send_all(all).expect("this end has not noticed the failure");
    pair.poll_times(&[0], 400);
    let outcomes: Vec<_> =
        pair.completions[0].iter().map(|c| (c.wr_id, c.outcome == Outcome::Success)).collect();
    assert_eq!(outcomes, [(0, false), (1, false), (2, false)]);
}
