//! Replays the committed fuzz corpora of memory nodes, their clients and their files.

#[path = "../../../../fuzz/bytes.rs"]
mod bytes;
#[path = "../../../../fuzz/properties/memory_client.rs"]
mod memory_client;
#[path = "../../../../fuzz/memory_files.rs"]
mod memory_files;
#[path = "../../../../fuzz/properties/memory_node.rs"]
mod memory_node;
#[path = "../../../../fuzz/properties/region_files.rs"]
mod region_files;
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[test]
fn memory_node() {
    replay::replay("memory_node", memory_node::run);
}

#[test]
fn memory_client() {
    replay::replay("memory_client", memory_client::run);
}

#[test]
fn region_files() {
    replay::replay("region_files", region_files::run);
}
