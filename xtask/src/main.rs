//! The development tasks of this repository, one module each: `cargo xtask TASK`.
#![forbid(unsafe_code)]

mod compatibility;
mod features;
mod figures;
mod lint;
mod nextest;
mod rust_programs;
mod rxe_vm;
mod setup;
mod stress;
mod test;
mod test_results;
mod tpcc_postgres;

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
    Compatibility(compatibility::Args),
    /// Check each crate that has features without any, and with each alone
    Features,
    Figures(figures::Args),
    /// Check for words that docs/glossary.md retires, for broken links and long sentences in
    /// documents, for circles of imports and for unused dependencies
    Lint(lint::Args),
    RxeVm(rxe_vm::Args),
    /// Install the tools that the tests need besides Rust: Debian packages, cargo-nextest, and in
    /// ~/.cache/mitra/setup scapy, Rust programs and a virtual machine with soft-RoCE
    Setup,
    Stress(stress::Args),
    /// Run setup, then all tests. Ends with the slowest, the flaky and the failed tests
    Test {
        /// Arguments for `cargo nextest run`, such as a part of the names of tests
        #[arg(last = true)]
        args: Vec<String>,
    },
    TpccPostgres(tpcc_postgres::Args),
}

fn main() -> anyhow::Result<ExitCode> {
    match Xtask::parse().task {
        Task::Compatibility(args) => compatibility::run(&args)?,
        Task::Features => features::run()?,
        Task::Figures(args) => figures::run(&args)?,
        Task::RxeVm(args) => return Ok(rxe_vm::run(&args)),
        Task::Lint(args) => lint::run(&args)?,
        Task::Setup => setup::run()?,
        Task::Stress(args) => return stress::run(&args),
        Task::Test { args } => return test::run(&args),
        Task::TpccPostgres(args) => return tpcc_postgres::run(&args),
    }
    Ok(ExitCode::SUCCESS)
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}
