//! Chores of the Mitra checkout, one file each.
#![forbid(unsafe_code)]

mod setup;
mod test;

use std::path::Path;

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
    /// Install what the tests need beside Rust: Debian packages, and scapy under .cache/venv
    Setup,
    /// Set up, then run all tests; arguments after `--` go to `cargo test`
    Test {
        /// For `cargo test`
        #[arg(last = true)]
        args: Vec<String>,
    },
}

fn main() -> anyhow::Result<()> {
    match Xtask::parse().chore {
        Chore::Setup => setup::run(),
        Chore::Test { args } => test::run(&args),
    }
}

/// The root of the checkout.
fn root() -> &'static Path {
    // xtask/ lies directly in it.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}
