//! The development tasks of this repository, one module each: `cargo xtask TASK`.
#![forbid(unsafe_code)]

mod compatibility;
mod explore;
mod features;
mod figures;
mod full_run;
mod hardware;
mod lint;
mod nextest;
mod package;
mod rust_programs;
mod rxe_vm;
mod setup;
mod stress;
mod suite;
mod sweep;
mod test;
mod test_results;
mod tiers;
mod tpcc_postgres;

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::ensure;
use clap::{Parser, Subcommand};

use test_results::Summary;

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
    /// Explore all models whole, and write the record of their states and sources
    Explore,
    /// Check each crate that has features without any, and with one alone, another one at each
    /// commit
    Features {
        /// Check with each feature alone
        #[arg(long)]
        all: bool,
    },
    Figures(figures::Args),
    Hardware(hardware::Args),
    /// Check for words that docs/glossary.md retires, for broken links and long sentences in
    /// documents, for circles of imports and for unused dependencies
    Lint(lint::Args),
    Package(package::Args),
    #[command(visible_alias = "rxe-vm")]
    Rxe(rxe_vm::Args),
    /// Install the tools that the tests need besides Rust: Debian packages, cargo-nextest, and in
    /// ~/.cache/mitra/setup scapy, Rust programs and a virtual machine with soft-RoCE
    Setup,
    Stress(stress::Args),
    /// Run workloads of the simulator from seeds that depend on the commit, as CI does
    Sweep {
        /// The program
        #[arg(long, default_value = "target/debug/mitra")]
        mitra: String,
    },
    Test(test::Args),
    TpccPostgres(tpcc_postgres::Args),
}

fn main() -> anyhow::Result<ExitCode> {
    match Xtask::parse().task {
        Task::Compatibility(args) => compatibility::run(&args)?,
        Task::Explore => return explore::run(),
        Task::Features { all } => features::run(all)?,
        Task::Figures(args) => figures::run(&args)?,
        Task::Hardware(args) => return hardware::run(&args),
        Task::Rxe(args) => return Ok(rxe_vm::run(&args)),
        Task::Lint(args) => lint::run(&args)?,
        Task::Package(args) => package::run(&args)?,
        Task::Setup => setup::run()?,
        Task::Stress(args) => return stress::run(&args),
        Task::Sweep { mitra } => {
            let mut summary = Summary::default();
            sweep::run(&mitra, 1, &mut summary)?;
            ensure!(summary.failed() == 0, "a workload failed; see above");
        }
        Task::Test(args) => return test::run(&args),
        Task::TpccPostgres(args) => return tpcc_postgres::run(&args),
    }
    Ok(ExitCode::SUCCESS)
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Returns the commit of the working tree, or `None` outside of a git checkout.
fn commit() -> Option<String> {
    let output = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
