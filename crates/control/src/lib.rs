//! What `mitra run` and the library inside the program agree on; never opens a NIC.
//!
//! - [`Settings`]: the environment variables that carry the options of `mitra run`.
//! - [`Script`]: faults as text, `rail0 down at 2s; rail0 up at 3s`.
//! - [`control`]: the socket over which `mitra fault` reaches a program that runs.
//! - [`thread`]: threads of Mitra's in the program.
//! - [`run_dir`]: the directory of those sockets.
#![forbid(unsafe_code)]

pub mod control;
mod rails;
pub mod run_dir;
mod script;
mod settings;
pub mod thread;

pub use rails::Rails;
pub use script::{Change, Script, TimedFault};
pub use settings::{Settings, SettingsError};
