//! Replays the committed fuzz corpora of the transport.

// The property finds it beside itself, as in its fuzz target.
use crate::common;

#[path = "../../../../fuzz/properties/rc_operations.rs"]
mod rc_operations;
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[test]
fn rc_operations() {
    replay::replay("rc_operations", rc_operations::run);
}
