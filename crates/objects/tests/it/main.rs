//! The tests of the public interface, one program with a module for each subject.

#[path = "../memory/mod.rs"]
mod memory;

mod cells;
mod costs;
mod latch;
mod mailbox;
mod mutex;
mod recoverable_counter;
