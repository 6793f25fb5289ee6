//! The binary that all packages have.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::output;
use crate::root;

/// Builds `mitra` and returns its path, which cargo's messages name.
pub(super) fn build() -> Result<PathBuf> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--profile", "dist", "--locked", "--package", "mitra", "--bin", "mitra"]);
    cargo.arg("--message-format=json-render-diagnostics").current_dir(root()).stdout(Stdio::piped());
    let mut cargo = cargo.spawn().context("cannot run cargo")?;
    let messages = cargo.stdout.take().context("cargo has an output")?;
    let mut binary = None;
    for message in serde_json::Deserializer::from_reader(BufReader::new(messages)).into_iter::<Value>() {
        if let Some(path) = message.context("cannot read cargo's messages")?["executable"].as_str() {
            binary = Some(PathBuf::from(path));
        }
    }
    ensure!(cargo.wait()?.success(), "mitra does not compile; see above");
    binary.context("cargo named no executable")
}

/// Returns the greatest minor version of glibc 2 whose symbols a program needs.
pub(super) fn glibc_minor(binary: &Path) -> Result<u32> {
    let symbols = output(Command::new("objdump").arg("-T").arg(binary))
        .context("cannot read the binary's symbols; objdump is in Debian's binutils")?;
    let minor = |version: &str| version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok();
    let versions = symbols.split("GLIBC_2.").skip(1).filter_map(minor);
    versions.max().with_context(|| format!("{} names no version of glibc", binary.display()))
}
