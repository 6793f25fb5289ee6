//! What the output of `cargo test` says about failed tests, and how long each test program ran.

use std::fmt;
use std::mem;
use std::time::{Duration, Instant};

/// The number of test programs in the list of the slowest.
const SLOWEST: usize = 10;

/// Reads the output of `cargo test`.
#[derive(Default)]
pub(crate) struct TestSummary {
    /// The bytes of a line whose end has not come.
    partial: Vec<u8>,
    /// The program that runs, and when it began.
    running: Option<(String, Instant)>,
    durations: Vec<(Duration, String)>,
    /// The names below the last line `failures:`.
    names: Vec<String>,
    lists_failures: bool,
    /// The failed programs, as arguments of `cargo test`, each with its failed tests.
    failed: Vec<(String, Vec<String>)>,
    /// The packages that do not compile, in cargo's words.
    compile_errors: Vec<String>,
}

impl TestSummary {
    /// Reads the next bytes.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.partial.extend_from_slice(bytes);
        while let Some(end) = self.partial.iter().position(|&byte| byte == b'\n') {
            let rest = self.partial.split_off(end + 1);
            let line = mem::replace(&mut self.partial, rest);
            self.line(&without_escapes(&String::from_utf8_lossy(&line)));
        }
    }

    /// Ends the program that runs.
    pub(crate) fn end(&mut self) {
        if let Some((program, began)) = self.running.take() {
            self.durations.push((began.elapsed(), program));
        }
    }

    fn line(&mut self, line: &str) {
        let line = line.trim_end();
        if let Some(program) = program(line) {
            self.end();
            self.running = Some((program, Instant::now()));
            self.names.clear();
        } else if let Some((_, target)) = line.split_once(" failed, to rerun pass `") {
            self.failed.push((target.trim_end_matches('`').to_owned(), mem::take(&mut self.names)));
        } else if line.starts_with("error: could not compile") {
            self.compile_errors.push(line.to_owned());
        }
        // A test program prints this line twice: before the output of the failed tests, and before their names.
        if line == "failures:" {
            self.names.clear();
            self.lists_failures = true;
        } else if self.lists_failures {
            match line.strip_prefix("    ") {
                Some(name) => self.names.push(name.to_owned()),
                None => self.lists_failures = line.is_empty() && self.names.is_empty(),
            }
        }
    }
}

/// Returns the test program that begins to run, as cargo names it: `tests/run.rs (target/debug/deps/run-0123456789abcdef)`, without the hash and
/// the directory.
fn program(line: &str) -> Option<String> {
    let line = line.trim_start();
    if let Some(package) = line.strip_prefix("Doc-tests ") {
        return Some(format!("documentation of {package}"));
    }
    let (source, executable) = line.strip_prefix("Running ")?.strip_suffix(')')?.split_once(" (")?;
    let name = executable.rsplit('/').next()?;
    Some(format!("{} ({source})", name.rsplit_once('-').map_or(name, |(name, _)| name)))
}

/// Returns the text without escape sequences, with which cargo colours it.
fn without_escapes(text: &str) -> String {
    let mut parts = text.split('\x1b');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push_str(part.find(|c: char| c.is_ascii_alphabetic()).map_or("", |end| &part[end + 1..]));
    }
    plain
}

impl fmt::Display for TestSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut durations: Vec<_> = self.durations.iter().collect();
        durations.sort_by(|a, b| b.cmp(a));
        writeln!(f, "\nslowest of {} test programs:", durations.len())?;
        for (duration, program) in durations.iter().take(SLOWEST) {
            writeln!(f, "{:>7.1} s  {program}", duration.as_secs_f64())?;
        }
        if !self.failed.is_empty() || !self.compile_errors.is_empty() {
            writeln!(f, "\nfailed:")?;
        }
        for error in &self.compile_errors {
            writeln!(f, "  {error}")?;
        }
        for (target, names) in &self.failed {
            writeln!(f, "  cargo test {target}")?;
            names.iter().try_for_each(|name| writeln!(f, "    {name}"))?;
            if names.is_empty() {
                writeln!(f, "    the program ended without a list of failed tests")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of a run with four programs: one is correct, in one two tests fail, one is killed by a signal, and one does not compile.
    const OUTPUT: &str = "\
\x1b[1m\x1b[92m     Running\x1b[0m unittests src/lib.rs (target/debug/deps/mitra_wire-0123456789abcdef)

running 1 test
test names ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

     Running tests/run.rs (target/debug/deps/run-0123456789abcdef)

running 3 tests
test first ... ok
test second ... FAILED
test deep::third ... FAILED

failures:

---- second stdout ----
    an indented line

---- deep::third stdout ----
failures:
    printed by the test
assertion failed

failures:
    deep::third
    second

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

\x1b[1m\x1b[91merror\x1b[0m: test failed, to rerun pass `-p mitra --test run`
     Running tests/abort.rs (target/debug/deps/abort-0123456789abcdef)

running 1 test
error: test failed, to rerun pass `-p mitra --test abort`

Caused by:
  process didn't exit successfully: `abort` (signal: 6, SIGABRT: process abort signal)
   Doc-tests mitra_wire
error: could not compile `mitra-sim` (lib test) due to 1 previous error
error: 2 targets failed:
    `-p mitra --test run`
    `-p mitra --test abort`
";

    const FAILED: &str = "
failed:
  error: could not compile `mitra-sim` (lib test) due to 1 previous error
  cargo test -p mitra --test run
    deep::third
    second
  cargo test -p mitra --test abort
    the program ended without a list of failed tests
";

    fn summary(chunks: impl Iterator<Item = &'static [u8]>) -> String {
        let mut summary = TestSummary::default();
        chunks.for_each(|chunk| summary.add(chunk));
        summary.end();
        summary.to_string()
    }

    #[test]
    fn failed_tests_are_listed_by_program() {
        for size in [1, 7, OUTPUT.len()] {
            let summary = summary(OUTPUT.as_bytes().chunks(size));
            assert!(summary.ends_with(FAILED), "{summary}");
            assert!(summary.contains("slowest of 4 test programs:\n"), "{summary}");
            for program in ["mitra_wire (unittests src/lib.rs)", "abort (tests/abort.rs)"] {
                assert_eq!(summary.matches(program).count(), 1, "{summary}");
            }
            assert!(summary.contains(" s  documentation of mitra_wire\n"), "{summary}");
        }
    }

    #[test]
    fn run_without_failures_lists_none() {
        let end = OUTPUT.find("     Running tests/run.rs").unwrap();
        assert!(!summary([&OUTPUT.as_bytes()[..end]].into_iter()).contains("failed"));
    }
}
