//! Posting several requests at once to a virtual queue pair: all of them, or none.

mod duo;

use mitra_failover::Outcome;
use mitra_sim::Failure;
use mitra_verbs::{Data, Error, SendOp, SendWr};

use duo::{Duo, config};

fn writes(d: &Duo, ids: std::ops::Range<u64>) -> Vec<SendWr> {
    let to = d.remote(1, 0);
    ids.map(|id| SendWr::new(id, SendOp::Write(to), Data::inline(&id.to_ne_bytes()))).collect()
}

#[test]
fn all_are_posted_or_none() {
    let mut d = Duo::new(2, mitra_failover::Config { send_wrs: 4, ..config() });
    let all = writes(&d, 1..5);
    d.v[0].post_send(writes(&d, 0..1).remove(0)).expect("there is room");
    let refused = d.v[0].post_send_all(all.clone()).unwrap_err();
    assert!(matches!(refused.error, Error::QueueFull { depth: 4, .. }), "{refused}");
    assert_eq!((refused.index, d.v[0].outstanding()), (3, 1));
    let mut bad = all[..3].to_vec();
    bad[1].data = Data::inline(&[0; 1 << 12]);
    let refused = d.v[0].post_send_all(bad).unwrap_err();
    assert!(matches!(refused.error, Error::Limit { .. }), "{refused}");
    assert_eq!((refused.index, d.v[0].outstanding()), (1, 1));
    d.turns(&[0, 1], 40);
    d.v[0].post_send_all(all).expect("there is room for all");
    d.turns(&[0, 1], 40);
    let done: Vec<_> = d.got[0].iter().map(|c| (c.wr_id, c.outcome)).collect();
    assert_eq!(done, (0..5).map(|id| (id, Outcome::Success)).collect::<Vec<_>>());
}

/// The only rail's NIC is dead, which this end does not know before it posts: then all were posted, and all complete.
#[test]
fn what_is_found_dead_by_the_first_has_taken_all() {
    let mut d = Duo::new(1, config());
    let nic = d.rig.nics[0][0].id();
    d.rig.world.fail(nic, Failure::NicDead);
    let all = writes(&d, 0..3);
    d.v[0].post_send_all(all).expect("nothing was known yet");
    d.turns(&[0], 400);
    let done: Vec<_> = d.got[0].iter().map(|c| (c.wr_id, c.outcome == Outcome::Success)).collect();
    assert_eq!(done, [(0, false), (1, false), (2, false)]);
}
