//! `mitra man`: writes the manual pages, from the definitions of the command line.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Command;

/// Write the manual pages, one for each command, into a directory
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  mitra man ~/.local/share/man/man1; man -M ~/.local/share/man mitra-run
Exit codes: 0 success, 2 bad arguments, or a page cannot be written.")]
pub(crate) struct Args {
    /// Directory for the pages, which is created if missing
    directory: PathBuf,
}

/// Writes the pages of `command`, the whole command line: `mitra.1`, `mitra-run.1` and so on.
pub(crate) fn run(args: &Args, command: Command) -> anyhow::Result<ExitCode> {
    let directory = args.directory.display();
    fs::create_dir_all(&args.directory)
        .with_context(|| format!("cannot create {directory}; choose another directory"))?;
    clap_mangen::generate_to(command, &args.directory)
        .with_context(|| format!("cannot write the pages to {directory}; choose another directory"))?;
    Ok(ExitCode::SUCCESS)
}
