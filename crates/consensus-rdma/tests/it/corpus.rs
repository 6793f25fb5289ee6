//! Replays the committed fuzz corpus of the handshake.

#[path = "../../src/frame.rs"]
mod frame;
#[path = "../../../../fuzz/properties/handshake.rs"]
mod handshake;
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[test]
fn handshake() {
    replay::replay("handshake", handshake::run);
}
