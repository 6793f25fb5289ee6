#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod families;
mod http_endpoint;
mod http_request;
mod openmetrics;
mod snapshot;

pub use families::{FAMILIES, Family, Kind};
pub use http_endpoint::MetricsServer;
pub use openmetrics::{CONTENT_TYPE, encode};
pub use snapshot::{
    CountsSnapshot, EventSnapshot, HistogramSnapshot, MAX_EVENTS, MAX_VQPS, RailSnapshot, RailState,
    RailStatus, Snapshot, StepSnapshot, VqpState,
};
