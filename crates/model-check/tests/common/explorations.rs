//! Explorations that must find nothing, and the record of those that were complete.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::{env, fs};

use mitra_model_check::{Exploration, bounded};
use sha2::{Digest, Sha256};

/// The states of an exploration at a landing whose model has not changed.
const STATES_OF_A_LANDING: NonZeroUsize = NonZeroUsize::new(10_000).expect("it is not 0");

/// The crate that a model reads besides `model-check`.
#[derive(Clone, Copy)]
pub enum Reads {
    /// `consensus`.
    Consensus,
    /// `objects` and, through it, `failover`.
    Objects,
    /// `failover`.
    Failover,
    /// `filter`.
    Filter,
    /// `txn`.
    Transactions,
}

impl Reads {
    fn directory(self) -> &'static str {
        match self {
            Reads::Consensus => "consensus",
            Reads::Objects => "objects",
            Reads::Failover => "failover",
            Reads::Filter => "filter",
            Reads::Transactions => "txn",
        }
    }
}

/// Checks that an exploration finds nothing.
///
/// With a rotation, the exploration is bounded if the record has it for these sources: it was
/// complete then. The record also has its number of states, by which an exploration that explores
/// less than before is found. `cargo xtask explore` renews the record.
#[track_caller]
pub fn finds_nothing(name: &str, reads: Reads, explore: impl FnOnce() -> Exploration) {
    let digest = digest_of_sources(reads);
    let recorded = read_record().remove(name);
    let is_recorded = recorded.as_ref().is_some_and(|(_, of)| *of == digest);
    if mitra_prng::rotation().is_some() && is_recorded {
        let exploration = bounded(STATES_OF_A_LANDING, explore);
        println!("{name}: {} states; all of them were explored with these sources", exploration.states);
        assert_eq!(exploration.counterexample, None);
        return;
    }
    let exploration = explore();
    println!("{name}: {} states", exploration.states);
    assert_eq!(exploration.counterexample, None);
    if env::var_os("MITRA_WRITE_EXPLORATIONS").is_some() {
        return write_record(name, exploration.states, digest);
    }
    match recorded {
        Some((states, _)) if is_recorded => {
            assert_eq!(exploration.states, states, "the record has {states} states")
        }
        Some((states, _)) => assert!(
            exploration.states * 2 > states,
            "{} states, and the record has {states}: if that is right, run cargo xtask explore",
            exploration.states
        ),
        None => panic!("no record has {name}: run cargo xtask explore"),
    }
}

/// The number of states of each exploration, and the digest of the sources.
type Record = BTreeMap<String, (usize, String)>;

fn record_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("explorations.txt")
}

const HEADER: &str = "\
# Complete explorations that found nothing: name, states, digest of the sources that the model reads.
# Written by `cargo xtask explore`.
";

fn read_record() -> Record {
    let text = fs::read_to_string(record_path()).unwrap_or_default();
    let entry = |line: &str| {
        let [name, states, digest] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
        Some((name.to_owned(), (states.parse().ok()?, digest.to_owned())))
    };
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| entry(line).unwrap_or_else(|| panic!("{}: {line:?}", record_path().display()))).collect()
}

/// Adds an exploration to the record. Each test is a process, so they take turns.
fn write_record(name: &str, states: usize, digest: String) {
    let _turn = mitra_test_process::lock(&env::temp_dir().join("mitra-explorations.lock"));
    let mut record = read_record();
    record.insert(name.to_owned(), (states, digest));
    let lines = record.iter().map(|(name, (states, digest))| format!("{name} {states} {digest}\n"));
    fs::write(record_path(), HEADER.to_owned() + &lines.collect::<String>())
        .expect("the record can be written");
}

/// Returns the directories of the crates of this workspace that a model reads: the checker, and a
/// crate with all that it uses. The checker's other dependencies are what other models read, and
/// `prng`: an exploration draws nothing.
pub fn crates_that(reads: Reads) -> Vec<String> {
    let mut used = vec![reads.directory().to_owned(), "model-check".to_owned()];
    let mut next = 0;
    while let Some(directory) = used.get(next) {
        next += 1;
        if directory == "model-check" {
            continue;
        }
        for dependency in dependencies(&crates().join(directory)) {
            if !used.contains(&dependency) {
                used.push(dependency);
            }
        }
    }
    used.sort();
    used
}

fn crates() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("this is crates/model-check/tests")
}

/// Returns the digest of all sources that a model reads.
fn digest_of_sources(reads: Reads) -> String {
    let mut digest = Sha256::new();
    for directory in crates_that(reads) {
        let mut files = Vec::new();
        add_files(&crates().join(&directory).join("src"), &mut files);
        assert!(!files.is_empty(), "{directory} has no sources");
        files.sort();
        for file in files {
            let text = fs::read(&file).expect("a source can be read");
            let path = file.strip_prefix(crates()).expect("it is below").to_string_lossy().into_owned();
            digest.update(format!("{path} {}\n", text.len()));
            digest.update(text);
        }
    }
    digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the directories of the crates of this workspace that a crate uses, from its manifest.
fn dependencies(directory: &Path) -> Vec<String> {
    let manifest = fs::read_to_string(directory.join("Cargo.toml")).expect("a crate has a manifest");
    let section = manifest.split("\n[").find(|section| section.starts_with("dependencies]"));
    let names = section.unwrap_or_default().lines().filter_map(|line| line.strip_prefix("mitra-"));
    names.filter_map(|name| name.split(['.', ' ', '=']).next()).map(str::to_owned).collect()
}

fn add_files(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory of sources can be read") {
        let path = entry.expect("an entry can be read").path();
        match path.is_dir() {
            true => add_files(&path, files),
            false => files.push(path),
        }
    }
}
