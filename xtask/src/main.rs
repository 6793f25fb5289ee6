//! Chores of the Mitra checkout, one file each.
#![forbid(unsafe_code)]

mod libibverbs;
mod lint;
mod rxe_vm;
mod setup;
mod test;

use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Chores of the Mitra checkout
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Xtask {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    Libibverbs(libibverbs::Args),
    /// Check for retired words, broken links in documents and unused dependencies
    Lint,
    RxeVm(rxe_vm::Args),
    /// Install what the tests need beside Rust: Debian packages, and scapy and the rxe machine under .cache
    Setup,
    /// Set up, then run all tests; arguments after `--` go to `cargo test`
    Test {
        /// For `cargo test`
        #[arg(last = true)]
        args: Vec<String>,
    },
}

fn main() -> anyhow::Result<ExitCode> {
    match Xtask::parse().chore {
        Chore::RxeVm(args) => return Ok(rxe_vm::run(&args)),
        Chore::Libibverbs(args) => libibverbs::run(&args)?,
        Chore::Lint => lint::run()?,
        Chore::Setup => setup::run()?,
        Chore::Test { args } => test::run(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The root of the checkout.
fn root() -> &'static Path {
    // xtask/ lies directly in it.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}
