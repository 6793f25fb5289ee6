//! Windows whose binds a NIC executes late, refuses or fails, and windows of queue pairs that are
//! dropped.

use core::time::Duration;
use std::sync::Arc;

use mitra_failover::{BackedQp, Outcome};
use mitra_sim::Testbed;
use mitra_verbs::{Access, Buffer, Data, Provider, SendOp, SendWr, WindowType};

use super::pair::BackedPair;
use super::run::{config, connect_backups_over, nics_of};
use super::windows::{FAILOVER, SETTLE, WindowPair};
use crate::hooked_nic::{Binds, HookedNic};

const SUCCESS: Outcome = Outcome::Success;

/// Returns a pair whose host b has hooked NICs, by rail. The seed determines the roles of the ends.
fn hooked(rails: u8, window_type: WindowType, seed: u64) -> (WindowPair, Vec<Arc<HookedNic>>) {
    let testbed = Testbed::with_config(1, mitra_sim::Config::fault_free(), rails);
    let hooked: Vec<_> = testbed.nics[1].iter().map(HookedNic::new).collect();
    let [a, _] = nics_of(&testbed);
    let b = hooked.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
    let backups = connect_backups_over([a, b], config(), seed);
    let pair = BackedPair::of(testbed, backups, 2, |backup, _| backup.queue_pair(config()));
    (WindowPair::of(pair, window_type), hooked)
}

fn fail_active_rail(windows: &mut WindowPair) {
    let nic = windows.pair.testbed.rail(windows.pair.backups[0].active_rail())[0];
    windows.pair.testbed.world.set_link(nic, false);
    windows.pair.poll(&[0, 1], FAILOVER);
}

fn has_rail(windows: &WindowPair) -> [bool; 2] {
    windows.pair.qps.each_ref().map(|qps| qps[0].has_rail())
}

/// The peer learns that the new queue pair is connected only after the new queue pair has executed
/// its binds.
#[test]
fn peer_waits_for_the_binds_of_the_new_queue_pair() {
    for seed in 1..5 {
        let (mut windows, nics) = hooked(2, WindowType::Type2, seed);
        let to = windows.bind(1, 7);
        nics[1].set_binds(Binds::Hold(Vec::new()));
        windows.post(0, 0, 10, SendOp::Write(to));
        windows.pair.poll(&[0, 1], SETTLE);
        assert_eq!(windows.outcome(0, 10), Some(SUCCESS), "seed {seed}");
        fail_active_rail(&mut windows);
        windows.post(0, 0, 11, SendOp::Write(to));
        windows.pair.poll(&[0, 1], FAILOVER);
        assert!(windows.pair.qps.iter().all(|qps| qps[1].has_rail()), "seed {seed}: one without windows");
        assert!(!has_rail(&windows)[0], "seed {seed}");
        assert_eq!(windows.outcome(0, 11), None, "seed {seed}");
        assert_eq!(nics[1].execute_binds(), 1, "seed {seed}");
        windows.pair.poll(&[0, 1], FAILOVER);
        assert_eq!((windows.outcome(0, 11), windows.pair.word(0)), (Some(SUCCESS), 11), "seed {seed}");
    }
}

/// A NIC of a third rail executes the bind of a type 1 window late, and the first rail fails
/// meanwhile. The bind belongs to the queue pair that the end leaves. Until the bind completes, the
/// end posts nothing on the next queue pair.
#[test]
fn end_posts_on_its_new_queue_pair_when_the_bind_has_completed() {
    for seed in 1..5 {
        let (mut windows, nics) = hooked(3, WindowType::Type1, seed);
        nics[2].set_binds(Binds::Hold(Vec::new()));
        windows.post(1, 0, 1, windows.bind_op(7, 64));
        windows.pair.poll(&[0, 1], SETTLE);
        fail_active_rail(&mut windows);
        assert_eq!((windows.outcome(1, 1), has_rail(&windows)[1]), (None, false), "seed {seed}");
        assert_eq!(nics[2].execute_binds(), 1, "seed {seed}");
        windows.pair.poll(&[0, 1], FAILOVER);
        assert_eq!((windows.outcome(1, 1), has_rail(&windows)), (Some(SUCCESS), [true; 2]), "seed {seed}");
    }
}

/// The end leaves a queue pair that does not execute the binds of its predecessor, even if neither
/// end posts a request.
#[test]
fn queue_pair_without_its_binds_is_left() {
    for (is_refused, seed) in [1, 2, 3, 4].into_iter().flat_map(|seed| [(true, seed), (false, seed)]) {
        let label = format!("refused {is_refused}, seed {seed}");
        let (mut windows, nics) = hooked(3, WindowType::Type2, seed);
        let to = windows.bind(1, 7);
        nics[1].set_binds(if is_refused { Binds::RefuseNext } else { Binds::FailNext });
        fail_active_rail(&mut windows);
        windows.pair.poll(&[0, 1], FAILOVER);
        let epoch = windows.pair.backups[1].last_failover().map(|report| report.epoch);
        assert_eq!((windows.pair.backups[0].active_rail(), epoch), (2, Some(3)), "{label}");
        assert!(windows.pair.qps.iter().flatten().all(BackedQp::has_rail), "{label}");
        windows.check_permitted(10, to);
    }
}

/// The queue pair is dropped at any moment of a failover, also while the backup has an operation of
/// the queue pair.
#[test]
fn dropped_queue_pair_with_an_operation_on_the_backup_unbinds_its_windows() {
    for polls in 0..60 {
        let mut windows =
            WindowPair::over(Testbed::with_config(1, mitra_sim::Config::fault_free(), 2), WindowType::Type2);
        windows.bind(1, 7);
        let domain = windows.pair.qps[1][0].domain().clone();
        let target = Arc::new(Buffer::new(8));
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let region =
            windows.pair.qps[0][0].domain().register(&target, access).expect("a free region").remote();
        windows.pair.qps[1][0].import(&region).expect("the queue pair is connected");
        windows.pair.poll(&[0, 1], SETTLE);
        let nic = windows.pair.testbed.rail(0)[0];
        windows.pair.testbed.world.set_link(nic, false);
        for _ in 0..10 * polls {
            windows.pair.backups[0].progress();
            windows.pair.qps[0][0].progress();
            windows.pair.qps[1][0].progress();
            windows.pair.testbed.world.run_for(Duration::from_micros(2));
        }
        let wr = SendWr::new(1, SendOp::Write(region.at(0)), Data::inline(&[1; 8]));
        windows.pair.qps[1][0].post_send(wr).expect("the queue pair is open");
        windows.pair.backups[1].progress();
        let spare = windows.pair.backups[1].queue_pair(config()).expect("a free queue pair");
        drop(core::mem::replace(&mut windows.pair.qps[1][0], spare));
        assert_eq!(domain.deregister(&windows.mr), Ok(()), "{polls} polls");
    }
}
