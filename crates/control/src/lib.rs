#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod apply_fault_and_report_status;
mod client;
mod controlled_nics;
mod fault_script;
mod metrics_address;
mod protocol;
mod rails_config;
pub mod run_dir;
mod server;
mod settings;
mod socket_file;

pub use apply_fault_and_report_status::{apply_fault, check_fault, rail_status};
pub use client::{ControlledProcess, RequestError, list_processes};
pub use controlled_nics::{ControlledNics, nic_snapshots};
pub use fault_script::{FaultAction, FaultScript, NewAddress, ScheduledFault};
pub use metrics_address::MetricsAddress;
pub use mitra_metrics::{RailState, RailStatus};
pub use protocol::{ControlledDevice, DeviceStatus, Request, Response};
pub use rails_config::RailsConfig;
pub use server::ControlServer;
pub use settings::{Settings, SettingsError};
