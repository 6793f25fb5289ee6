//! Runs the programs in `examples/`, whose assertions must hold.

#[path = "../examples/survive.rs"]
mod survive;
#[path = "../examples/write.rs"]
mod write;

#[test]
fn write_arrives() {
    write::main().unwrap();
}

#[test]
fn counter_survives_rail_failure() {
    survive::main().unwrap();
}
