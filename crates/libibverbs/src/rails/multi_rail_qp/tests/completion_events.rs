//! The events of a completion queue that is armed.

use mitra_verbs::{WcOpcode, WcStatus};

use super::*;
use crate::common::event_queue::{EventQueue, new_event_queue};

fn queue() -> (Arc<VirtualCq>, Arc<EventQueue<CqId>>) {
    let events = Arc::new(new_event_queue().expect("the process has room for a descriptor"));
    (VirtualCq::new(device().domain(), CqId(0), 1 << 10, Some(Arc::clone(&events)), || {}), events)
}

fn completion(wr_id: u64) -> Wc {
    Wc::new(wr_id, WcStatus::Success, WcOpcode::Recv, Qpn::new(5))
}

#[test]
fn each_request_brings_one_event_for_a_later_completion() {
    let (cq, events) = queue();
    cq.push(completion(1));
    assert!(events.is_empty(), "the queue was not armed");
    cq.arm(false).expect("the NICs are alive");
    assert!(events.is_empty(), "the completion is older than the request");
    cq.push(completion(2));
    cq.push(completion(3));
    assert_eq!(events.len(), 1);
}

/// A program that polls one completion for each event, as perftest does, finds every completion
/// that it waits for.
#[test]
fn event_finds_completion_that_was_added_after_the_request() {
    const ROUNDS: u64 = 20_000;
    let (cq, events) = queue();
    let (posted, to_push) = std::sync::mpsc::channel();
    let pushing = Arc::clone(&cq);
    let pusher = thread::spawn(move || to_push.iter().for_each(|wr_id| pushing.push(completion(wr_id))));
    cq.arm(false).expect("the NICs are alive");
    for wr_id in 0..ROUNDS {
        posted.send(wr_id).expect("the thread runs");
        while events.pop().is_none() {
            thread::yield_now();
        }
        cq.arm(false).expect("the NICs are alive");
        let mut polled = Vec::new();
        cq.poll(1, &mut polled).expect("no NIC is polled");
        assert_eq!(polled.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [wr_id]);
    }
    drop(posted);
    pusher.join().expect("a push does not panic");
}
