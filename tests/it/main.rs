//! The tests of the `mitra` program, one program with a module for each command.

#[path = "../sample_packets/mod.rs"]
mod sample_packets;

mod bench;
mod check;
mod command_line;
mod consensus;
mod decode;
mod demo;
mod devices;
mod election;
mod glibc;
mod interop_scapy;
mod interop_tshark;
mod kv;
mod minimal_nics;
mod refused_input;
mod reports;
mod run;
mod topology;
mod two_hosts;
mod txn;
