//! The messages of the control socket, and the device that they address.
//!
//! A client connects to the process's socket in the run directory, writes one line (a fault script,
//! or the word `status` or `snapshot`), reads one line (a [`Response`] as JSON) and disconnects.
//! The permissions of the directory are the only access control.

use std::fmt;
use std::str::FromStr;

use mitra_metrics::{RailStatus, Snapshot};
use serde::{Deserialize, Serialize};

use crate::{FaultAction, FaultScript};

/// A device that a [`ControlServer`](crate::ControlServer) controls.
pub trait ControlledDevice: Send + 'static {
    /// Checks whether a fault can be applied to a rail. The server has checked that the device has
    /// this rail.
    ///
    /// # Errors
    /// The reason why not, and what can be applied, in one line.
    fn check_fault(&self, rail: usize, action: FaultAction) -> Result<(), String> {
        let _ = (rail, action);
        Ok(())
    }

    /// Applies a fault to a rail immediately. The server has checked that the device has this rail.
    ///
    /// # Errors
    /// The reason why the fault cannot be applied, and the way out, in one line.
    fn apply_fault(&mut self, rail: usize, action: FaultAction) -> Result<(), String>;

    /// Returns the current state of the device.
    fn status(&mut self) -> DeviceStatus;

    /// Returns the current state of the device in detail, for `mitra watch` and the metrics.
    fn snapshot(&mut self) -> Snapshot;
}

/// The state of a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// The rails in order, beginning with rail 0.
    pub rails: Vec<RailStatus>,
    /// The number of open queue pairs.
    pub queue_pairs: usize,
    /// The number of moves of queue pairs to another rail since the device was opened.
    pub failovers: u64,
}

/// A request to a controlled process. Its text form is one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Applies the faults of a script, each after its delay.
    ApplyFaults(FaultScript),
    /// Asks for the state of the device.
    Status,
    /// Asks for the state of the device in detail.
    Snapshot,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::ApplyFaults(script) => script.fmt(f),
            Request::Status => f.write_str("status"),
            Request::Snapshot => f.write_str("snapshot"),
        }
    }
}

impl FromStr for Request {
    type Err = String;

    fn from_str(s: &str) -> Result<Request, String> {
        match s.trim() {
            "status" => Ok(Request::Status),
            "snapshot" => Ok(Request::Snapshot),
            script => script.parse().map(Request::ApplyFaults),
        }
    }
}

/// The response of a controlled process to a [`Request`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Response {
    /// The server accepted the faults, and has applied the faults whose delay is zero.
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
    /// The state of the process and its device, in detail.
    Snapshot {
        /// The process ID.
        pid: u32,
        /// The command line, cut at 256 bytes.
        program: String,
        /// The state of the device.
        #[serde(flatten)]
        snapshot: Box<Snapshot>,
    },
    /// The server rejected the request and applied nothing. The text says why, and which requests
    /// are valid.
    Refused(String),
    /// The server applied the faults whose delay is zero, except for the faults that the text names
    /// with their reasons.
    Failed(String),
}
