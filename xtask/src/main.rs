//! The development tasks of this repository, one module each: `cargo xtask TASK`.
#![forbid(unsafe_code)]

mod lint;
mod rust_programs;
mod rxe_vm;
mod setup;
mod test;
mod test_summary;

use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Development tasks of this repository
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Xtask {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Check for words that docs/glossary.md retires, for broken links in documents and for unused dependencies
    Lint,
    RxeVm(rxe_vm::Args),
    /// Install the tools that the tests need besides Rust: Debian packages, and in .cache scapy, Rust programs and a virtual machine with
    /// soft-RoCE
    Setup,
    /// Run setup, then all tests. Ends with the slowest test programs and the failed tests
    Test {
        /// Arguments for `cargo test`
        #[arg(last = true)]
        args: Vec<String>,
    },
}

fn main() -> anyhow::Result<ExitCode> {
    match Xtask::parse().task {
        Task::RxeVm(args) => return Ok(rxe_vm::run(&args)),
        Task::Lint => lint::run()?,
        Task::Setup => setup::run()?,
        Task::Test { args } => return test::run(&args),
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the root directory of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}
