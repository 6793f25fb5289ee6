#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
// Not published (RELEASING.md).
#![allow(missing_docs)]

mod command;
mod guard;
mod namespace;
mod once;
mod process;
mod reserved;
mod setup_dir;
mod variants;

pub use command::{command, preloaded};
pub use namespace::{command_in_new_namespace, command_in_shared_network, run_test_under};
pub use once::{build_once, lock, once_per_run};
pub use process::{BUILD_DEADLINE, DEADLINE, Expired, TestProcess, output, output_within};
pub use reserved::{OwnNetwork, OwnPort};
pub use setup_dir::setup_dir;
pub use variants::{links, variants};
