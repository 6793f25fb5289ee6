//! `cargo xtask hardware`: builds the test programs for NICs of the kernel, and runs them on real
//! devices or in the soft-RoCE machine.

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::suite::SUITE;
use crate::{root, rxe_vm};

/// The environment variable that names the devices, separated by commas. Two neighbours reach each
/// other, and are the two ends of a rail.
const DEVICES: &str = "MITRA_DEVICES";
/// The devices of the soft-RoCE machine.
const RXE_DEVICES: &str = "rxe0,rxe0b,rxe1,rxe1b";

/// Run the tests of NICs of the kernel, on real devices or in the soft-RoCE machine
///
/// MITRA_DEVICES=mlx5_0,mlx5_1 names devices of this machine that reach each other, in pairs.
/// Without it, the tests run on rxe devices in an emulated machine. Exits with 1 if a test fails,
/// and as `cargo xtask rxe` if the machine fails.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Test programs of the workspace, by the names of their cargo targets
    #[arg(long = "test", value_name = "NAME", default_value = "hardware")]
    tests: Vec<String>,
    /// Seconds after which the soft-RoCE machine is stopped, boot included
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..))]
    timeout: u32,
    /// Arguments for the test programs. Default: --nocapture --test-threads=1
    #[arg(last = true)]
    args: Vec<String>,
}

/// A test program.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Program {
    /// The directory of its package, in which it runs.
    directory: PathBuf,
    path: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let programs = build(&args.tests)?;
    let mut arguments = args.args.clone();
    if arguments.is_empty() {
        // Tests that run one at a time do not share devices.
        arguments = ["--nocapture", "--test-threads=1"].map(String::from).into();
    }
    match env::var(DEVICES).ok().filter(|devices| !devices.is_empty()) {
        Some(devices) => run_here(&programs, &arguments, &devices),
        None => {
            let script = script(&programs, &arguments);
            let command = ["sh", "-c", &script].map(Into::into).into();
            Ok(rxe_vm::run(&rxe_vm::Args::rails(args.timeout, command)))
        }
    }
}

fn run_here(programs: &BTreeSet<Program>, arguments: &[String], devices: &str) -> Result<ExitCode> {
    println!("hardware: devices {devices} of this machine");
    let mut outcome = ExitCode::SUCCESS;
    for Program { directory, path } in programs {
        let status = Command::new(path).args(arguments).current_dir(directory).status();
        if !status.with_context(|| format!("cannot run {}", path.display()))?.success() {
            outcome = ExitCode::FAILURE;
        }
    }
    Ok(outcome)
}

/// Returns the shell script that runs all programs on the devices of the soft-RoCE machine.
fn script(programs: &BTreeSet<Program>, arguments: &[String]) -> String {
    let mut script = format!("export {DEVICES}={RXE_DEVICES}\nstatus=0\n");
    for Program { directory, path } in programs {
        let words: Vec<_> = [&*path.to_string_lossy()]
            .into_iter()
            .chain(arguments.iter().map(String::as_str))
            .map(quoted)
            .collect();
        let directory = quoted(&directory.to_string_lossy());
        script.push_str(&format!("(cd {directory} && exec {}) || status=1\n", words.join(" ")));
    }
    script + "exit $status\n"
}

/// Returns a text as one word of the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Builds the test programs with these names, with the features of the whole suite, so that they
/// share its build.
fn build(tests: &[String]) -> Result<BTreeSet<Program>> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--no-run", "--message-format=json-render-diagnostics"]).args(SUITE);
    cargo.args(tests.iter().flat_map(|test| ["--test", test]));
    let output = cargo.current_dir(root()).stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    ensure!(output.status.success(), "cannot build the tests {}; see the output above", tests.join(", "));
    let programs = programs(&String::from_utf8_lossy(&output.stdout))?;
    ensure!(!programs.is_empty(), "cargo built no test program");
    Ok(programs)
}

/// Reads the test programs from cargo's messages.
fn programs(messages: &str) -> Result<BTreeSet<Program>> {
    let mut programs = BTreeSet::new();
    for message in messages.lines() {
        let message: Value = serde_json::from_str(message).context("cannot read cargo's messages")?;
        let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
        let (Some(path), Some(manifest)) =
            (message["executable"].as_str(), message["manifest_path"].as_str())
        else {
            continue;
        };
        if is_test {
            let directory = Path::new(manifest).parent().context("a manifest has no directory")?.to_owned();
            programs.insert(Program { directory, path: path.into() });
        }
    }
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_read_from_messages_of_cargo() {
        let messages = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/verbs/Cargo.toml","profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/w/Cargo.toml","profile":{"test":false},"executable":"/w/target/debug/mitra"}
{"reason":"compiler-artifact","manifest_path":"/w/crates/nic/Cargo.toml","profile":{"test":true},"executable":"/w/target/debug/deps/hardware-1"}
{"reason":"build-finished","success":true}"#;
        let program =
            Program { directory: "/w/crates/nic".into(), path: "/w/target/debug/deps/hardware-1".into() };
        assert_eq!(programs(messages).unwrap(), BTreeSet::from([program]));
    }

    #[test]
    fn script_runs_every_program_and_fails_if_one_does() {
        let dir = tempfile::tempdir().unwrap();
        let program = |path: &str| Program { directory: dir.path().into(), path: path.into() };
        let run = |programs: &[&str]| {
            let programs = programs.iter().map(|path| program(path)).collect();
            let script = script(&programs, &["it's".to_owned(), "a b".to_owned()]);
            Command::new("sh").arg("-c").arg(script).output().unwrap()
        };
        let output = run(&["echo", "pwd"]);
        assert!(output.status.success());
        assert_eq!(output.stdout, format!("it's a b\n{}\n", dir.path().display()).as_bytes());
        let output = run(&["/bin/false", "echo"]);
        assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b"it's a b\n"[..]));
    }
}
