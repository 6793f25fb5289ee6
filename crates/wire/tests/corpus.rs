//! Replays the committed fuzz corpora through the properties that cargo-fuzz checks, on every `cargo test`.

use std::path::PathBuf;

#[path = "../../../fuzz/properties/decode_file.rs"]
mod decode_file;
#[path = "../../../fuzz/properties/parse_frame.rs"]
mod parse_frame;
#[path = "../../../fuzz/properties/parse_packet.rs"]
mod parse_packet;

fn replay(target: &str, run: fn(&[u8])) {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut count = 0;
    for entry in entries {
        let path = entry.unwrap().path();
        // The test harness prints this line only if the test fails. It then names the input that failed.
        println!("{}", path.display());
        run(&std::fs::read(path).unwrap());
        count += 1;
    }
    assert!(count >= 10, "only {count} inputs in {}", dir.display());
}

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
