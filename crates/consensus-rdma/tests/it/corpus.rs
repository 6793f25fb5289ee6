//! Replays the committed fuzz corpus of the handshake.

#[path = "../../../../fuzz/properties/handshake.rs"]
mod handshake;
#[path = "../../../../fuzz/replay.rs"]
mod replay;

use mitra_handshake as frame;

#[test]
fn handshake() {
    replay::replay("handshake", handshake::run);
}
