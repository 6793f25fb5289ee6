//! rdma-core's own tests under `mitra run`. `rdma_core_suite.txt` has the expected outcome of each
//! test, and the reason if the test does not pass.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use mitra_test_process::{TestProcess, command, lock};

/// The directory in which Debian's python3-pyverbs installs the suite.
const SUITE: &str = "/usr/share/doc/rdma-core/tests";
/// The file with the expected outcomes, for messages.
const LIST: &str = "tests/programs/rdma_core_suite.txt";
/// The time after which the whole suite counts as hanging. The script ends a single test that
/// hangs.
const TIMEOUT: Duration = Duration::from_secs(300);
/// The number of names of tests that the page shows for one reason.
const SHOWN: usize = 14;

/// A test's line of the list.
struct Expectation {
    name: &'static str,
    /// The outcomes on one rail and on two rails.
    outcomes: [&'static str; 2],
    reason: &'static str,
}

/// An outcome that the script reports.
struct Outcome {
    outcome: String,
    message: String,
}

/// Reads the list.
///
/// # Errors
/// A line that is malformed or not in its place, or a reason that is missing or not needed.
fn expectations() -> Result<Vec<Expectation>, String> {
    let mut expected: Vec<Expectation> = Vec::new();
    for line in include_str!("rdma_core_suite.txt").lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.splitn(4, ' ');
        let (Some(name), Some(one), Some(two)) = (words.next(), words.next(), words.next()) else {
            return Err(format!("{LIST}: {line:?} is not NAME OUTCOME OUTCOME [REASON]"));
        };
        let known = ["pass", "skip", "fail", "error", "pass-or-skip"];
        if let Some(unknown) = [one, two].into_iter().find(|outcome| !known.contains(outcome)) {
            return Err(format!(
                "{LIST}: {name} has the outcome {unknown}; write one of {}",
                known.join(", ")
            ));
        }
        let reason = words.next().unwrap_or_default();
        if reason.is_empty() != (one == "pass" && two == "pass") {
            return Err(format!("{LIST}: {name} must have a reason if, and only if, an outcome is not pass"));
        }
        if expected.last().is_some_and(|last| last.name >= name) {
            return Err(format!("{LIST}: {name} is not in its place; sort the lines by name (LC_ALL=C)"));
        }
        expected.push(Expectation { name, outcomes: [one, two], reason });
    }
    Ok(expected)
}

pub(crate) fn on_one_rail() -> Result<(), String> {
    run(1)
}

pub(crate) fn on_two_rails() -> Result<(), String> {
    run(2)
}

/// Runs the suite on `rails` rails, and compares the outcomes with the list.
fn run(rails: usize) -> Result<(), String> {
    // The suite's tests of librdmacm use fixed ports.
    let _turn = lock(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("rdma-core-suite.lock"));

    let expected = expectations()?;
    if !Path::new(SUITE).is_dir() {
        return Err(format!("{SUITE} does not exist; `cargo xtask setup` installs python3-pyverbs"));
    }
    let text = |error: std::io::Error| format!("cannot run the suite: {error}");
    let dir = tempfile::tempdir().map_err(text)?;
    let (outcomes, log) = (dir.path().join("outcomes"), dir.path().join("log"));
    let file = File::create(&log).map_err(text)?;
    let mut suite = command(env!("CARGO_BIN_EXE_mitra"));
    suite.args(["run", "--rails", &rails.to_string()]).args(["--", "/usr/bin/python3"]);
    suite.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/rdma_core_suite.py"));
    suite.arg(SUITE).arg(dir.path()).arg(&outcomes);
    suite.env("XDG_RUNTIME_DIR", dir.path()).current_dir(dir.path());
    suite.stdout(file.try_clone().map_err(text)?).stderr(file);
    let ended = TestProcess::start_within(&mut suite, TIMEOUT).output();
    let failure = match ended {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!("the suite ended with {}", output.status)),
        Err(expired) => Some(expired.to_string()),
    };

    let log = String::from_utf8_lossy(&fs::read(&log).map_err(text)?).into_owned();
    let outcomes = parse(&fs::read_to_string(&outcomes).unwrap_or_default());
    let mut differences = compare(&expected, &outcomes, rails);
    if let Some(failure) = failure {
        let end = log.lines().rev().take(40).collect::<Vec<_>>();
        let end = end.into_iter().rev().collect::<Vec<_>>().join("\n");
        let _ = write!(differences, "{failure}, and printed last\n{end}\n");
    }
    if differences.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{rails} rail(s): the outcomes differ from {LIST}; mend the device or that list:\n{differences}"
    ))
}

/// Parses the script's output, one test a line: name, outcome, message and seconds, separated by
/// tabs.
fn parse(text: &str) -> BTreeMap<String, Outcome> {
    let line = |line: &str| {
        let mut fields = line.split('\t').map(str::to_owned);
        Some((fields.next()?, Outcome { outcome: fields.next()?, message: fields.next()? }))
    };
    text.lines().filter_map(line).collect()
}

/// Returns a line for each test whose outcome is not the expected one.
fn compare(expected: &[Expectation], outcomes: &BTreeMap<String, Outcome>, rails: usize) -> String {
    let mut text = String::new();
    for Expectation { name, outcomes: expected, .. } in expected {
        let expected = expected[usize::from(rails > 1)];
        let Some(Outcome { outcome, message }) = outcomes.get(*name) else {
            let _ = writeln!(text, "{name}: expected {expected}, but did not run");
            continue;
        };
        if outcome != expected
            && !(expected == "pass-or-skip" && ["pass", "skip"].contains(&outcome.as_str()))
        {
            let _ = writeln!(text, "{name}: expected {expected}, is {outcome} {message}");
        }
    }
    for (name, Outcome { outcome, message }) in outcomes {
        if !expected.iter().any(|expected| expected.name == name) {
            let _ = writeln!(text, "{name}: is not in the list; {outcome} {message}");
        }
    }
    text
}

/// Returns the section of `docs/compatibility.md`.
pub(crate) fn section() -> Result<String, String> {
    let expected = expectations()?;
    let mut text = format!(
        "\n## rdma-core's own tests\n\nThe {} tests of rdma-core 44 (Debian's `python3-pyverbs`). \
         [`rdma_core_suite.txt`](../tests/programs/rdma_core_suite.txt) has the expected outcome of each; \
         any other outcome, also a better one, is an error of CI.\n\n\
         | | pass | skip | fail or error | pass or skip, as the machine is |\n|---|---|---|---|---|\n",
        expected.len()
    );
    for (at, command) in ["mitra run", "mitra run --rails 2"].into_iter().enumerate() {
        let count =
            |wanted: &[&str]| expected.iter().filter(|test| wanted.contains(&test.outcomes[at])).count();
        let (pass, skip) = (count(&["pass"]), count(&["skip"]));
        let (bad, either) = (count(&["fail", "error"]), count(&["pass-or-skip"]));
        let _ = writeln!(text, "| `{command} --` | {pass} | {skip} | {bad} | {either} |");
    }
    let mut reasons: BTreeMap<(&str, [&str; 2]), Vec<&str>> = BTreeMap::new();
    for test in expected.iter().filter(|test| !test.reason.is_empty()) {
        reasons.entry((test.reason, test.outcomes)).or_default().push(test.name);
    }
    text.push_str("\n| because | one rail | two rails | number | tests |\n|---|---|---|---|---|\n");
    for ((reason, [one, two]), names) in reasons {
        let mut shown: Vec<String> = names.iter().map(|name| format!("`{}`", short(name))).collect();
        if shown.len() > SHOWN {
            // The tests of one vendor's devices are named by their files.
            shown =
                names.iter().map(|name| format!("`{}`", name.split('.').next().unwrap_or(name))).collect();
            shown.dedup();
        }
        let _ = writeln!(text, "| {reason} | {one} | {two} | {} | {} |", names.len(), shown.join(", "));
    }
    Ok(text)
}

/// Returns the name of a test without its file and class.
fn short(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
