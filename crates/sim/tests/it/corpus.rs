//! Replays the committed fuzz corpora of the targets that run in the simulator.

use crate::vqp_pair;

#[path = "../../../../fuzz/properties/control_messages.rs"]
mod control_messages;
#[path = "../../../../fuzz/properties/messages.rs"]
mod messages;
#[path = "../../../../fuzz/replay.rs"]
mod replay;
#[path = "../../../../fuzz/round_trip.rs"]
mod round_trip;

#[test]
fn control_messages() {
    replay::replay("control_messages", control_messages::run);
}

#[test]
fn messages() {
    replay::replay("messages", messages::run);
}
