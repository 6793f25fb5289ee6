//! The tests of the public interface, one program with a module for each subject.

#[path = "../common/mod.rs"]
mod common;

mod captures;
mod corpus;
mod frames;
mod icrc;
mod packets;
mod pcap;
