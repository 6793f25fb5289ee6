//! Members that are polled rarely, or that post without a pause, while rails fail.

use core::time::Duration;

use mitra_failover::{BackedQp, Outcome, RemoteRegion};
use mitra_sim::{Prng, seeds};
use mitra_verbs::{Access, Buffer, Data, SendOp, SendWr, WcStatus};

use super::pair::BackedPair;

const SUCCESS: Outcome = Outcome::Success;
const MEMBERS: usize = 3;

/// Each end of a member sleeps for random times, while the links fail one after the other.
#[test]
fn rarely_polled_ends_lose_nothing() {
    for seed in seeds(60) {
        let mut pair = BackedPair::new(2, MEMBERS);
        let mut rng = Prng::new(seed);
        let (mut posted, mut sent) = ([0_u64; MEMBERS], [0; MEMBERS]);
        let mut sleeps = [[0_u64; MEMBERS]; 2];
        let mut rail = 0;
        for step in 0..1200 {
            if step % 150 == 50 {
                let nic = pair.testbed.rail(rail)[rng.index(2)];
                pair.testbed.world.set_link(nic, false);
            } else if step % 150 == 149 {
                pair.testbed.rail(rail).into_iter().for_each(|nic| pair.testbed.world.set_link(nic, true));
                rail = 1 - rail;
            }
            let member = rng.index(MEMBERS);
            if step < 1000 && pair.qps[0][member].outstanding() < 8 {
                posted[member] += 1;
                if rng.below(3) == 0 {
                    sent[member] += 1;
                    pair.recv(member, 32 + member);
                    pair.send(member, posted[member]);
                } else {
                    pair.write(member, member, posted[member]);
                }
            }
            pair.backups.iter().for_each(|backup| backup.progress());
            for (h, sleeps) in sleeps.iter_mut().enumerate() {
                for (member, sleep) in sleeps.iter_mut().enumerate() {
                    if *sleep > 0 {
                        *sleep -= 1;
                        continue;
                    }
                    *sleep = if rng.below(10) == 0 { rng.below(400) } else { 0 };
                    pair.qps[h][member].poll(&mut pair.completions[h][member]);
                }
            }
            pair.testbed.world.run_for(Duration::from_micros(25));
        }
        pair.poll(&[0, 1], 4000);
        for member in 0..MEMBERS {
            let wanted: Vec<_> = (1..=posted[member]).map(|id| (id, SUCCESS)).collect();
            assert_eq!(pair.outcomes(0, member), wanted, "seed {seed}, member {member}");
            let received = pair.completions[1][member].iter().filter(|c| c.is_success()).count();
            assert_eq!(received, sent[member], "seed {seed}, member {member}");
        }
        assert!(pair.qps.iter().flatten().all(BackedQp::has_rail), "seed {seed}");
    }
}

/// The messages of the backup do not wait until the member pauses.
#[test]
fn member_that_posts_without_pause_does_not_stop_others() {
    let mut pair = BackedPair::new(2, 2);
    let mut id = 0;
    let mut is_ready = false;
    for _ in 0..60_000 {
        while pair.qps[0][0].outstanding() < 16 {
            id += 1;
            pair.write(0, 1, id);
        }
        pair.backups[1].progress();
        for h in 0..2 {
            for member in 0..2 {
                pair.qps[h][member].poll(&mut pair.completions[h][member]);
            }
        }
        pair.testbed.world.run_for(Duration::from_nanos(200));
        is_ready = pair.qps.iter().flatten().all(BackedQp::has_rail);
        if is_ready {
            break;
        }
    }
    assert!(is_ready, "{:?} after {id} operations", pair.qps);
}

/// As on a queue pair, the responder executes nothing behind a request that it refuses.
#[test]
fn nothing_is_executed_behind_refused_operation() {
    let mut pair = BackedPair::new(2, 2);
    let memory = std::sync::Arc::new(Buffer::new(8));
    let domain = std::sync::Arc::clone(pair.qps[1][0].domain());
    let mr =
        domain.register(&memory, Access::LOCAL_WRITE | Access::REMOTE).expect("the NICs have a free region");
    pair.qps[0][0].import(&mr.remote()).expect("the queue pair is connected");
    pair.poll(&[0], 200);
    domain.deregister(&mr).expect("no window is bound");
    let data = SendWr::new(1, SendOp::Write(mr.remote().at(0)), Data::inline(&1_u64.to_ne_bytes()));
    pair.qps[0][0].post_send(data).expect("room");
    pair.write(0, 1, 2);
    pair.write(1, 2, 3);
    pair.poll(&[0], 800);
    let failed = Outcome::Failed(WcStatus::RemoteAccess);
    let flushed = Outcome::Failed(WcStatus::Flushed);
    assert_eq!(pair.outcomes(0, 0), [(1, failed), (2, flushed)]);
    assert_eq!((pair.word(1), pair.word(2)), (0, 3));
    assert_eq!(pair.outcomes(0, 1), [(3, SUCCESS)]);
    pair.qps[0][0].resume();
    pair.write(0, 1, 4);
    pair.poll(&[0], 800);
    assert_eq!((pair.word(1), pair.outcomes(0, 0).last()), (4, Some(&(4, SUCCESS))));
}

/// No program polls the owner of the refused operation, so the owner posts another operation before
/// it knows of the refusal. By then the backup has recovered from the refusal. The peer has made no
/// queue pair of its own since a failover. It therefore leaves none, and may use the backup at
/// once.
#[test]
fn nothing_is_executed_behind_refused_operation_that_its_owner_has_not_seen() {
    for (poster, peer) in [(0, 1), (1, 0)] {
        let mut pair = BackedPair::new(2, 2);
        let memory = std::sync::Arc::new(Buffer::new(8));
        let domain = std::sync::Arc::clone(pair.qps[peer][0].domain());
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let mr = domain.register(&memory, access).expect("the NICs have a free region");
        let regions = [mr.remote(), pair.mr[peer].remote()];
        regions.iter().for_each(|region| {
            pair.qps[poster][0].import(region).expect("the queue pair is connected");
        });
        pair.poll(&[poster], 200);
        let nic = pair.testbed.rail(0)[0];
        pair.testbed.world.set_link(nic, false);
        pair.poll(&[poster], 1200);
        pair.testbed.world.set_link(nic, true);
        pair.poll(&[poster], 200);
        assert_eq!(pair.backups[0].active_rail(), 1);
        domain.deregister(&mr).expect("no window is bound");
        let write = |region: &RemoteRegion, value: u64| {
            SendWr::new(value, SendOp::Write(region.at(0)), Data::inline(&value.to_ne_bytes()))
        };
        pair.qps[poster][0].post_send(write(&regions[0], 1)).expect("room");
        pair.poll(&[], 800);
        pair.qps[poster][0].post_send(write(&regions[1], 2)).expect("room");
        pair.poll(&[], 400);
        assert_eq!(pair.memory[peer].load(0), 0, "end {poster}");
        pair.poll(&[poster], 400);
        let failed = Outcome::Failed(WcStatus::RemoteAccess);
        let flushed = Outcome::Failed(WcStatus::Flushed);
        assert_eq!(pair.outcomes(poster, 0), [(1, failed), (2, flushed)], "end {poster}");
        assert_eq!((pair.memory[peer].load(0), pair.backups[poster].close_reason()), (0, None));
    }
}
