//! `mitra key`: creates the signing key of a process.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, ensure};
use ed25519_dalek::{SigningKey, VerifyingKey};
use mitra_consensus::ProcessId;
use mitra_consensus::signature::Ed25519;

use super::secret_file;

/// Create the signing key of a process, for the Byzantine protocols
///
/// Writes the secret key to a new file and prints the public key on one line. Every process needs a
/// file with the public keys of all processes.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  for p in 0 1 2; do mitra key key$p; done > keys
  P=127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103 M=127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003
  mitra propose fast-and-robust blue --id 0 --processes $P --memories $M --key key0 --keys keys
(three memories run: mitra memory fast-and-robust --listen 127.0.0.1:7001, and so on)
--json: `file`, `public_key`.
Exit codes: 0 success, 2 bad arguments, or the file exists.")]
pub(crate) struct Args {
    /// New file for the secret key
    file: PathBuf,
    /// Print one JSON object instead of the public key
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&args.file)
        .with_context(|| format!("cannot create {}; choose a new file", args.file.display()))?;
    let done = write_keys(args, &secret, &mut file);
    if done.is_err() {
        // The secret key is of no use without its public key, and the next try needs a new file.
        let _ = std::fs::remove_file(&args.file);
    }
    done.map(|()| ExitCode::SUCCESS)
}

/// Writes the secret key to its file, and then prints the public key.
fn write_keys(args: &Args, secret: &[u8; 32], file: &mut File) -> anyhow::Result<()> {
    writeln!(file, "{}", hex(secret)).with_context(|| format!("cannot write {}", args.file.display()))?;
    let public_key = hex(SigningKey::from_bytes(secret).verifying_key().as_bytes());
    let mut out = std::io::stdout().lock();
    if args.json {
        let file = args.file.to_string_lossy();
        writeln!(out, "{}", serde_json::json!({"file": file, "public_key": public_key}))?;
    } else {
        writeln!(out, "{public_key}")?;
    }
    Ok(out.flush()?)
}

/// Returns the signer of process `me` of `n` for one decision. It verifies the other processes'
/// signatures too.
pub(super) fn keys(
    me: ProcessId,
    n: u8,
    secret: &Path,
    public_keys: &Path,
    instance: u64,
) -> anyhow::Result<Ed25519> {
    let secret = secret_file::read(secret)?;
    let secret = std::str::from_utf8(&secret).ok().and_then(|hex| parse_hex(hex.trim()));
    let secret = secret.context("--key must be a file that `mitra key` created")?;
    let lines = std::fs::read_to_string(public_keys)
        .with_context(|| format!("cannot read {}", public_keys.display()))?;
    let public = |line: &str| VerifyingKey::from_bytes(&parse_hex(line.trim())?).ok();
    let public_keys: Option<Vec<_>> = lines.lines().map(public).collect();
    let public_keys =
        public_keys.context("--keys must have one line per process, as `mitra key` prints it")?;
    ensure!(
        public_keys.len() == usize::from(n),
        "--keys has {} keys, but there are {n} processes",
        public_keys.len()
    );
    let public_key = SigningKey::from_bytes(&secret).verifying_key();
    ensure!(
        public_keys[usize::from(me.0)] == public_key,
        "line {} of --keys is not the public key of --key",
        me.0 + 1
    );
    Ok(Ed25519::new(instance, &secret, Arc::from(public_keys)))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse_hex(hex: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    let is_valid = hex.is_ascii() && hex.len() == 64;
    for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)).filter(|_| is_valid) {
        *byte = u8::from_str_radix(&hex[at..at + 2], 16).ok()?;
    }
    is_valid.then_some(bytes)
}
