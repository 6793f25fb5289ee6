//! Wrong arguments, absent files and peers, and outputs that cannot be written: every command
//! prints one line that names the thing, the rule and the way out, and exits with the documented
//! code.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use mitra_test_process::{TestProcess, command, output};

fn mitra() -> Command {
    command(env!("CARGO_BIN_EXE_mitra"))
}

fn run(words: &[impl AsRef<OsStr>]) -> Output {
    output(mitra().args(words))
}

/// Runs a command whose standard output is this file.
fn run_into(command: &mut Command, file: impl Into<Stdio>) -> Output {
    TestProcess::start(command.stdout(file).stderr(Stdio::piped())).output().unwrap()
}

/// Checks that a command writes one line with these words and nothing else, and exits with this
/// code.
fn assert_refused(words: &[impl AsRef<OsStr> + std::fmt::Debug], code: i32, expected: &[&str]) {
    let output = run(words);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
    assert!(output.stdout.is_empty(), "{words:?}: {}", String::from_utf8_lossy(&output.stdout));
    assert!(said.starts_with("mitra: ") && said.lines().count() == 1, "{words:?}: {said}");
    assert!(!said.contains("os error"), "{words:?}: {said}");
    for word in expected {
        assert!(said.contains(word), "{words:?}: no {word:?} in {said}");
    }
}

#[test]
fn wrong_values_are_explained() {
    let cases: [(&[&str], &[&str]); 40] = [
        (&["nosuch"], &["nosuch", "--help"]),
        (&["check"], &["the NAME", "--list shows the names"]),
        (&["check", "--explore"], &["the NAME", "--list shows the names"]),
        (&["check", "nosuch"], &["nosuch", "paxos"]),
        (&["check", "paxos", "--seeds"], &["--seeds", "see --help"]),
        (&["completions", "tcsh"], &["tcsh", "bash", "fish"]),
        (&["sim", "--workload", "paxos", "--seeds", "x"], &["'x'", "use a whole number"]),
        (&["sim", "--workload", "paxos", "--seeds", "0"], &["--seeds", "1.."]),
        (&["sim", "--workload", "paxos", "--minutes", "0"], &["--minutes", "greater than 0"]),
        (&["sim", "--workload", "paxos", "--shard", "5/4"], &["--shard", "for example 3/8"]),
        (&["sim", "--workload", "paxos", "--seeds", "3", "--shard", "4/4"], &["no seed", "at most 3 shards"]),
        (
            &["sim", "--workload", "failover", "--from", "1", "--shrunk", "x=1"],
            &["--shrunk", "operations=4+0"],
        ),
        (
            &["sim", "--workload", "failover", "--from", "1", "--shrunk", "faults=99"],
            &["seed 1 has", "numbered from 0"],
        ),
        (
            &["sim", "--workload", "packets", "--from", "1", "--shrunk", "faults=0"],
            &["the workload packets has no smaller worlds"],
        ),
        (&["sim", "--workload", "paxos", "--minutes", "1", "--shard", "1/2"], &["--shard", "--from"]),
        (&["fault", "--program", "", "rail0", "down"], &["--program", "a value is required"]),
        (&["watch", "--program", ""], &["--program", "a value is required"]),
        (&["fault", "--pid", "x", "rail0", "down"], &["--pid", "use a whole number"]),
        (&["fault", "--all", "rail0", "explode"], &["explode", "link-down@6:40"]),
        (&["fault", "--all"], &["the fault is missing", "rail0 down"]),
        (&["fault", "--pid", "1"], &["the fault is missing", "--list"]),
        (&["kv", "get", "k", "--timeout", "18446744073709551615"], &["--timeout", "1..=31622400"]),
        (&["kv", "get", "k", "--timeout", "0"], &["--timeout", "1..=31622400"]),
        (&["kv", "get", "k", "--servers", "x"], &["--servers", "ADDRESS:PORT", "127.0.0.1:7001"]),
        (&["memory", "nosuch"], &["nosuch", "kv, omega"]),
        (&["memory", "kv", "--listen", "192.0.2.1:7"], &["192.0.2.1:7", "--secret"]),
        (
            &[
                "propose",
                "paxos",
                "b",
                "--id",
                "0",
                "--processes",
                "127.0.0.1:1",
                "--timeout",
                "18446744073709551615",
            ],
            &["--timeout", "1..=31622400"],
        ),
        (
            &["elect", "--id", "9", "--processes", "127.0.0.1:1", "--memory", "127.0.0.1:2"],
            &["--id 9", "1 process"],
        ),
        (&["topology", "--family", "ring"], &["ring N"]),
        (&["topology", "--suggest", "5", "9"], &["at most 4"]),
        (&["txn", "memory", "--backups", "3"], &["--backups 3", "--memories 4"]),
        (&["txn", "memory", "--id", "3"], &["--id 3", "3 memory nodes"]),
        (&["txn", "memory", "--listen", "192.0.2.1:7"], &["192.0.2.1:7", "--secret"]),
        (&["txn", "check"], &["--nodes", "--help"]),
        (&["txn", "check", "--nodes", "127.0.0.1:1"], &["--nodes has 1", "--memories is 3"]),
        (&["txn", "local", "--workload", "ycsb"], &["--workload", "tpcc, smallbank"]),
        (&["run", "--rails", "9", "--", "true"], &["use 1 to 8"]),
        (&["demo", "--rounds", "x"], &["--rounds", "use a whole number"]),
        // The older name of the option.
        (&["bench", "latency", "--rails", "tcp"], &["'--links <KIND>'", "auto, shm or udp"]),
        (&["bench", "latency", "--nosuch"], &["--nosuch", "--help"]),
    ];
    for (words, expected) in cases {
        assert_refused(words, 2, expected);
    }
}

#[test]
fn files_that_cannot_be_used_are_explained() {
    let dir = tempfile::tempdir().expect("a directory");
    let existing = dir.path().join("existing");
    fs::write(&existing, "text").expect("written");
    let path = |path: &PathBuf| path.to_str().expect("UTF-8").to_owned();
    let (directory, existing) = (path(&dir.path().to_path_buf()), path(&existing));
    let cases: [(&[&str], &[&str]); 16] = [
        (
            &["decode", "/nonexistent"],
            &["cannot open /nonexistent", "give the path of a capture", "No such file"],
        ),
        (&["decode", &directory], &["cannot read", "Is a directory"]),
        (&["decode", &existing], &["not a pcap or pcapng file"]),
        (
            &["demo", "--report", "/nonexistent/a.html"],
            &["cannot write /nonexistent/a.html", "directory that exists"],
        ),
        (
            &["bench", "varuna", "--report", "/nonexistent/a.html"],
            &["cannot write /nonexistent/a.html", "directory that exists"],
        ),
        (
            &["bench", "tpcc", "--report", "/nonexistent/a.html"],
            &["cannot write /nonexistent/a.html", "directory that exists"],
        ),
        (&["demo", "--pcap", "/proc/a"], &["cannot create the directory /proc/a", "choose another"]),
        (&["topology", "--edges", "/nonexistent"], &["cannot open /nonexistent", "edge list"]),
        (&["topology", "--edges", &directory], &["cannot read", "Is a directory"]),
        (&["topology", "--edges", &existing], &["line 1", "no vertex"]),
        (
            &["topology", "--family", "ring", "5", "--report", "/nonexistent/a"],
            &["/nonexistent/a", "directory that exists"],
        ),
        (
            &["topology", "--family", "ring", "5", "--svg", "/dev/full"],
            &["cannot write /dev/full", "No space left"],
        ),
        (&["key", &existing], &["cannot create", "choose a new file", "File exists"]),
        (&["man", "/proc/a"], &["cannot create /proc/a", "choose another directory"]),
        (&["memory", "kv", "--data", "/proc/a"], &["cannot use /proc/a", "give another directory"]),
        (&["memory", "kv", "--secret", "/nonexistent"], &["cannot read /nonexistent"]),
    ];
    for (words, expected) in cases {
        assert_refused(words, 2, expected);
    }
}

#[test]
fn arguments_that_are_not_utf8_are_explained() {
    let bytes = OsString::from_vec(b"/no/\xff\xfe".to_vec());
    let with = |words: &[&str]| -> Vec<OsString> {
        words.iter().map(OsString::from).chain([bytes.clone()]).collect()
    };
    assert_refused(&with(&["decode"]), 2, &["cannot open /no/"]);
    assert_refused(&with(&["key", "--json"]), 2, &["cannot create /no/"]);
    assert_refused(&with(&["topology", "--edges"]), 2, &["cannot open /no/"]);
    assert_refused(&with(&["kv", "get"]), 2, &["use UTF-8"]);
    assert_refused(&with(&["fault", "--all"]), 2, &["use UTF-8"]);
    assert_refused(&with(&["run", "--"]), 127, &["no program"]);
}

#[test]
fn absent_peers_are_explained() {
    // No server listens at port 1.
    let kv = |command: &[&'static str]| {
        [&["kv"], command, &["--timeout", "1", "--servers", "127.0.0.1:1"]].concat()
    };
    for command in [&["get", "k"][..], &["put", "k", "v"], &["delete", "k"], &["get", "k", "--json"]] {
        assert_refused(&kv(command), 3, &["no leader was reached in 1s", "start the store's processes"]);
    }
    assert_refused(&kv(&["watch", "k"]), 3, &["no server was reached", "start the store's processes"]);
    let alone = [
        "propose",
        "paxos",
        "b",
        "--id",
        "0",
        "--processes",
        "127.0.0.1:0,127.0.0.1:1,127.0.0.1:1",
        "--timeout",
        "1",
    ];
    assert_refused(&alone, 1, &["no decision within 1 s", "start the others"]);
}

#[test]
fn address_of_the_explorer_that_cannot_be_used_is_explained() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    assert_refused(
        &["check", "paxos", "--explore", &address],
        2,
        &[&address, "give --explore another address"],
    );
}

/// Commands that print a result at once.
const PRINTS: [&[&str]; 8] = [
    &["check", "--list"],
    &["check", "--list", "--json"],
    &["completions", "bash"],
    &["devices"],
    &["fault", "--list", "--json"],
    &["sim", "--workload", "paxos", "--seeds", "1"],
    &["topology", "--family", "petersen"],
    &["topology", "--family", "petersen", "--json"],
];

#[test]
fn full_disk_is_an_error() {
    for words in PRINTS {
        let full = File::create("/dev/full").expect("the device exists");
        let output = run_into(mitra().args(words), full);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        let last = said.lines().last().unwrap_or_default();
        assert!(last.starts_with("mitra: cannot write the output; "), "{words:?}: {said}");
        assert!(last.ends_with("No space left on device"), "{words:?}: {said}");
    }
}

#[test]
fn closed_pipe_is_a_success() {
    for words in PRINTS {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = run_into(mitra().args(words), writer);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{words:?}: {said}");
    }
}

#[test]
fn key_that_cannot_be_printed_leaves_no_file() {
    let dir = tempfile::tempdir().expect("a directory");
    for json in [&[][..], &["--json"]] {
        let file = dir.path().join("key");
        let full = File::create("/dev/full").expect("the device exists");
        let output = run_into(mitra().arg("key").args(json).arg(&file), full);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.starts_with("mitra: cannot write the output; "), "{said}");
        assert!(!file.exists());
    }
}

/// The exit code reports an error that cannot be written.
#[test]
fn full_standard_error_does_not_change_the_exit_code() {
    let cases: [(&[&str], i32); 5] = [
        (&["nosuch"], 2),
        (&["decode", "/nonexistent"], 2),
        (&["fault", "rail0", "down"], 2),
        (&["run", "--", "/nonexistent"], 127),
        (&["kv", "get", "k", "--timeout", "1", "--servers", "127.0.0.1:1"], 3),
    ];
    for (words, code) in cases {
        let full = File::create("/dev/full").expect("the device exists");
        let status = TestProcess::start(mitra().args(words).stderr(full)).wait();
        assert_eq!(status.code(), Some(code), "{words:?}");
    }
}

#[test]
fn fault_without_selection_lists_and_injects_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    for words in [&["fault"][..], &["fault", "rail0 down"]] {
        let output = output(mitra().args(words).env("XDG_RUNTIME_DIR", dir.path()));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        assert!(
            said.contains("nothing was injected") && said.contains("--pid, --program or --all"),
            "{said}"
        );
    }
}
