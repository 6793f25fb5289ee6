//! Replays the corpora of the fuzz targets of this crate.

#[path = "../../../fuzz/properties/ring.rs"]
mod body;
#[allow(dead_code, reason = "rings need no strings")]
#[path = "../../../fuzz/bytes.rs"]
mod bytes;
#[path = "../../../fuzz/replay.rs"]
mod replay;
#[allow(dead_code, reason = "the property uses a part of it")]
#[path = "../src/shared_memory/ring.rs"]
mod ring;

#[test]
fn corpus_of_rings() {
    replay::replay("ring", body::run);
}
