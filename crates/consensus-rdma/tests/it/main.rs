//! The tests of the public interface, one program with a module for each subject.

#[path = "../common/mod.rs"]
mod common;

mod byzantine;
mod corpus;
mod hostile_client;
mod protocols;
