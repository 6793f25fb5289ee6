//! The page `docs/protocol/hazards.md`: the hazards of a failover, and the tests of each. A test
//! names its hazard by a marker, the comment `// Hazard: ` with the name, above its attributes.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Each hazard, in the order of the page, and what prevents it.
const HAZARDS: [(&str, &str); 16] = [
    (
        "a failure during the recovery",
        "a failure begins again with a higher ballot; each control message is sent again until it is answered",
    ),
    ("the same request fails twice", "the ledger adds up what all earlier rails executed of an operation"),
    (
        "a completion lands in a recycled slot",
        "completions and log entries name an operation by a sequence number that is never used again, log entries the epoch too",
    ),
    (
        "one side sees nothing (half-open)",
        "both ends send heartbeats on every rail; the end that hears none proposes a rail to the other",
    ),
    (
        "two ends propose different rails",
        "ballots are ordered; a refusal names the rails that its sender cannot use",
    ),
    (
        "two processes choose different homes",
        "homes have generations; an end declines a rail that a newer home of its own excludes, and names this home",
    ),
    (
        "a host pauses and wakes in an old epoch",
        "every control message names its ballot; an end refuses those below the one it promised",
    ),
    (
        "a process is alive, and its NIC is wedged",
        "an end queries the NIC itself; a NIC that does not answer or does not drain is reset",
    ),
    (
        "a late READ response is written into freed memory",
        "the requester fences its own queue pair before a READ is repeated or ends",
    ),
    (
        "the buffer of a request is reused after a time-out",
        "a vQP that closes stops the queue pairs of all rails, or resets the NIC, before the requests end",
    ),
    (
        "a failback uses a stale GID",
        "an end tells its changed address on every rail, and uses the rail for no move before the peer knows it",
    ),
    ("links flap", "the pauses between moves double, and so does the delay of a failback after a short stay"),
    (
        "a reset discards requests without a completion",
        "the ledger has each request, and the evidence decides those without a completion",
    ),
    (
        "the link returns, its throughput does not",
        "both ends connect new queue pairs on a rail that returns; a preferred rail is taken again",
    ),
    (
        "a notification is lost or doubled when it is sent again",
        "the receiver counts the receives of each epoch, and the sender replays those behind the count",
    ),
    (
        "an unlock runs although its lock's outcome is unknown",
        "the queue halts at the first operation that ends in an error; only a lock with a known outcome can be unlocked",
    ),
];

const PAGE: &str = "docs/protocol/hazards.md";
const BEGIN: &str =
    "<!-- The table of hazards, written by `MITRA_WRITE_DOCS=1 cargo test -p xtask --test hazards`. -->\n";
const MARKER: &str = "// Hazard: ";

/// A test of a hazard.
#[derive(PartialEq, Eq, Debug)]
struct Marked {
    hazard: String,
    /// The path of its file, from the root of the repository.
    file: String,
    test: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Appends the marked tests of all Rust files below `dir`, ordered by path.
fn find_below(dir: &Path, found: &mut Vec<Marked>) {
    let mut paths: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            find_below(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let file = path.strip_prefix(root()).unwrap().display().to_string();
            let text = fs::read_to_string(&path).unwrap();
            found.extend(find_in(&text, &file).unwrap_or_else(|error| panic!("{file}: {error}")));
        }
    }
}

/// Returns the marked tests of a source file.
///
/// # Errors
/// A marker names no hazard of [`HAZARDS`], or is not above a test.
fn find_in(text: &str, file: &str) -> Result<Vec<Marked>, String> {
    let mut found = Vec::new();
    let (mut hazards, mut is_test) = (Vec::new(), false);
    for line in text.lines().map(str::trim_start) {
        if let Some(hazard) = line.strip_prefix(MARKER) {
            if HAZARDS.iter().all(|(known, _)| *known != hazard) {
                return Err(format!("`{hazard}` is no hazard of xtask/tests/hazards.rs"));
            }
            hazards.push(hazard.to_owned());
        } else if !hazards.is_empty() && line.starts_with("#[") {
            is_test |= line == "#[test]";
        } else if !hazards.is_empty() {
            let name = line.strip_prefix("fn ").and_then(|rest| rest.split_once('('));
            let (test, _) = name.filter(|_| is_test).ok_or("a marker is not above a test")?;
            let marked = |hazard| Marked { hazard, file: file.to_owned(), test: test.to_owned() };
            found.extend(hazards.drain(..).map(marked));
            is_test = false;
        }
    }
    if hazards.is_empty() { Ok(found) } else { Err("a marker is not above a test".to_owned()) }
}

fn table(marked: &[Marked]) -> String {
    let mut text = "| hazard | what prevents it | tests |\n|---|---|---|\n".to_owned();
    for (hazard, prevention) in HAZARDS {
        let mut tests = String::new();
        let mut file = "";
        for marked in marked.iter().filter(|marked| marked.hazard == hazard) {
            let separator = if tests.is_empty() { "" } else { ", " };
            let path = if file == marked.file { String::new() } else { format!("`{}`: ", marked.file) };
            let _ = write!(tests, "{separator}{path}`{}`", marked.test);
            file = &marked.file;
        }
        assert!(!tests.is_empty(), "no test has the marker `{MARKER}{hazard}`");
        let _ = writeln!(text, "| {hazard} | {prevention} | {tests} |");
    }
    text
}

#[test]
fn page_has_every_hazard_with_its_tests() {
    let mut marked = Vec::new();
    find_below(&root().join("crates"), &mut marked);
    let path = root().join(PAGE);
    let page = fs::read_to_string(&path).unwrap();
    let (before, written) = page.split_once(BEGIN).expect("the begin of the table");
    let expected = table(&marked);
    if env::var_os("MITRA_WRITE_DOCS").is_some() {
        return fs::write(&path, format!("{before}{BEGIN}{expected}")).unwrap();
    }
    assert_eq!(written, expected, "run MITRA_WRITE_DOCS=1 cargo test -p xtask --test hazards");
}

#[test]
fn marker_belongs_to_the_test_below_it() {
    let hazard = HAZARDS[0].0;
    let marked =
        |text: &str| find_in(&text.replace('H', hazard).replace("M ", MARKER), "a.rs").map(|all| all.len());
    assert_eq!(marked("M H\n#[test]\n#[ignore]\nfn a() {\n#[test]\nfn b() {\n"), Ok(1));
    let is_refused = |text| marked(text).is_err();
    assert!(is_refused("M H\nfn helper() {\n"), "above a function that is no test");
    assert!(is_refused("M H\nconst A: u8 = 0;\n") && is_refused("M H\n"), "above no function");
    assert!(is_refused("M an unknown one\n#[test]\nfn a() {\n"), "not in the list");
}
