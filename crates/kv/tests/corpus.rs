//! Replays the committed fuzz corpus of RESP.

#[path = "../../../fuzz/replay.rs"]
mod replay;
#[path = "../../../fuzz/properties/resp.rs"]
mod resp;

#[test]
fn resp() {
    replay::replay("resp", resp::run);
}
