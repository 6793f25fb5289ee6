#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod activity;
mod ballot;
mod builder;
mod cause;
mod close_reason;
mod completion;
mod completion_log;
mod config;
mod connect_info;
mod control_message;
mod data_qp;
mod domain;
mod evidence;
mod failover_report;
mod group_member;
pub mod handshake;
mod home_rail;
mod idempotence;
mod key_translation;
mod ledger;
mod local_nic;
mod lock;
mod memory_region;
mod memory_window;
mod negotiation;
mod owned_region;
mod peer_exit;
mod rail;
mod rail_questions;
mod recovery_plan;
mod secret;
mod shared_cqs;
mod shared_receive_queue;
pub mod telemetry;
mod vqp;
mod xrc_domain;

pub use activity::Activity;
pub use builder::{BuildError, VirtualQpBuilder};
pub use cause::Cause;
pub use close_reason::CloseReason;
pub use completion::{Completion, OperationError, Outcome, Resolution, UnresolvedError};
pub use config::{
    CompletionLogConfig, Config, DetectorConfig, Failback, Fencing, MAX_RAILS, ParsePolicyError, Policy,
    Service, WritePolicy,
};
pub use connect_info::ConnectInfo;
pub use domain::Domain;
pub use evidence::Contradiction;
pub use failover_report::FailoverReport;
pub use idempotence::{Idempotence, LostValue, RepeatClass, idempotence};
pub use ledger::RecoveryStats;
pub use local_nic::LocalNic;
pub use memory_region::{RemoteRegion, VirtualMr};
pub use memory_window::VirtualMw;
pub use owned_region::OwnedRegion;

/// For model checkers: the state machine with which an end agrees with its peer on the active rail.
pub mod rail_negotiation {
    pub use crate::ballot::{Ballot, Role};
    pub use crate::close_reason::CloseReason;
    pub use crate::control_message::{Body, Message, MessageKind, NewQp};
    pub use crate::evidence::Evidence;
    pub use crate::home_rail::Home;
    pub use crate::negotiation::{Action, RailFailure, RailNegotiation};
}

/// For model checkers: the state machine that detects silent rails.
pub mod silence_detector {
    pub use crate::rail_questions::{RailQuestions, Step, Wait};
}

/// For tests with a model: the state machine that decides which operations are sent again after a
/// failure.
pub mod operation_ledger {
    pub use crate::evidence::{Evidence, Placed};
    pub use crate::ledger::{Entry, Ledger, Posting, RecoveredValue, RecoveryInput};
}

/// For model checkers: the state machine of each end of a queue pair with a shared backup.
pub mod shared_backup_member {
    pub use crate::ballot::Role;
    pub use crate::evidence::Evidence;
    pub use crate::vqp::shared_backup::{Body, Grant, Member, OfferedQp, Step};
}

pub use secret::Secret;
pub use shared_receive_queue::SharedReceiveQueue;
#[doc(hidden)]
pub use vqp::StateLengths;
pub use vqp::{
    BackedQp, BackedQpInfo, Failover, OwnFailover, PacketCounts, SharedBackup, SharedFailover, VirtualQp,
};
pub use xrc_domain::XrcDomain;
