//! The result of each test in a run of cargo-nextest, and the summary of the run.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};
use quick_junit::{Report, TestCase, TestCaseStatus, XmlString};

/// The number of entries in each list of the slowest tests.
const SLOWEST: usize = 10;

#[derive(Debug)]
pub(crate) struct Test {
    /// The test program and the name, by which nextest prints the test:
    /// `mitra-sim::it races::late_packet`.
    pub(crate) name: String,
    program: String,
    /// The time of all tries.
    duration: Duration,
    pub(crate) outcome: Outcome,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    Passed,
    /// The test failed, and passed when it was repeated. The output is from the first try.
    Flaky {
        output: String,
    },
    Failed {
        /// In nextest's words, for instance `test timeout`.
        how: String,
        /// The output of the first try.
        output: String,
    },
}

/// Reads the tests of a JUnit file.
pub(crate) fn parse(junit: &str) -> Result<Vec<Test>> {
    let report = Report::deserialize_from_str(junit).context("cannot read the JUnit file of nextest")?;
    let mut tests = Vec::new();
    for suite in &report.test_suites {
        tests.extend(suite.test_cases.iter().filter_map(|case| test(suite.name.as_str(), case)));
    }
    Ok(tests)
}

/// Returns the test of a program, or `None` if the test did not run.
fn test(program: &str, case: &TestCase) -> Option<Test> {
    let (outcome, other_tries) = match &case.status {
        TestCaseStatus::Success { flaky_runs } => {
            let outcome = flaky_runs.first().map_or(Outcome::Passed, |first| Outcome::Flaky {
                output: output(&first.ty, &first.system_out, &first.system_err),
            });
            (outcome, flaky_runs)
        }
        TestCaseStatus::NonSuccess { ty, reruns, .. } => {
            let how = ty.as_ref().map_or("test failure", XmlString::as_str).to_owned();
            let output = output(ty, &case.system_out, &case.system_err);
            (Outcome::Failed { how, output }, &reruns.runs)
        }
        TestCaseStatus::Skipped { .. } => return None,
    };
    Some(Test {
        name: format!("{program} {}", case.name.as_str()),
        program: program.to_owned(),
        duration: other_tries.iter().map(|run| run.time).chain([case.time]).flatten().sum(),
        outcome,
    })
}

/// Returns how a try failed, in nextest's words, and the output on both streams.
fn output(how: &Option<XmlString>, stdout: &Option<XmlString>, stderr: &Option<XmlString>) -> String {
    let parts = [how, stdout, stderr].into_iter().flatten().map(|part| part.as_str().trim());
    parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
}

/// The tests of several runs.
#[derive(Default)]
pub(crate) struct Summary {
    pub(crate) tests: Vec<Test>,
    /// The commands that failed without naming a test, for instance because a program does not
    /// compile.
    pub(crate) failed_commands: Vec<String>,
    passed_commands: usize,
}

impl Summary {
    pub(crate) fn failed(&self) -> usize {
        self.count(|outcome| matches!(outcome, Outcome::Failed { .. })) + self.failed_commands.len()
    }

    /// Adds a command that is not a test.
    pub(crate) fn add_command(&mut self, command: &str, is_success: bool) {
        match is_success {
            true => self.passed_commands += 1,
            false => self.failed_commands.push(command.to_owned()),
        }
    }

    /// Returns the names of the tests and commands that failed.
    pub(crate) fn failures(&self) -> Vec<String> {
        let failed = self.tests.iter().filter(|test| matches!(test.outcome, Outcome::Failed { .. }));
        failed.map(|test| &test.name).chain(&self.failed_commands).cloned().collect()
    }

    pub(crate) fn flaky(&self) -> usize {
        self.count(|outcome| matches!(outcome, Outcome::Flaky { .. }))
    }

    /// Returns the number of tests and commands that passed, flaky tests among them.
    pub(crate) fn passed(&self) -> usize {
        self.count(|outcome| !matches!(outcome, Outcome::Failed { .. })) + self.passed_commands
    }

    fn write_slowest(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nslowest of {} tests:", self.tests.len())?;
        write_slowest(f, self.tests.iter().map(|test| (test.duration, &*test.name)).collect())?;
        let mut programs: HashMap<&str, Duration> = HashMap::new();
        for test in &self.tests {
            *programs.entry(&test.program).or_default() += test.duration;
        }
        writeln!(f, "\nslowest of {} test programs, by the time of all their tests:", programs.len())?;
        write_slowest(f, programs.into_iter().map(|(program, duration)| (duration, program)).collect())
    }

    fn count(&self, is_counted: impl Fn(&Outcome) -> bool) -> usize {
        self.tests.iter().filter(|test| is_counted(&test.outcome)).count()
    }
}

/// CI reads the last line.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.tests.is_empty() {
            self.write_slowest(f)?;
        }
        if self.flaky() > 0 {
            writeln!(
                f,
                "\nFLAKY: these tests failed, and passed when repeated. Each is a bug to be mended."
            )?;
        }
        for test in &self.tests {
            if let Outcome::Flaky { output } = &test.outcome {
                writeln!(f, "  {}, its first try:", test.name)?;
                output.lines().try_for_each(|line| writeln!(f, "    | {line}"))?;
            }
        }
        if self.failed() > 0 {
            writeln!(f, "\nfailed:")?;
        }
        for test in &self.tests {
            if let Outcome::Failed { how, .. } = &test.outcome {
                writeln!(f, "  {} ({how})", test.name)?;
            }
        }
        for command in &self.failed_commands {
            writeln!(f, "  {command}: names no failed test; its output is above")?;
        }
        writeln!(f, "\n{} passed, {} failed", self.passed(), self.failed())
    }
}

fn write_slowest(f: &mut fmt::Formatter<'_>, mut durations: Vec<(Duration, &str)>) -> fmt::Result {
    durations.sort_by(|a, b| b.cmp(a));
    let mut slowest = durations.iter().take(SLOWEST);
    slowest.try_for_each(|(duration, name)| writeln!(f, "{:>7.1} s  {name}", duration.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that nextest 0.9.143 writes.
    const JUNIT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="4" skipped="0" failures="2" errors="0" uuid="b82ef715-3402-486e-8750-8e72c08198c9" timestamp="2026-11-26T17:27:19.452+00:00" time="4.199">
    <testsuite name="mitra-wire" tests="1" skipped="0" errors="0" failures="0">
        <testcase name="passes" classname="mitra-wire" timestamp="2026-11-26T17:27:19.453+00:00" time="0.5"/>
    </testsuite>
    <testsuite name="mitra::it" tests="3" skipped="0" errors="0" failures="2">
        <testcase name="run::fails" classname="mitra::it" timestamp="2026-11-26T17:27:19.458+00:00" time="2">
            <failure message="thread &apos;fails&apos; (16663) panicked at a/tests/it.rs:2:61" type="test failure with exit code 101">thread &apos;fails&apos; (16663) panicked at a/tests/it.rs:2:61:
assertion failed</failure>
            <system-out>
running 1 test
</system-out>
            <system-err>assertion failed
</system-err>
            <rerunFailure timestamp="2026-11-26T17:27:19.459+00:00" time="1" type="test failure with exit code 101">
                <system-err>failed again
</system-err>
            </rerunFailure>
        </testcase>
        <testcase name="run::flaky" classname="mitra::it" timestamp="2026-11-26T17:27:19.652+00:00" time="0.125">
            <flakyFailure timestamp="2026-11-26T17:27:19.459+00:00" time="1" message="thread &apos;flaky&apos; (16664) panicked" type="test failure with exit code 101">rail 1 was late
                <system-out>
first try
</system-out>
                <system-err>
rail 1 was late
</system-err>
            </flakyFailure>
            <flakyFailure timestamp="2026-11-26T17:27:19.559+00:00" time="0.5" type="test timeout">
                <system-out>second try
</system-out>
            </flakyFailure>
        </testcase>
        <testcase name="run::hangs" classname="mitra::it" timestamp="2026-11-26T17:27:19.647+00:00" time="4.004">
            <failure type="test timeout"/>
            <system-out>step 1 is done
</system-out>
            <system-err></system-err>
        </testcase>
    </testsuite>
</testsuites>"#;

    #[test]
    fn outcomes_are_read_from_junit() {
        let tests = parse(JUNIT).unwrap();
        let names: Vec<&str> = tests.iter().map(|test| &*test.name).collect();
        assert_eq!(
            names,
            ["mitra-wire passes", "mitra::it run::fails", "mitra::it run::flaky", "mitra::it run::hangs"]
        );
        assert_eq!(tests[0].outcome, Outcome::Passed);
        let failed = |how: &str, output: &str| Outcome::Failed {
            how: how.to_owned(),
            output: format!("{how}\n{output}"),
        };
        let how = "test failure with exit code 101";
        assert_eq!(tests[1].outcome, failed(how, "running 1 test\nassertion failed"));
        let output = format!("{how}\nfirst try\nrail 1 was late");
        assert_eq!(tests[2].outcome, Outcome::Flaky { output });
        assert_eq!(tests[2].duration, Duration::from_millis(1625));
        assert_eq!(tests[3].outcome, failed("test timeout", "step 1 is done"));
    }

    #[test]
    fn summary_names_slow_flaky_and_failed_tests() {
        let failed_commands = vec!["cargo test --doc".to_owned()];
        let summary =
            Summary { tests: parse(JUNIT).unwrap(), failed_commands, passed_commands: 0 }.to_string();
        let expected = "
slowest of 4 tests:
    4.0 s  mitra::it run::hangs
    3.0 s  mitra::it run::fails
    1.6 s  mitra::it run::flaky
    0.5 s  mitra-wire passes

slowest of 2 test programs, by the time of all their tests:
    8.6 s  mitra::it
    0.5 s  mitra-wire

FLAKY: these tests failed, and passed when repeated. Each is a bug to be mended.
  mitra::it run::flaky, its first try:
    | test failure with exit code 101
    | first try
    | rail 1 was late

failed:
  mitra::it run::fails (test failure with exit code 101)
  mitra::it run::hangs (test timeout)
  cargo test --doc: names no failed test; its output is above

2 passed, 3 failed
";
        assert_eq!(summary, expected);
    }
}
