//! The virtual queue pair, and the parts that own its state.
//!
//! [`VirtualQp`] is the public interface and has two parts:
//!
//! - `datapath`: the send queue with its ledger, the receive queue, the slots of a shared receive
//!   queue (`shared_receives`), the memory windows (`window_sync`), the completions for the
//!   application, the queue pairs, and the reason for closing (`termination`);
//! - a [`Failover`], which drives the queue pairs and moves the datapath to other queue pairs after
//!   a failure.
//!
//! A vQP with a queue pair on every rail has an [`OwnFailover`]:
//!
//! - `recovery`: the negotiation with the peer, the fence and the failover report;
//! - `maintenance`: all periodic work: control messages, device events, heartbeats and probes of
//!   the rails that the vQP left.
//!
//! A [`BackedQp`] has a [`SharedFailover`] instead (`shared_backup`).
//!
//! For example, the active rail fails while a WRITE is in flight:
//!
//! 1. [`VirtualQp::post_send`] checks the WRITE. `send_queue` posts the WRITE on the active rail
//!    and records it in the ledger. Then the rail fails.
//! 2. The next poll finds an error completion. `recovery` reports the failure to the negotiation
//!    and executes the actions that the negotiation requests: it fences the rail (`fence`),
//!    collects the evidence for the peer (`datapath`) and sends the evidence.
//! 3. `maintenance` receives the peer's evidence, and the negotiation requests the decision. The
//!    ledger decides whether the WRITE has completed or is to be replayed, and `recovery` posts the
//!    replay on the new rail, as `replay` limits it.
//! 4. The completion of the last operation that was in flight completes the failover report.
//!    Meanwhile `rail_rejoin` connects new queue pairs on the old rail, so that a later failover
//!    can use it.

mod address_changes;
mod control_protocol;
mod datapath;
mod durability;
mod event_channels;
mod failover;
mod failure;
mod fence;
mod futile_move_detector;
mod group_membership;
mod heartbeats;
mod home_membership;
mod local_qp;
mod maintenance;
mod maintenance_schedule;
mod packet_counts;
mod peer_exit_watch;
mod rail_rejoin;
mod rail_set;
mod receive_queue;
mod recovery;
mod replay;
mod report_recorder;
mod send_queue;
pub(crate) mod shared_backup;
mod shared_receives;
mod state_lengths;
mod termination;
mod virtual_qp;
mod window_sync;
mod wr_id_flags;
mod xrc_messages;

use mitra_verbs::Error;

pub use failover::Failover;
pub(crate) use fence::DRAIN_TIMEOUT;
pub use packet_counts::PacketCounts;
pub use shared_backup::{BackedQp, BackedQpInfo, SharedBackup, SharedFailover};
pub(crate) use shared_receives::{ReceiveSource, with_slots};
pub use state_lengths::StateLengths;
pub use virtual_qp::{OwnFailover, VirtualQp};
pub(crate) use xrc_messages::HEADER_BYTES;

const NOT_CONNECTED: Error = Error::Invalid("this virtual queue pair is not connected yet");
