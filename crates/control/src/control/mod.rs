//! The control socket: how `mitra fault` reaches a program that runs.
//!
//! A process with an open Mitra device listens at `RUN_DIR/PID.sock`. A caller connects, writes one line (a fault script,
//! or `status`), reads one line (an [`Answer`] as JSON), and is done. The directory is this user's alone, so whoever
//! connects may.

mod client;
mod nic;
mod server;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Change, Script};

pub use client::{AskError, Process, processes};
pub use nic::{inflict, rail_status};
pub use server::{Server, serve};

/// A device, as its controller sees it.
pub trait Device: Send + 'static {
    /// Does this to a rail, now. The rail is there.
    fn inflict(&mut self, rail: usize, change: Change);

    /// How it is.
    fn status(&mut self) -> Status;
}

/// How a device is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Its rails, from rail 0.
    pub rails: Vec<RailStatus>,
    /// Queue pairs that the program has.
    pub queue_pairs: usize,
    /// How often queue pairs moved to another rail.
    pub failovers: u64,
}

/// How a rail is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RailStatus {
    /// The address of its NIC.
    pub address: IpAddr,
    /// What works.
    pub state: RailState,
}

/// What of a rail works.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RailState {
    /// All.
    Up,
    /// The NIC works, the link does not.
    Down,
    /// The NIC answers no more.
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

/// What can be asked for; as text, one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Let these faults befall the rails.
    Inflict(Script),
    /// Say how the device is.
    Status,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::Inflict(script) => script.fmt(f),
            Request::Status => f.write_str("status"),
        }
    }
}

impl FromStr for Request {
    type Err = String;

    fn from_str(s: &str) -> Result<Request, String> {
        match s.trim() {
            "status" => Ok(Request::Status),
            script => script.parse().map(Request::Inflict),
        }
    }
}

/// The answer to a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The faults were taken: those without a time have struck.
    Done,
    /// How things are.
    Status {
        /// The process.
        pid: u32,
        /// Its command line.
        program: String,
        /// Its device.
        #[serde(flatten)]
        device: Status,
    },
    /// Nothing was done: why, and what can be.
    Refused(String),
}
