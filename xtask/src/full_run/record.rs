//! The record of a full run: a file while the run lasts, then docs/figures/full-run.json and its
//! part of docs/verification.md.

use std::fmt::{self, Write as _};
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use mitra_test_process::lock;
use serde_json::{Value, json};

use crate::root;
use crate::tiers::PARTS;

/// The directory of the records of runs that are not complete, below the root.
const DIRECTORY: &str = "target/full-run";
const FIGURES: &str = "docs/figures/full-run.json";
const PAGE: &str = "docs/verification.md";
const BEGIN: &str = "<!-- full run, written by `cargo xtask test --all` -->\n";
const END: &str = "<!-- end of full run -->";

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PartResult {
    pub(super) name: String,
    pub(super) wall_s: u64,
    /// User and system time of its processes.
    pub(super) cpu_s: u64,
    pub(super) passed: usize,
    /// Of those that passed.
    pub(super) flaky: usize,
    /// The names of the tests and commands that failed.
    pub(super) failed: Vec<String>,
    /// The names of those that failed in earlier runs of the part at this commit.
    pub(super) failed_before: Vec<String>,
}

/// The results of all parts of a commit that have run.
pub(crate) struct Record {
    commit: String,
    parts: Vec<PartResult>,
}

impl Record {
    /// Reads the record of a commit, or begins one.
    pub(super) fn of(commit: &str) -> Result<Record> {
        let path = path_of(commit);
        match fs::read_to_string(&path) {
            Ok(text) => {
                let value = serde_json::from_str(&text).with_context(|| format!("{}", path.display()))?;
                from_json(&value).with_context(|| format!("{}: remove this file", path.display()))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Ok(Record { commit: commit.to_owned(), parts: Vec::new() })
            }
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    pub(super) fn has_passed(&self, name: &str) -> bool {
        self.parts.iter().any(|part| part.name == name && part.failed.is_empty())
    }

    /// Adds the result of a part, which takes the place of an earlier one, and writes the record.
    pub(super) fn add(&mut self, mut part: PartResult) -> Result<()> {
        fs::create_dir_all(root().join(DIRECTORY))?;
        // Another shard may have added parts since this process read the record.
        let _turn = lock(&root().join(DIRECTORY).join("lock"));
        *self = Record::of(&self.commit)?;
        if let Some(at) = self.parts.iter().position(|other| other.name == part.name) {
            let earlier = self.parts.remove(at);
            part.failed_before = earlier.failed_before;
            part.failed_before.extend(earlier.failed);
        }
        self.parts.push(part);
        let path = path_of(&self.commit);
        fs::write(&path, to_text(self)?).with_context(|| format!("cannot write {}", path.display()))
    }

    pub(super) fn is_complete(&self) -> bool {
        PARTS.iter().all(|part| self.parts.iter().any(|result| result.name == part.name))
    }

    /// Returns the number of failed tests and commands.
    pub(super) fn failed(&self) -> usize {
        self.parts.iter().map(|part| part.failed.len()).sum()
    }

    /// Writes the record and the page.
    pub(super) fn publish(&self) -> Result<()> {
        fs::write(root().join(FIGURES), to_text(self)?).with_context(|| format!("cannot write {FIGURES}"))?;
        write_page()?;
        println!("{FIGURES} and {PAGE} have the results: commit them");
        Ok(())
    }
}

fn path_of(commit: &str) -> PathBuf {
    root().join(DIRECTORY).join(format!("{commit}.json"))
}

fn to_text(record: &Record) -> Result<String> {
    let parts: Vec<Value> = record
        .parts
        .iter()
        .map(|part| {
            json!({
                "name": part.name, "wall_s": part.wall_s, "cpu_s": part.cpu_s, "passed": part.passed,
                "flaky": part.flaky, "failed": part.failed, "failed_before": part.failed_before,
            })
        })
        .collect();
    let date = Command::new("git")
        .args(["show", "--no-patch", "--format=%cs", &record.commit])
        .current_dir(root())
        .output()?;
    let date = String::from_utf8(date.stdout)?.trim().to_owned();
    let value = json!({ "commit": record.commit, "date": date, "parts": parts });
    Ok(serde_json::to_string_pretty(&value)? + "\n")
}

fn from_json(value: &Value) -> Result<Record> {
    let strings = |value: &Value| -> Option<Vec<String>> {
        value.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect()
    };
    let part = |value: &Value| {
        Some(PartResult {
            name: value["name"].as_str()?.to_owned(),
            wall_s: value["wall_s"].as_u64()?,
            cpu_s: value["cpu_s"].as_u64()?,
            passed: value["passed"].as_u64()?.try_into().ok()?,
            flaky: value["flaky"].as_u64()?.try_into().ok()?,
            failed: strings(&value["failed"])?,
            failed_before: strings(&value["failed_before"])?,
        })
    };
    let record = || {
        let parts = value["parts"].as_array()?.iter().map(part).collect::<Option<_>>()?;
        Some(Record { commit: value["commit"].as_str()?.to_owned(), parts })
    };
    record().context("it is not the record of a full run")
}

/// The page, in Markdown.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = |of: fn(&PartResult) -> u64| self.parts.iter().map(of).sum::<u64>();
        let count = |of: fn(&PartResult) -> usize| self.parts.iter().map(of).sum::<usize>();
        let commit = self.commit.get(..8).unwrap_or(&self.commit);
        writeln!(
            f,
            "`cargo xtask test --all` at {commit}: {} passed, {} of them flaky, {} failed, in {} minutes.\n",
            count(|part| part.passed),
            count(|part| part.flaky),
            self.failed(),
            sum(|part| part.wall_s).div_ceil(60),
        )?;
        writeln!(f, "| part | wall time, s | processor time, s | passed | flaky | failed |")?;
        writeln!(f, "|---|---|---|---|---|---|")?;
        for part in &self.parts {
            let PartResult { name, wall_s, cpu_s, passed, flaky, .. } = part;
            writeln!(f, "| {name} | {wall_s} | {cpu_s} | {passed} | {flaky} | {} |", part.failed.len())?;
        }
        for part in &self.parts {
            let failed = part.failed.iter().map(|name| (name, "failed"));
            let before = part.failed_before.iter().map(|name| (name, "failed in an earlier run"));
            for (name, how) in failed.chain(before) {
                writeln!(f, "\n- `{name}` ({}) {how}.", part.name)?;
            }
        }
        Ok(())
    }
}

/// Writes the part of docs/verification.md that shows the record.
pub(crate) fn write_page() -> Result<()> {
    let page = root().join(PAGE);
    let text = fs::read_to_string(&page).with_context(|| format!("cannot read {PAGE}"))?;
    fs::write(&page, with_record(&text)?).with_context(|| format!("cannot write {PAGE}"))
}

/// Returns a finding if the page does not show the record.
pub(crate) fn finding() -> Result<Option<String>> {
    let text = fs::read_to_string(root().join(PAGE)).with_context(|| format!("cannot read {PAGE}"))?;
    let is_current = with_record(&text)? == text;
    Ok((!is_current)
        .then(|| format!("{PAGE}: the full run is not that of {FIGURES}: run cargo xtask figures")))
}

fn with_record(page: &str) -> Result<String> {
    let record = match fs::read_to_string(root().join(FIGURES)) {
        Ok(text) => from_json(&serde_json::from_str(&text).context(FIGURES)?).context(FIGURES)?.to_string(),
        Err(error) if error.kind() == ErrorKind::NotFound => "No full run is recorded yet.\n".to_owned(),
        Err(error) => return Err(error).with_context(|| format!("cannot read {FIGURES}")),
    };
    let (before, rest) = page.split_once(BEGIN).with_context(|| format!("{PAGE} has no line {BEGIN:?}"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("{PAGE} has no line {END:?}"))?;
    let mut written = String::new();
    write!(written, "{before}{BEGIN}{record}{END}{after}")?;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, failed: &[&str]) -> PartResult {
        let failed = failed.iter().map(|&name| name.to_owned()).collect();
        PartResult {
            name: name.to_owned(),
            wall_s: 61,
            cpu_s: 100,
            passed: 7,
            flaky: 1,
            failed,
            failed_before: Vec::new(),
        }
    }

    #[test]
    fn record_survives_its_file() {
        let record =
            Record { commit: "27b30150".to_owned(), parts: vec![part("a", &["b c"]), part("d", &[])] };
        let read = from_json(&serde_json::from_str(&to_text(&record).unwrap()).unwrap()).unwrap();
        assert_eq!((&read.commit, &read.parts), (&record.commit, &record.parts));
        assert!(from_json(&json!({ "commit": "27b30150", "parts": [{}] })).is_err());
    }

    #[test]
    fn page_has_a_line_for_each_part_and_failure() {
        let mut late = part("tests-1", &[]);
        late.failed_before.push("it kv::x".to_owned());
        let record = Record { commit: "27b3015000".to_owned(), parts: vec![part("sweep", &["rc"]), late] };
        let page = record.to_string();
        assert!(page.contains("at 27b30150: 14 passed, 2 of them flaky, 1 failed, in 3 minutes."), "{page}");
        assert!(page.contains("\n| sweep | 61 | 100 | 7 | 1 | 1 |\n"), "{page}");
        assert!(page.contains("\n- `rc` (sweep) failed.\n"), "{page}");
        assert!(page.contains("\n- `it kv::x` (tests-1) failed in an earlier run.\n"), "{page}");
        assert!(!record.is_complete() && record.has_passed("tests-1") && !record.has_passed("sweep"));
    }
}
