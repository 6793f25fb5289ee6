//! The virtual queue pair, and the parts that own its state.
//!
//! [`VirtualQp`] is the public interface. It owns three parts and passes them to each other:
//!
//! - `datapath`: the rails, the send queue with its ledger, the receive queue, and the completions for the application;
//! - `recovery`: the negotiation with the peer, the fence, the failover report and the reason for closing;
//! - `maintenance`: everything that the clock triggers: control messages, device events, heartbeats and probes of failed rails.
//!
//! A WRITE takes this way. [`VirtualQp::post_send`] checks it and enters it in the ledger (`send_queue`), which posts it on the active rail.
//! The rail dies. The next poll finds an error completion; `recovery` reports the failure to the negotiation, whose actions it executes:
//! fence the rail (`fence`), collect the evidence for the peer (`datapath`) and send it. `maintenance` receives the peer's evidence, and
//! the negotiation asks for the decision: the ledger completes or replays the WRITE, and `recovery` posts the replay on the new rail. Its
//! completion ends the failover report. Meanwhile `rail_rejoin` connects new queue pairs on the old rail for the next failover.

mod control_protocol;
mod datapath;
mod failover_report;
mod failure_cause;
mod fence;
mod futile_move_detector;
mod heartbeats;
mod maintenance;
mod maintenance_schedule;
mod rail_rejoin;
mod rail_set;
mod receive_queue;
mod recovery;
mod send_queue;
mod termination;
mod virtual_qp;
mod wr_id_flags;

pub use failover_report::FailoverReport;
pub use failure_cause::Cause;
pub use virtual_qp::VirtualQp;
