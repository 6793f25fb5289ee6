//! Replays the committed fuzz corpora of what runs in the simulator.

// The property finds it beside itself, as in its fuzz target.
use crate::vqp_pair;

#[path = "../../../../fuzz/properties/control_messages.rs"]
mod control_messages;
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[test]
fn control_messages() {
    replay::replay("control_messages", control_messages::run);
}
