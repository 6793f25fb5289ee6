//! Failures while an end recovers from an earlier failure.

use core::time::Duration;
use std::sync::Arc;

use mitra_failover::{BackedQp, Outcome};
use mitra_sim::Testbed;
use mitra_verbs::{Access, Buffer, Data, RecvWr, SendOp, SendWr, SgeList};

use super::pair::BackedPair;
use super::run::config;

const SUCCESS: Outcome = Outcome::Success;

/// The backup leaves a rail whose link is down at the peer, and stops its queue pair there. A
/// `BackedQp` that is dropped at poll `dropped_at` stops that queue pair as well. The port of end 0
/// is up, so no later event tells end 0 that the rail works again. Returns the number of polls
/// after which the backup had moved.
fn leave_rail_and_return(dropped_at: Option<usize>) -> usize {
    let mut pair = BackedPair::new(2, 2);
    pair.poll(&[0], 200);
    let nics = [0, 1].map(|rail| pair.testbed.rail(rail)[1]);
    pair.testbed.world.set_link(nics[0], false);
    (0..2).for_each(|member| pair.write(member, 1 + member, 1));
    let mut moved_at = None;
    for poll in 0..1000 {
        if dropped_at == Some(poll) {
            assert_eq!(pair.backups[0].active_rail(), 0);
            let spare = pair.backups[0].queue_pair(config()).expect("a free queue pair");
            drop(core::mem::replace(&mut pair.qps[0][0], spare));
        }
        pair.backups[1].progress();
        pair.qps[0].iter_mut().zip(&mut pair.completions[0]).for_each(|(qp, out)| {
            qp.poll(out);
        });
        pair.testbed.world.run_for(Duration::from_micros(2));
        if pair.backups[0].active_rail() == 1 {
            moved_at.get_or_insert(poll);
        }
    }
    let moved_at = moved_at.expect("the backup moved");
    pair.poll(&[0], 1000);
    pair.testbed.world.set_link(nics[0], true);
    pair.poll(&[0], 1000);
    pair.testbed.world.set_link(nics[1], false);
    pair.write(1, 3, 2);
    pair.poll(&[0], 3000);
    assert_eq!(pair.outcomes(0, 1), [(1, SUCCESS), (2, SUCCESS)], "dropped at {dropped_at:?}");
    assert_eq!(pair.backups[0].close_reason(), None, "dropped at {dropped_at:?}");
    moved_at
}

#[test]
fn rail_that_fails_again_while_the_backup_leaves_it_stays_usable() {
    let moved_at = leave_rail_and_return(None);
    for poll in 0..=moved_at {
        leave_rail_and_return(Some(poll));
    }
}

/// One queue pair places a part of a WRITE with immediate, and the next queue pair fails before it
/// is used. The receive has the length of the whole WRITE.
#[test]
fn receive_of_torn_write_counts_the_bytes_of_all_queue_pairs() {
    const LEN: usize = 1 << 16;
    for first in 1..6 {
        for second in 0..24 {
            let testbed = Testbed::with_config(1, mitra_sim::Config::fault_free(), 3);
            let mut pair = BackedPair::with(testbed, config(), 1, |backup, _| backup.queue_pair(config()));
            let buffers = [0, 1].map(|_| Arc::new(Buffer::new(LEN)));
            let access = Access::LOCAL_WRITE | Access::REMOTE;
            let [from, to] = [0, 1].map(|h: usize| {
                pair.qps[h][0].domain().register(&buffers[h], access).expect("the NICs have a free region")
            });
            pair.qps[0][0].import(&to.remote()).expect("the queue pair is connected");
            pair.poll(&[0, 1], 400);
            assert!(pair.qps.iter().flatten().all(BackedQp::has_rail));
            let receive = RecvWr { wr_id: 1, sges: SgeList::new() };
            pair.qps[1][0].post_recv(receive).expect("the receive queue has room");
            let op = SendOp::WriteWithImm(to.remote().at(0), 7);
            let wr = SendWr::new(1, op, Data::sge(from.sge(0, LEN as u32)));
            pair.qps[0][0].post_send(wr).expect("room");
            pair.testbed.world.run_for(first * Duration::from_micros(1));
            let nic = pair.testbed.rail(0)[0];
            pair.testbed.world.set_link(nic, false);
            while pair.backups[0].active_rail() == 0 {
                pair.poll(&[0, 1], 1);
            }
            pair.poll(&[0, 1], second);
            let nic = pair.testbed.rail(pair.backups[0].active_rail())[0];
            pair.testbed.world.set_link(nic, false);
            pair.poll(&[0, 1], 3000);
            let label = format!("the first rail failed after {first} µs, the second {second} polls later");
            assert_eq!(pair.outcomes(0, 0), [(1, SUCCESS)], "{label}");
            let received: Vec<_> = pair.completions[1][0].iter().map(|c| c.byte_len as usize).collect();
            assert_eq!(received, [LEN], "{label}");
        }
    }
}
