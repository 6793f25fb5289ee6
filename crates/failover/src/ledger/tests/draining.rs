use super::{decide, executed, ledger, post_all, write};
use crate::config::WritePolicy;

#[test]
fn draining_queue_posts_only_what_had_begun() {
    let mut ledger = ledger();
    ledger.push(write(false, 8), WritePolicy::Strict);
    post_all(&mut ledger);
    ledger.push(write(false, 8), WritePolicy::Strict);
    assert!(!ledger.is_draining() && !ledger.is_drained());
    assert!(ledger.drain(), "it begins");
    assert!(!ledger.drain(), "it has begun");
    assert!(ledger.is_draining() && !ledger.is_drained() && !ledger.has_no_begun_operation());
    assert!(ledger.next_posting().is_none(), "the second operation has not begun");
    // The first operation had begun, and the peer did not execute it on the failed rail.
    decide(&mut ledger, &executed(0));
    assert!(!ledger.has_no_begun_operation(), "it is to be sent again");
    assert_eq!(ledger.next_posting().map(|posting| posting.wr.wr_id), Some(0));
    assert!(ledger.next_posting().is_none());
    ledger.complete(0, 0);
    assert!(ledger.has_no_begun_operation());
    ledger.set_drained();
    assert!(ledger.is_drained() && !ledger.is_draining() && ledger.next_posting().is_none());
    ledger.undrain();
    assert!(!ledger.is_drained());
    assert_eq!(ledger.next_posting().map(|posting| posting.wr.wr_id), Some(1));
}
