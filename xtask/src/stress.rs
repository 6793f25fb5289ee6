//! `cargo xtask stress`: runs tests many times on a busy machine, where tests that depend on the
//! order of events fail.

use std::collections::BTreeMap;
use std::fs;
use std::hint::spin_loop;
use std::io::ErrorKind;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, available_parallelism};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::suite::{SUITE, rotation, suite_and};
use crate::test_results::{Outcome, Summary};
use crate::{nextest, root, setup};

/// The directory of the outputs, relative to the root.
const OUTPUTS: &str = "target/stress";

/// Run the tests several times beside busy loops. Ends with the tests that failed or were flaky
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The number of runs
    #[arg(long, default_value = "5")]
    runs: NonZeroU32,
    /// The number of busy loops [default: the number of cores]
    #[arg(long)]
    loops: Option<usize>,
    /// Run only the tests whose names contain one of these texts
    filter: Vec<String>,
}

/// Nextest prints a line for each test that fails or is slow; the outputs are in files.
const QUIET: [&str; 3] = ["--status-level=slow", "--final-status-level=none", "--failure-output=never"];

/// A test that did not pass in each run.
struct Unstable {
    failed: u32,
    flaky: u32,
    /// The file with the output of the first failure.
    output: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    setup::run()?;
    match fs::remove_dir_all(root().join(OUTPUTS)) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot empty {OUTPUTS}"));
        }
        _ => {}
    }
    let mut build = Command::new(env!("CARGO"));
    build.args(["nextest", "run", "--no-run"]).args(SUITE).current_dir(root());
    ensure!(build.status().context("cannot run cargo")?.success(), "the tests do not compile; see above");

    let loops = args.loops.unwrap_or_else(cores);
    let rotation = rotation();
    let nextest_args = suite_and(QUIET.map(String::from).into_iter().chain(args.filter.iter().cloned()));
    let mut unstable = BTreeMap::new();
    let mut is_success = true;
    for number in 1..=args.runs.get() {
        println!("run {number} of {} beside {loops} busy loops", args.runs);
        let begin = Instant::now();
        let mut summary = Summary::default();
        beside_busy_loops(loops, || nextest::run(&nextest_args, rotation.as_deref(), &mut summary))?;
        let (passed, failed, flaky) = (summary.passed(), summary.failed(), summary.flaky());
        println!(
            "run {number} of {}: {} s, {passed} passed, {failed} failed, {flaky} flaky",
            args.runs,
            begin.elapsed().as_secs()
        );
        // Each run would fail in the same way.
        ensure!(!summary.tests.is_empty(), "no test ran; nextest says above why");
        is_success &= failed == 0 && flaky == 0;
        add(&mut unstable, number, &summary)?;
    }
    print_table(&unstable);
    Ok(if is_success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the tests of a landing once beside busy loops, and adds them to the summary.
pub(crate) fn once(rotation: &str, summary: &mut Summary) -> Result<()> {
    beside_busy_loops(cores(), || nextest::run(&suite_and([]), Some(rotation), summary))
}

fn cores() -> usize {
    available_parallelism().map_or(1, |cores| cores.get())
}

/// Does the work while `count` threads use the processor.
fn beside_busy_loops<T>(count: usize, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    spin_loop();
                }
            });
        }
        let result = work();
        is_over.store(true, Ordering::Relaxed);
        result
    })
}

/// Counts the tests of a run that did not pass at once, and writes the output of each to a file.
fn add(unstable: &mut BTreeMap<String, Unstable>, run: u32, summary: &Summary) -> Result<()> {
    for test in &summary.tests {
        let (output, failed, flaky) = match &test.outcome {
            Outcome::Passed => continue,
            Outcome::Failed { output, .. } => (output, 1, 0),
            Outcome::Flaky { output } => (output, 0, 1),
        };
        let path = PathBuf::from(OUTPUTS).join(format!("run-{run}")).join(file_name(&test.name));
        let file = root().join(&path);
        file.parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(&file, output))
            .with_context(|| format!("cannot write {}", path.display()))?;
        let entry =
            unstable.entry(test.name.clone()).or_insert(Unstable { failed: 0, flaky: 0, output: path });
        entry.failed += failed;
        entry.flaky += flaky;
    }
    Ok(())
}

/// Returns a name for a file, from the name of a test, which may contain spaces, colons and
/// slashes.
fn file_name(test: &str) -> String {
    let allowed = |c: char| if c.is_alphanumeric() || "_-".contains(c) { c } else { '.' };
    format!("{}.txt", test.chars().map(allowed).collect::<String>())
}

fn print_table(unstable: &BTreeMap<String, Unstable>) {
    if unstable.is_empty() {
        return println!("\nall tests passed in all runs");
    }
    println!("\n{:>6}  {:>5}  test, and the output of its first failure", "failed", "flaky");
    for (name, Unstable { failed, flaky, output }) in unstable {
        println!("{failed:>6}  {flaky:>5}  {name}\n{:15}{}", "", output.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_name_has_no_separators() {
        assert_eq!(file_name("mitra::it kv::a/b-c_d"), "mitra..it.kv..a.b-c_d.txt");
    }
}
