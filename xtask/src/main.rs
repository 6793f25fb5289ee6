//! Chores of the Mitra checkout.
fn main() {}
