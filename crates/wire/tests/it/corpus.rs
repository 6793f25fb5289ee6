//! Replays the committed fuzz corpora through the properties that cargo-fuzz checks, on every
//! `cargo test`.

#[path = "../../../../fuzz/properties/decode_file.rs"]
mod decode_file;
#[path = "../../../../fuzz/properties/parse_frame.rs"]
mod parse_frame;
#[path = "../../../../fuzz/properties/parse_packet.rs"]
mod parse_packet;
#[path = "../../../../fuzz/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn parse_packet() {
    replay("parse_packet", parse_packet::run);
}

#[test]
fn parse_frame() {
    replay("parse_frame", parse_frame::run);
}

#[test]
fn decode_file() {
    replay("decode_file", decode_file::run);
}
