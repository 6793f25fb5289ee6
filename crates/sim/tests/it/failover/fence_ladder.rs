//! The steps of a fence whose markers do not complete: ERR again, destroy the queue pair, reset the
//! NIC, `Unfenced`.

use core::sync::atomic::Ordering;
use std::sync::Arc;

use mitra_failover::{CloseReason, Outcome};
use mitra_sim::{Config, Testbed};
use mitra_verbs::{Error, Provider};

use crate::hooked_nic::{ErrorPosts, HookedNic};
use crate::vqp_pair::{VqpPair, config};

/// More polls than all steps of a fence take.
const POLLS: usize = 12_000;

/// A pair whose responder has hooked NICs, with a message in flight when rail 0 fails.
struct Ladder {
    pair: VqpPair,
    nic: Arc<HookedNic>,
}

impl Ladder {
    fn fail_over(can_reset: bool, prepare: impl FnOnce(&HookedNic)) -> Ladder {
        let mut world = Config::fault_free();
        world.capabilities.reset = can_reset;
        let testbed = Testbed::with_config(1, world, 2);
        let hooked: Vec<_> = testbed.nics[1].iter().map(HookedNic::new).collect();
        let nics = [
            testbed.nics[0].iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect(),
            hooked.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect(),
        ];
        let mut pair = VqpPair::over(testbed, nics, config(), &[]);
        (1..4).for_each(|wr_id| pair.recv(1, wr_id, 8));
        pair.poll_times(&[0, 1], 20);
        prepare(&hooked[0]);
        pair.link_down(0, 0);
        pair.send_message(7, 42);
        pair.poll_times(&[0, 1], POLLS);
        Ladder { pair, nic: Arc::clone(&hooked[0]) }
    }

    /// The vQP has moved, and the message was received once.
    fn assert_moved(&self) {
        assert_eq!(self.pair.vqps.each_ref().map(|vqp| vqp.active_rail()), [1, 1]);
        assert_eq!(self.pair.outcome(0, 7, false), Some(Outcome::Success));
        assert_eq!(self.pair.received_ids(), [1]);
    }

    fn is_reset(&self) -> bool {
        self.nic.query_port() == Err(Error::DeviceFatal)
    }
}

#[test]
fn marker_that_is_flushed_at_the_second_change_to_err_ends_the_fence() {
    let ladder = Ladder::fail_over(true, |nic| {
        nic.set_error_posts(ErrorPosts::Hold(Vec::new()));
        nic.refuses_to_destroy.store(true, Ordering::Relaxed);
    });
    assert!(!ladder.is_reset());
    ladder.assert_moved();
}

/// The message of no bytes that takes the marker counts as executed, and no receive of the program
/// completes by it.
#[test]
fn vqp_whose_marker_is_taken_by_a_message_closes() {
    let mut ladder = Ladder::fail_over(true, |nic| nic.set_error_posts(ErrorPosts::Take(Vec::new())));
    ladder.pair.is_attacked = true; // the world does not know of the message
    assert_eq!(ladder.pair.vqps[1].close_reason(), Some(CloseReason::RequestError));
    assert!(ladder.pair.received_ids().is_empty());
}

#[test]
fn queue_pair_that_never_flushes_is_destroyed_and_its_nic_stays() {
    let ladder = Ladder::fail_over(true, |nic| nic.set_error_posts(ErrorPosts::Never));
    assert!(!ladder.is_reset());
    ladder.assert_moved();
}

#[test]
fn nic_that_neither_flushes_nor_destroys_is_reset() {
    let ladder = Ladder::fail_over(true, |nic| {
        nic.set_error_posts(ErrorPosts::Never);
        nic.refuses_to_destroy.store(true, Ordering::Relaxed);
    });
    assert!(ladder.is_reset());
    ladder.assert_moved();
}

#[test]
fn vqp_of_a_nic_that_cannot_be_reset_either_ends_as_unfenced() {
    let mut ladder = Ladder::fail_over(false, |nic| {
        nic.set_error_posts(ErrorPosts::Never);
        nic.refuses_to_destroy.store(true, Ordering::Relaxed);
    });
    ladder.pair.is_attacked = true; // the world does not know that the NIC is broken
    assert!(!ladder.is_reset());
    assert_eq!(ladder.pair.vqps[1].close_reason(), Some(CloseReason::Unfenced));
    assert!(ladder.pair.received_ids().is_empty());
}
