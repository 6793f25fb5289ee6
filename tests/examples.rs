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
fn a_counter_survives_a_rail() {
    survive::main().unwrap();
}
