//! The commands `mitra memory`, `mitra propose` and `mitra elect`: each memory node and process is
//! a child process.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use mitra_test_process::{OwnNetwork, TestProcess, command, output};
use serde_json::Value;
use tempfile::TempDir;

use crate::election::Election;

fn mitra(arguments: &[String]) -> Command {
    let mut command = command(env!("CARGO_BIN_EXE_mitra"));
    command.args(arguments).stdout(Stdio::piped());
    command
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

struct Memory {
    _program: TestProcess,
    address: String,
}

impl Memory {
    fn start(purpose: &str) -> Memory {
        Memory::start_with(&["memory", purpose])
    }

    fn start_with(arguments: &[&str]) -> Memory {
        let arguments = [arguments, &["--rails", "1", "--json"]].concat();
        let mut program = TestProcess::start(&mut mitra(&words(&arguments)));
        let mut line = String::new();
        let out = program.stdout.take().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let told: Value = serde_json::from_str(&line).expect("an object");
        let address = told["address"].as_str().expect("where it listens").to_owned();
        Memory { _program: program, address }
    }
}

/// Returns the addresses of the three processes in a network.
fn doors(network: &OwnNetwork) -> String {
    [7101, 7102, 7103].map(|port| format!("{}:{port}", network.address(1))).join(",")
}

/// Runs three processes that propose their values, some of them as leaders, and returns their
/// outputs.
fn decide(protocol: &str, memories: usize, values: [Option<&str>; 3], leads: &[usize]) -> Vec<Output> {
    decide_signed(protocol, memories, values, leads, None)
}

/// Like [`decide`], with signing keys from this directory.
fn decide_signed(
    protocol: &str,
    memories: usize,
    values: [Option<&str>; 3],
    leads: &[usize],
    keys: Option<&Path>,
) -> Vec<Output> {
    let memories: Vec<_> = (0..memories).map(|_| Memory::start(protocol)).collect();
    let network = OwnNetwork::new();
    let doors = doors(&network);
    let at = memories.iter().map(|memory| memory.address.clone()).collect::<Vec<_>>().join(",");
    let start = |(id, value): (usize, &Option<&str>)| {
        let mut arguments = words(&["propose", protocol]);
        arguments.extend(value.map(str::to_owned));
        arguments.extend(words(&["--id", &id.to_string(), "--processes", &doors, "--rails", "1", "--json"]));
        if !at.is_empty() {
            arguments.extend(words(&["--memories", &at]));
        }
        if let Some(keys) = keys {
            let file = |name: String| keys.join(name).display().to_string();
            arguments.extend(words(&["--key", &file(format!("key{id}")), "--keys", &file("keys".into())]));
        }
        if leads.contains(&id) {
            arguments.push("--lead".into());
        }
        TestProcess::start(mitra(&arguments).stderr(Stdio::piped()))
    };
    let started: Vec<_> = values.iter().enumerate().map(start).collect();
    started.into_iter().map(|program| program.output().expect("it ends")).collect()
}

/// Checks that all processes decided the same value, which is in `valid`.
fn agree(outputs: &[Output], valid: &[&str]) {
    let decided = |(id, output): (usize, &Output)| {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let told: Value = serde_json::from_slice(&output.stdout).expect("an object");
        assert_eq!(told["process"], id);
        told["decided"].as_str().expect("a value").to_owned()
    };
    let all: Vec<_> = outputs.iter().enumerate().map(decided).collect();
    assert!(all.iter().all(|value| *value == all[0]) && valid.contains(&all[0].as_str()), "{all:?}");
}

const COLOURS: [Option<&str>; 3] = [Some("red"), Some("green"), Some("blue")];

#[test]
fn three_processes_decide_over_three_memories() {
    for protocol in ["protected-memory-paxos", "disk-paxos", "aligned-paxos"] {
        agree(&decide(protocol, 3, COLOURS, &[1]), &["green"]);
    }
}

#[test]
fn two_leaders_decide_the_same_value() {
    for protocol in ["protected-memory-paxos", "disk-paxos"] {
        agree(&decide(protocol, 3, COLOURS, &[0, 2]), &["red", "blue"]);
    }
}

#[test]
fn three_processes_decide_by_messages() {
    agree(&decide("paxos", 0, COLOURS, &[2]), &["blue"]);
    agree(&decide("fast-paxos", 0, [None, Some("green"), None], &[]), &["green"]);
}

/// Only the process that leads, or that leads by itself, needs a value.
#[test]
fn learners_need_no_value() {
    agree(&decide("disk-paxos", 3, [None, Some("green"), None], &[1]), &["green"]);
    agree(&decide("paxos", 0, [None, None, Some("blue")], &[2]), &["blue"]);
}

/// Such processes decided the empty value for all.
#[test]
fn process_that_would_propose_no_value_is_refused() {
    let lead = "--lead needs a VALUE to propose; give one, or leave --lead to another process";
    for (protocol, id, leads, says) in [
        ("paxos", "1", true, lead),
        ("disk-paxos", "1", true, lead),
        ("protected-memory-paxos", "0", true, lead),
        ("aligned-paxos", "0", true, lead),
        ("robust-backup", "1", true, lead),
        ("fast-and-robust", "1", true, lead),
        (
            "fast-and-robust",
            "0",
            false,
            "process 0 needs a VALUE to propose, because it leads fast-and-robust",
        ),
        ("cheap-quorum", "0", false, "process 0 needs a VALUE to propose"),
        ("non-equivocating-broadcast", "0", false, "process 0 needs a VALUE to propose"),
        ("hbo", "1", false, "each process of hbo needs a VALUE to propose: true or false"),
    ] {
        let mut arguments =
            words(&["propose", protocol, "--id", id, "--processes", "127.0.0.1:1,127.0.0.1:2"]);
        arguments.extend(leads.then(|| "--lead".to_owned()));
        let output = output(&mut mitra(&arguments));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{protocol}: {errors}");
        assert!(errors.contains(says) && errors.lines().count() == 1, "{protocol}: {errors}");
    }
}

/// The lines of several processes in one terminal can be told apart.
#[test]
fn decision_names_its_process() {
    let network = OwnNetwork::new();
    let doors = doors(&network);
    let start = |id: &str| {
        let arguments = ["propose", "fast-paxos", "blue", "--id", id, "--processes", &doors, "--rails", "1"];
        TestProcess::start(&mut mitra(&words(&arguments)))
    };
    for (id, process) in ["0", "1", "2"].map(|id| (id, start(id))) {
        let output = process.output().expect("it ends");
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("process {id}: decided blue\n"));
    }
}

#[test]
fn three_processes_decide_by_coin_flips() {
    agree(&decide("hbo", 3, [Some("true"), Some("false"), Some("true")], &[]), &["true", "false"]);
}

#[test]
fn three_processes_decide_with_byzantine_protocols() {
    let dir = TempDir::new().expect("a directory");
    let make = |id: usize| {
        let file = dir.path().join(format!("key{id}"));
        let made = output(&mut mitra(&words(&["key", &file.display().to_string()])));
        String::from_utf8(made.stdout).expect("a line")
    };
    let keys: String = (0..3).map(make).collect();
    std::fs::write(dir.path().join("keys"), keys).expect("written");
    let decide = |protocol, leads| decide_signed(protocol, 3, COLOURS, leads, Some(dir.path()));
    agree(&decide("non-equivocating-broadcast", &[]), &["red"]);
    agree(&decide("cheap-quorum", &[]), &["red"]);
    agree(&decide("fast-and-robust", &[]), &["red"]);
    agree(&decide("robust-backup", &[1]), &["green"]);
}

#[test]
fn survivors_elect_a_new_leader() {
    let memory = Memory::start("omega");
    let network = OwnNetwork::new();
    let doors = doors(&network);
    let mut election = Election::start(|id| {
        let name = id.to_string();
        let elect = ["elect", "--id", &name, "--processes", &doors, "--memory", &memory.address];
        let json: &[&str] = if id == 2 { &["--json"] } else { &[] };
        mitra(&words(&[&elect, &["--rails", "1"][..], json].concat()))
    });
    election.leaders_before_and_after_a_kill();
}

/// The words of `mitra elect` and `mitra propose` name processes in the same way.
#[test]
fn store_names_its_leader() {
    // Older scripts give each memory node a number.
    let memory = Memory::start_with(&["memory", "kv", "--processes", "1", "--memories", "1", "--id", "0"]);
    let network = OwnNetwork::new();
    let [door, clients] = [7101, 6401].map(|port| format!("{}:{port}", network.address(1)));
    let serve = ["kv", "serve", "--id", "0", "--processes", &door, "--clients", &clients, "--rails", "1"];
    let serve = [&serve[..], &["--memories", &memory.address]].concat();
    let mut program = TestProcess::start(mitra(&words(&serve)).stderr(Stdio::piped()));
    let mut lines = BufReader::new(program.stderr.take().expect("piped")).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "mitra: the leader is process 0"));
}

/// The process is silent on standard output, as long as the election has no state that it knows.
#[test]
fn process_that_reaches_no_memory_node_says_so() {
    let network = OwnNetwork::new();
    let (doors, memory) = (doors(&network), format!("{}:7001", network.address(1)));
    let arguments = ["elect", "--id", "1", "--processes", &doors, "--memory", &memory, "--rails", "1"];
    let mut program = TestProcess::start(mitra(&words(&arguments)).stderr(Stdio::piped()));
    let mut said = String::new();
    BufReader::new(program.stderr.take().expect("piped")).read_line(&mut said).expect("a line");
    assert_eq!(
        said,
        format!(
            "mitra: the memory node {memory} does not answer, or knows an earlier process 1; start it, or start all again\n"
        )
    );
}

#[test]
fn bad_arguments_are_reported_in_one_line() {
    for (arguments, says) in [
        (&["memory", "raft"][..], "use kv, omega, or one of disk-paxos"),
        (&["memory", "paxos"], "paxos and fast-paxos use no memory nodes"),
        (&["memory", "fast-paxos"], "paxos and fast-paxos use no memory nodes"),
        (&["memory", "kv", "--listen", "0.0.0.0:0"], "--secret FILE"),
        (
            &["propose", "paxos", "--id", "3", "--processes", "127.0.0.1:1"],
            "--id 3 is not one of the 1 processes",
        ),
        (
            &["propose", "hbo", "maybe", "--id", "0", "--processes", "127.0.0.1:1"],
            "hbo needs one memory node per process",
        ),
        (
            &[
                "kv",
                "serve",
                "--id",
                "0",
                "--processes",
                "127.0.0.1:1",
                "--clients",
                "127.0.0.1:2,127.0.0.1:3",
                "--memories",
                "127.0.0.1:4",
            ],
            "--processes has 1 addresses, but --clients has 2",
        ),
        (
            &["propose", "cheap-quorum", "blue", "--id", "0", "--processes", "127.0.0.1:1"],
            "give --key and --keys",
        ),
        (&["memory", "kv", "--fault", "rail7 down"], "--fault"),
    ] {
        let output = output(&mut mitra(&words(arguments)));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(errors.contains(says) && errors.lines().count() == 1, "{arguments:?}: {errors}");
    }
}
