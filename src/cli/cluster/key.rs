//! `mitra key`: what a process signs with, where processes lie.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, ensure};
use ed25519_dalek::{SigningKey, VerifyingKey};
use mitra_consensus::ProcessId;
use mitra_consensus::signature::Ed25519;

/// Make a key that a process signs with, where others may lie
///
/// Writes the secret half to a new file, and prints the public half on a line, for the file that all are given.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  for p in 0 1 2; do mitra key key$p; done > keys
  mitra propose fast-and-robust blue --id 0 --key key0 --keys keys …
Exit codes: 0 done, 2 bad arguments, or the file is there already.")]
pub(crate) struct Args {
    /// Where the secret half is to be
    file: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&args.file)
        .with_context(|| format!("cannot write {}", args.file.display()))?;
    writeln!(file, "{}", hex(&secret))?;
    println!("{}", hex(SigningKey::from_bytes(&secret).verifying_key().as_bytes()));
    Ok(ExitCode::SUCCESS)
}

/// What process `me` of `n` signs with, and checks others by, in one decision of many.
pub(super) fn keys(
    me: ProcessId,
    n: u8,
    secret: &Path,
    everybody: &Path,
    instance: u64,
) -> anyhow::Result<Ed25519> {
    let read = |file: &Path| {
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
    };
    let secret = bytes(read(secret)?.trim()).context("--key is to be a file that mitra key made")?;
    let lines = read(everybody)?;
    let public = |line: &str| VerifyingKey::from_bytes(&bytes(line.trim())?).ok();
    let everybody: Option<Vec<_>> = lines.lines().map(public).collect();
    let everybody = everybody.context("--keys is to be a line for each process, as mitra key prints it")?;
    ensure!(
        everybody.len() == usize::from(n),
        "--keys holds {} keys; there are {n} processes",
        everybody.len()
    );
    let mine = SigningKey::from_bytes(&secret).verifying_key();
    ensure!(
        everybody[usize::from(me.0)] == mine,
        "line {} of --keys is not the public half of --key",
        me.0 + 1
    );
    Ok(Ed25519::new(instance, &secret, Arc::from(everybody)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    let digits = hex.is_ascii() && hex.len() == 64;
    for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)).filter(|_| digits) {
        *byte = u8::from_str_radix(&hex[at..at + 2], 16).ok()?;
    }
    digits.then_some(bytes)
}
