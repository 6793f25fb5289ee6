//! Virtual queue pairs on simulated NICs. Each module tests one rule or one kind of failure.

#[path = "../hooked_nic/mod.rs"]
mod hooked_nic;
#[path = "../shared_word/mod.rs"]
mod shared_word;
#[path = "../vqp_pair/mod.rs"]
mod vqp_pair;

mod access;
mod address_changes;
mod batch_posts;
mod builder;
mod control_endpoint;
mod domain;
mod domains;
mod dropped_vqp;
mod durable;
mod end_reasons;
mod failback;
mod final_evidence;
mod forged_messages;
mod hazards;
mod home_ring;
mod peer_exit;
mod polls;
mod promises;
mod races;
mod rail_kinds;
mod receive_order;
mod receiver_not_ready;
mod recovery_points;
mod scenarios;
mod secrets;
mod send_drain;
mod shared_atomics;
mod shared_atomics_storms;
mod shared_atomics_turns;
mod shared_receives;
mod superseded_moves;
mod two_histories;
mod two_homes;
mod unreliable;
mod unreliable_receives;
mod unreliable_start;
mod unreliable_windows;
mod window_storms;
mod windows;
