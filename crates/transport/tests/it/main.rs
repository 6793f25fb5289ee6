//! The tests of the public interface, one program with a module for each subject.

#[path = "../common/mod.rs"]
mod common;

mod blocked_destinations;
mod completion_events;
mod corpus;
mod cq_overflow;
mod hostile_packets;
mod memory_windows;
mod multicast;
mod objects_and_posts;
mod qp_states;
mod rc_acknowledgements;
mod rc_counters;
mod rc_errors;
mod rc_invalid_packets;
mod rc_operations;
mod rc_packet_loss;
mod rc_posting_and_sending;
mod rc_receiver_not_ready;
mod rc_refusals_and_duplicates;
mod rc_retransmission;
mod rc_windows_and_fences;
mod rxe_captures;
mod shared_receive_queues;
mod traffic_class;
mod uc_and_ud;
mod xrc;
mod xrc_random;
