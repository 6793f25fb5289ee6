//! The tests of the public interface, one program with a module for each subject.

#[path = "../common/mod.rs"]
mod common;

use mitra_softnic::Links;

const LINKS: Links = Links::Auto;

mod address_changes;
mod conformance;
mod fault_injection;
mod malformed_packets;
mod multicast;
mod pcap_capture;
mod port_refusals;
mod progress_and_events;
mod shared_memory;
mod traffic_class;
mod verbs_operations;
