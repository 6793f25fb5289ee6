//! `cargo xtask test --all`: every part of `tiers.rs`, one after the other, with a record of each.

mod record;

use std::fmt;
use std::fs;
use std::process::Command;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};

pub(crate) use record::{Record, finding, write_page};

use crate::test_results::Summary;
use crate::tiers::{PARTS, Part, SLICES, SWEEP_FACTOR, Work};
use crate::{commit, nextest, root, setup, stress, suite, sweep};

use record::PartResult;

/// The parts at positions `index`, `index + of`, ... of the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shard {
    /// From 1 to `of`.
    index: usize,
    of: usize,
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Shard, String> {
        let numbers = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match numbers {
            Some((index, of)) if (1..=of).contains(&index) => Ok(Shard { index, of }),
            _ => Err(format!("{text:?} is not of the form I/N with 1 ≤ I ≤ N, such as 1/2")),
        }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.of)
    }
}

/// Runs the parts that have not passed yet at this commit. When all parts of the commit have run,
/// prints the page, and writes the record and its part of docs/verification.md. Returns whether all
/// parts passed.
///
/// # Errors
/// Fails if the working tree has changes, because the record is that of a commit.
pub(crate) fn run(shard: Option<Shard>) -> Result<bool> {
    setup::run()?;
    let commit = clean_commit()?;
    let mut record = Record::of(&commit)?;
    let Shard { index, of } = shard.unwrap_or(Shard { index: 1, of: 1 });
    for part in PARTS.iter().skip(index - 1).step_by(of) {
        if record.has_passed(part.name) {
            println!("{}: has passed at this commit", part.name);
            continue;
        }
        ensure!(clean_commit()? == commit, "the commit has changed: a full run needs a clone of its own");
        println!("\n== {} of {}", part.name, commit.get(..8).unwrap_or(&commit));
        let result = measured(part, &commit)?;
        record.add(result)?;
    }
    print!("{record}");
    if record.is_complete() {
        record.publish()?;
    } else {
        println!("not all parts have run at this commit; the page is written when they have");
    }
    Ok(record.failed() == 0)
}

/// Returns the commit of the working tree.
fn clean_commit() -> Result<String> {
    let status = Command::new("git").args(["status", "--porcelain"]).current_dir(root()).output()?;
    ensure!(
        status.status.success() && status.stdout.is_empty(),
        "the working tree has changes: commit them, or run this in a clean clone"
    );
    commit().context("a full run needs a git checkout")
}

fn measured(part: &Part, commit: &str) -> Result<PartResult> {
    let (began, cpu_before) = (Instant::now(), cpu_of_children()?);
    let mut summary = Summary::default();
    run_part(&part.work, commit, &mut summary)?;
    Ok(PartResult {
        name: part.name.to_owned(),
        wall_s: began.elapsed().as_secs(),
        cpu_s: (cpu_of_children()?.saturating_sub(cpu_before)).as_secs(),
        passed: summary.passed(),
        flaky: summary.flaky(),
        failed: summary.failures(),
        failed_before: Vec::new(),
    })
}

/// Runs a part, and adds its tests to the summary. A part that is one command counts as one test.
fn run_part(work: &Work, commit: &str, summary: &mut Summary) -> Result<()> {
    match work {
        Work::DocTests => suite::doc_tests(summary),
        Work::Tests(slice) => {
            let partition = format!("--partition=slice:{slice}/{SLICES}");
            nextest::run(&suite::suite_and([partition]), None, summary)
        }
        Work::Stress => stress::once(commit, summary),
        Work::Sweep => sweep::run("target/release/mitra", SWEEP_FACTOR, summary),
        Work::Command(words) => {
            let (program, args) = words.split_first().context("a part has no command")?;
            let status = Command::new(program).args(args).current_dir(root()).status();
            summary.add_command(&words.join(" "), status.is_ok_and(|status| status.success()));
            Ok(())
        }
        Work::NoMutants => {
            summary.add_command("search for names of mutants in target/release/mitra", has_no_mutant()?);
            Ok(())
        }
    }
}

/// Returns whether the release contains no name of a mutant.
fn has_no_mutant() -> Result<bool> {
    const WORKLOAD: &str = "disk-paxos";
    let page = fs::read_to_string(root().join("docs/simulator.md"))?;
    let names: Vec<&str> = page
        .split_once("\n| mutant ")
        .context("docs/simulator.md has no table of mutants")?
        .1
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    ensure!(names.len() > 80, "docs/simulator.md lists {} mutants only", names.len());
    // The name of a workload shows that the search finds what is there.
    let patterns = names.iter().chain([&WORKLOAD]).flat_map(|name| ["-e", name]);
    let output = Command::new("grep")
        .args(["--text", "--only-matching", "--fixed-strings"])
        .args(patterns)
        .arg(root().join("target/release/mitra"))
        .output()
        .context("cannot run grep")?;
    let output = String::from_utf8_lossy(&output.stdout);
    let mut found: Vec<&str> = output.lines().collect();
    found.sort_unstable();
    found.dedup();
    ensure!(found.contains(&WORKLOAD), "target/release/mitra does not contain the name of a workload");
    found.retain(|&name| name != WORKLOAD);
    found.iter().for_each(|name| println!("target/release/mitra contains {name}"));
    Ok(found.is_empty())
}

/// Returns the processor time, user and system, of all children that have ended.
fn cpu_of_children() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let micros = |time: nix::sys::time::TimeVal| time.tv_sec() * 1_000_000 + time.tv_usec();
    Ok(Duration::from_micros((micros(usage.user_time()) + micros(usage.system_time())).try_into()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_from_1_to_n() {
        assert_eq!("2/3".parse(), Ok(Shard { index: 2, of: 3 }));
        for text in ["0/3", "4/3", "1/0", "1", "a/b", "1/2/3"] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
    }

    #[test]
    fn names_of_parts_differ() {
        let mut names: Vec<&str> = PARTS.iter().map(|part| part.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PARTS.len());
    }
}
