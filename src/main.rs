//! The `mitra` program.
fn main() {}
