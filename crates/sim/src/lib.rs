#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

/// The example of the page runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/testing-your-program.md")]
mod testing_your_program {}

mod absences;
mod app;
mod config;
mod coverage;
mod disturbances;
mod dma_memory;
mod dma_pipeline;
mod duration_range;
mod event_queue;
mod failure_injection;
mod failure_report;
mod ids;
mod liveness;
mod nic;
mod packet_capture;
mod packet_kind;
mod rc_flow;
mod sim_nic;
mod testbed;
pub mod timeline;
mod trace;
pub mod workload;
mod world;
mod world_state;

pub use app::{App, AppContext};
pub use config::{Config, HostTiming, LinkConfig, MemoryTiming, NicTiming};
pub use coverage::{Coverage, CoverageCell, Operation, RecoveryPoint};
pub use duration_range::DurationRange;
pub use ids::{HostId, NicId};
pub use liveness::check_close_reasons;
pub use mitra_prng::{Prng, fault_times, reproduce_command, seeds, seeds_of_cases};
pub use mitra_transport::fault::{Failure, Noise, Stage};
pub use nic::NicStats;
pub use packet_kind::{PacketFate, PacketKind};
pub use rc_flow::{QpAddress, RcFlow, RetryFinding, RetryRules};
pub use sim_nic::SimNic;
pub use testbed::Testbed;
pub use world::{Stalled, World};
pub use world_state::LONGEST_INLINE;
