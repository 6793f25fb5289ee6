#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod app;
mod config;
mod dma_memory;
mod dma_pipeline;
mod duration_range;
mod event_queue;
mod failure_report;
mod host;
mod liveness;
mod nic;
mod packet_capture;
mod packet_delivery;
pub mod seeded;
mod seeds;
mod sim_nic;
mod testbed;
mod trace;
pub mod workload;
mod world;
mod world_state;

pub use app::{App, AppContext};
pub use config::{Config, HostTiming, LinkConfig, MemoryTiming, NicTiming};
pub use duration_range::DurationRange;
pub use liveness::check_liveness;
pub use mitra_prng::Prng;
pub use mitra_transport::fault::{Failure, Noise, Stage};
pub use nic::NicStats;
pub use seeds::{reproduce_command, seeds};
pub use sim_nic::SimNic;
pub use testbed::{FailureCase, FailureTarget, PeerApp, Testbed};
pub use trace::Trace;
pub use world::{HostId, NicId, Stalled, World};
