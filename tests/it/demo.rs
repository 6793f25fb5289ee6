//! Tests of `mitra demo`: the result of the checker, the JSON fields, errors, and that no process
//! remains.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use mitra_test_process::{TestProcess, command, output};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const KINDS: [&str; 5] = ["write", "read", "send", "cas", "faa"];
const FIELDS: [&str; 12] = [
    "posted",
    "completed",
    "in_flight",
    "executed_before_failure",
    "replayed",
    "recovered",
    "indeterminate",
    "value_lost",
    "errors",
    "lost",
    "doubled",
    "wrong_value",
];

fn mitra() -> Command {
    command(env!("CARGO_BIN_EXE_mitra"))
}

fn demo(flags: &[&str]) -> Output {
    output(mitra().arg("demo").args(flags))
}

fn json(flags: &[&str]) -> (Option<i32>, Value) {
    let output = demo(&[flags, &["--json"]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    let value = serde_json::from_str(&text)
        .unwrap_or_else(|e| panic!("{e} in {text:?}; {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code(), value)
}

fn count(counts: &Value, field: &str) -> u64 {
    counts[field].as_u64().unwrap_or_else(|| panic!("{field} is missing in {counts}"))
}

/// Checks that all counts exist, and that the outcomes add up to the posted operations.
fn check_counts(counts: &Value) {
    for field in FIELDS {
        count(counts, field);
    }
    let participants: u64 =
        ["completed", "indeterminate", "value_lost", "errors"].map(|f| count(counts, f)).iter().sum();
    assert_eq!(count(counts, "posted"), participants, "{counts}");
}

#[test]
fn exact_is_exactly_once_and_blanket_is_not() {
    let (code, value) = json(&["--ops", "400"]);
    let (exact, blanket) = (&value["policies"]["exact"], &value["policies"]["blanket"]);
    for policy in [exact, blanket] {
        check_counts(&policy["totals"]);
        // On a busy machine, missed heartbeats may cause a move before the fault triggers.
        let rounds = policy["rounds"].as_array().unwrap();
        assert!(rounds.iter().all(|round| round["moves"] == 1));
        let all_struck = rounds.iter().all(|round| round["struck"] == true);
        for kind in KINDS {
            let counts = &policy["kinds"][kind];
            check_counts(counts);
            assert!(!all_struck || count(counts, "executed_before_failure") > 0, "{kind}: {counts}");
        }
        for field in FIELDS {
            let sum: u64 = KINDS.iter().map(|kind| count(&policy["kinds"][kind], field)).sum();
            assert_eq!(count(&policy["totals"], field), sum, "{field}");
        }
        assert_eq!(count(&policy["totals"], "posted"), 4000);
        assert!(policy["failover_us"].as_f64().is_some());
    }
    let t = &exact["totals"];
    for field in ["lost", "doubled", "wrong_value", "indeterminate", "value_lost", "errors"] {
        assert_eq!(count(t, field), 0, "{field}: {exact}");
    }
    assert!(count(t, "recovered") > 0 && count(t, "replayed") > 0);
    let t = &blanket["totals"];
    assert!(count(t, "lost") + count(t, "doubled") + count(t, "wrong_value") > 0, "{blanket}");
    assert_eq!((&value["verdict"]["ok"], code), (&Value::Bool(true), Some(0)), "{}", value["verdict"]);
}

#[test]
fn exact_with_completion_log_is_exactly_once() {
    let (code, value) = json(&["--ops", "300", "--log", "--policy", "exact"]);
    assert_eq!(code, Some(0), "{}", value["verdict"]);
    assert_eq!(count(&value["policies"]["exact"]["totals"], "completed"), 3000);
    assert!(value["policies"]["blanket"].is_null());
}

#[test]
fn dead_server_nic_causes_named_errors_only() {
    let flags = ["--ops", "300", "--rounds", "3", "--fault", "nic-dead@5:100", "--policy", "exact"];
    let (code, value) = json(&flags);
    let t = &value["policies"]["exact"]["totals"];
    for field in ["lost", "doubled", "wrong_value"] {
        assert_eq!(count(t, field), 0, "{t}");
    }
    assert_eq!(code, Some(0), "{}", value["verdict"]);
}

/// Under `none`, a connection closes when its rail fails, at any moment between two receives.
#[test]
fn policy_without_failover_has_results() {
    let (_, value) = json(&["--ops", "1000", "--policy", "transparent,none"]);
    for policy in ["transparent", "none"] {
        assert_eq!(value["policies"][policy]["rounds"].as_array().map(Vec::len), Some(10), "{policy}");
    }
}

#[test]
fn untriggered_fault_fails_the_verdict() {
    let flags = ["--ops", "100", "--rounds", "1", "--fault", "link-down@5:100000", "--policy", "exact"];
    let (code, value) = json(&flags);
    assert_eq!(code, Some(1));
    let why = value["verdict"]["failures"][0].as_str().unwrap();
    assert!(why.contains("link-down@5:100000"), "{why}");
}

#[test]
fn result_is_printed_although_the_report_cannot_be_written() {
    let output = demo(&["--ops", "100", "--rounds", "1", "--policy", "exact", "--report", "/dev/full"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("exact: 100 operations, every one exactly once"), "{text}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("cannot write /dev/full; choose a file on a disk with free space"), "{said}");
}

#[test]
fn text_report_and_captures() {
    let dir = tempfile::tempdir().unwrap();
    let (report, pcap) = (dir.path().join("out.html"), dir.path().join("pcap"));
    let flags = [
        "--ops",
        "300",
        "--rounds",
        "2",
        "--report",
        report.to_str().unwrap(),
        "--pcap",
        pcap.to_str().unwrap(),
    ];
    let output = demo(&flags);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("exact: 600 operations, every one exactly once, every value right"), "{text}");
    assert!(!text.contains('\x1b'), "colours although it is no terminal");
    let page = std::fs::read_to_string(report).unwrap();
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    for expected in ["<!doctype html>", "rail 0 fails", "prefers-color-scheme", "What the words mean"] {
        assert!(page.contains(expected), "{expected}");
    }
    for absent in ["<script", "http://", "https://", "NaN"] {
        assert!(!page.contains(absent), "{absent}");
    }
    // Two policies, two rounds, two sides, two rails.
    let captures: Vec<_> = std::fs::read_dir(pcap).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(captures.len(), 16);
    for capture in &captures {
        let decoded = decode(capture);
        // A capture that a process left unwritten at its end is malformed.
        assert_eq!((&decoded["icrc_bad"], &decoded["malformed"]), (&0.into(), &0.into()), "{capture:?}");
        let is_first_rail = capture.to_str().unwrap().contains("-rail0");
        assert!(!is_first_rail || decoded["packets"].as_u64().unwrap() > 100, "{capture:?}: {decoded}");
    }
}

/// On a slow machine a round ends before all operations are posted. Only the posted operations are
/// checked.
#[test]
fn round_that_ends_early_is_not_reported_as_a_violation() {
    let flags = ["--ops", "20000", "--rounds", "2", "--round-timeout", "20", "--policy", "exact"];
    let (_, value) = json(&flags);
    let t = &value["policies"]["exact"]["totals"];
    assert!(count(t, "posted") < 40_000, "{t}");
    for field in ["lost", "doubled", "wrong_value"] {
        assert_eq!(count(t, field), 0, "{field}: {value}");
    }
}

/// README quotes the result of the demo's default run, and shows a picture of its report.
#[test]
fn readme_shows_the_result_and_a_picture() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let output = demo(&["--policy", "exact"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let result = text.lines().find(|line| line.contains("exact: ")).unwrap_or_else(|| panic!("{text}"));
    assert!(readme.contains(result), "{result:?} is not in README.md");
    assert!(readme.contains("](docs/demo.png)"), "README.md does not show docs/demo.png");
    let picture = std::fs::read(root.join("docs/demo.png")).unwrap();
    assert!(picture.starts_with(b"\x89PNG\r\n\x1a\n"));
    assert!(picture.len() < 150_000, "{} bytes", picture.len());
}

fn decode(file: &Path) -> Value {
    let output = output(mitra().args(["decode", "--json"]).arg(file));
    serde_json::from_str(String::from_utf8(output.stdout).unwrap().lines().last().unwrap()).unwrap()
}

#[test]
fn bad_flags_are_refused_in_one_line_with_a_remedy() {
    for (flags, words) in [
        (&["--policy", "guess"][..], &["guess", "exact", "blanket"][..]),
        (&["--ops", "7"], &["--ops", "100..=20000"]),
        (&["--rounds", "none"], &["--rounds"]),
        (&["--in-flight", "0"], &["--in-flight", "1..=1024"]),
        (&["--fault", "link-down"], &["--fault", "link-down@6:40"]),
        (&["--fault", "link-down@9:1"], &["--fault", "stage"]),
        (&["--fault", "not-placed@8:40"], &["--fault", "nic-dead@8:40"]),
        (&["--opps", "5"], &["--opps", "--ops"]),
        (&["--report", "/nonexistent/out.html"], &["/nonexistent/out.html"]),
        (&["--pcap", "/dev/null/x"], &["/dev/null/x"]),
        (&["--device", "mlx5_0"], &["--device", "give two devices for both ends"]),
        (&["--device", "a,b", "--fault", "link-down@5:40"], &["--fault", "nic-dead@1:NTH"]),
        (&["--device", "a,b", "--pcap", "captured"], &["--pcap", "tcpdump"]),
    ] {
        let output = demo(flags);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{flags:?}: {text}");
        assert!(output.stdout.is_empty());
        for word in words {
            assert!(text.contains(word), "{flags:?}: {text}");
        }
    }
}

/// Starts a long demo and returns it with the id of its server process once it runs.
fn long_demo() -> (TestProcess, i32) {
    let mut mitra = mitra();
    mitra.args(["demo", "--rounds", "10000", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let demo = TestProcess::start(&mut mitra);
    let until = Instant::now() + Duration::from_secs(100);
    loop {
        let children = children_of(demo.id());
        if let [server] = children[..] {
            return (demo, server);
        }
        assert!(Instant::now() < until, "no server: {children:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn children_of(parent: u32) -> Vec<i32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit(") ").next().unwrap_or_default();
        fields.split(' ').nth(1).is_some_and(|ppid| ppid == parent.to_string())
    };
    let mut children: Vec<i32> = numbers.filter(is_child).collect();
    children.sort_unstable();
    children
}

/// Waits until the process has ended. A zombie that its new parent has not collected counts as
/// ended.
fn gone(pid: i32) {
    let runs = || {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !state.is_empty() && !state.contains(") Z ")
    };
    let until = Instant::now() + Duration::from_secs(100);
    while runs() {
        assert!(Instant::now() < until, "{pid} still runs");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn signal_ends_the_demo_with_the_code_of_the_shell() {
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let (mut demo, server) = long_demo();
        demo.signal(signal);
        assert_eq!(demo.wait().code(), Some(code));
        let mut lines = BufReader::new(demo.stderr.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "mitra: interrupted");
        gone(server);
    }
}

#[test]
fn killed_demo_leaves_no_processes() {
    let (mut demo, server) = long_demo();
    demo.signal(Signal::SIGKILL);
    demo.wait();
    gone(server);
}

#[test]
fn failure_of_the_server_ends_the_demo_with_an_error() {
    let (mut demo, server) = long_demo();
    kill(Pid::from_raw(server), Signal::SIGKILL).unwrap();
    assert_eq!(demo.wait().code(), Some(2));
    let text = std::io::read_to_string(demo.stderr.take().unwrap()).unwrap();
    assert!(text.contains("server process"), "{text}");
    gone(server);
}
