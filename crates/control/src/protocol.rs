//! The messages of the control socket, and the device that they address.
//!
//! A client connects to `RUN_DIR/PID.sock`, writes one line (a fault script or the word `status`), reads one line (a
//! [`Response`] as JSON) and disconnects. The permissions of the directory are the only access control.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{FaultAction, FaultScript};

/// A device that a [`ControlServer`](crate::ControlServer) controls.
pub trait ControlledDevice: Send + 'static {
    /// Applies a fault to a rail immediately. The server has checked that the device has this rail.
    fn apply_fault(&mut self, rail: usize, action: FaultAction);

    /// Returns the current state of the device.
    fn status(&mut self) -> DeviceStatus;
}

/// The state of a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// The rails in order, beginning with rail 0.
    pub rails: Vec<RailStatus>,
    /// The number of open queue pairs.
    pub queue_pairs: usize,
    /// How many times a queue pair has moved to another rail since the device was opened.
    pub failovers: u64,
}

/// The state of a rail.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RailStatus {
    /// The IP address of the rail's local NIC.
    pub address: IpAddr,
    /// Whether the link and the NIC work.
    pub state: RailState,
}

/// Whether the link and the NIC of a rail work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RailState {
    /// The NIC and its link work.
    Up,
    /// The NIC works, and its link is down.
    Down,
    /// The NIC rejects verbs calls, because it is dead or hung.
    Failed,
}

impl fmt::Display for RailState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RailState::Up => "up",
            RailState::Down => "down",
            RailState::Failed => "failed",
        })
    }
}

/// A request to a controlled process. Its text form is one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Applies the faults of a script, each after its delay.
    ApplyFaults(FaultScript),
    /// Asks for the state of the device.
    Status,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::ApplyFaults(script) => script.fmt(f),
            Request::Status => f.write_str("status"),
        }
    }
}

impl FromStr for Request {
    type Err = String;

    fn from_str(s: &str) -> Result<Request, String> {
        match s.trim() {
            "status" => Ok(Request::Status),
            script => script.parse().map(Request::ApplyFaults),
        }
    }
}

/// The response of a controlled process to a [`Request`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Response {
    /// The server accepted the faults, and has applied those without a delay.
    Done,
    /// The state of the process and its device.
    Status {
        /// The process ID.
        pid: u32,
        /// The command line, cut at 256 bytes.
        program: String,
        /// The state of the device.
        #[serde(flatten)]
        device: DeviceStatus,
    },
    /// The server rejected the request and applied nothing. The text says why, and which requests are valid.
    Refused(String),
}
