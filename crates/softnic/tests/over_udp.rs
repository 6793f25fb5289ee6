//! The tests of `it` with NICs that reach each other over UDP only.

#[path = "common/mod.rs"]
mod common;

use mitra_softnic::Links;

const LINKS: Links = Links::Udp;

#[path = "it/address_changes.rs"]
mod address_changes;
#[path = "it/conformance.rs"]
mod conformance;
#[path = "it/fault_injection.rs"]
mod fault_injection;
#[path = "it/malformed_packets.rs"]
mod malformed_packets;
#[path = "it/multicast.rs"]
mod multicast;
#[path = "it/pcap_capture.rs"]
mod pcap_capture;
#[path = "it/port_refusals.rs"]
mod port_refusals;
#[path = "it/progress_and_events.rs"]
mod progress_and_events;
#[path = "it/traffic_class.rs"]
mod traffic_class;
#[path = "it/verbs_operations.rs"]
mod verbs_operations;
