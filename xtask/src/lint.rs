//! `cargo xtask lint`: checks that no compiler makes, one module each.

mod circles;
mod comments;
mod exceptions;
mod layers;
mod links;
mod sentences;
mod words;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::{figures, full_run, root};

/// The arguments of `cargo xtask lint`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Wrap the comments that are wider than 100 columns, then check
    #[arg(long)]
    fix: bool,
}

/// Runs all checks and reports everything that they find.
///
/// # Errors
/// Fails if a check found something, or if `cargo-machete` is not installed.
pub(crate) fn run(args: &Args) -> Result<()> {
    let files = tracked_files()?;
    if args.fix {
        comments::fix(&files)?;
    }
    let checks = [
        words::findings,
        links::findings,
        sentences::findings,
        circles::findings,
        comments::findings,
        layers::findings,
    ];
    let mut findings = Vec::new();
    for check in checks {
        findings.extend(check(&files)?);
    }
    findings.extend(figures::finding()?);
    findings.extend(full_run::finding()?);
    for finding in &findings {
        eprintln!("{finding}");
    }
    unused_dependencies()?;
    ensure!(findings.is_empty(), "{} findings; each line above names a file", findings.len());
    println!("lint: nothing found");
    Ok(())
}

/// Returns the paths of all files under version control, relative to the root.
fn tracked_files() -> Result<Vec<PathBuf>> {
    let output = Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output()?;
    ensure!(output.status.success(), "git ls-files failed; run this in a git checkout");
    let names = String::from_utf8(output.stdout)?;
    Ok(names.split_terminator('\0').map(PathBuf::from).filter(|path| root().join(path).is_file()).collect())
}

/// Returns the text of a file, whose path is relative to the root.
fn read(path: &Path) -> Result<String> {
    fs::read_to_string(root().join(path)).with_context(|| format!("cannot read {}", path.display()))
}

fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    path.extension().is_some_and(|extension| extensions.iter().any(|&e| extension == e))
}

/// Runs `cargo-machete`, which finds dependencies that no source file names.
fn unused_dependencies() -> Result<()> {
    let status = match Command::new("cargo-machete").current_dir(root()).status() {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            bail!("cargo-machete is not installed: cargo install cargo-machete --locked")
        }
        status => status?,
    };
    ensure!(status.success(), "the dependencies that cargo-machete lists above are unused: remove them");
    Ok(())
}
