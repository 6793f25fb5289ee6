//! The commands `mitra txn memory`, `local` and `check`: each memory node is a process.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use mitra_test_process::{TestProcess, command, output};
use serde_json::Value;

fn txn(arguments: &[&str]) -> Command {
    let mut command = command(env!("CARGO_BIN_EXE_mitra"));
    command.arg("txn").args(arguments).stdout(Stdio::piped());
    command
}

/// Runs a command with `--json` to its end. Returns its exit code and the printed object.
fn run(arguments: &[&str]) -> (Option<i32>, Value) {
    let Output { status, stdout, .. } = output(txn(arguments).arg("--json"));
    (status.code(), serde_json::from_slice(&stdout).unwrap_or_default())
}

/// Starts a memory node. Returns its address too.
fn memory(id: &str, options: &[&str]) -> (TestProcess, String) {
    let mut program = TestProcess::start(txn(&["memory", "--id", id, "--json"]).args(options));
    let mut line = String::new();
    BufReader::new(program.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    let told: Value = serde_json::from_str(&line).expect("an object");
    assert!(told["bytes"].as_u64() > Some(0), "{told}");
    let address = told["address"].as_str().expect("where it listens").to_owned();
    (program, address)
}

/// Checks that a check has found nothing, by the field names that stay stable.
fn assert_clean(check: &Value) {
    assert_eq!(check["is_clean"], true, "{check}");
    for kind in ["held_locks", "torn", "differing", "index_errors"] {
        assert_eq!(check[kind]["count"], 0, "{check}");
        assert_eq!(check[kind]["first"], serde_json::json!([]), "{check}");
    }
    assert!(check["recovered_locks"].is_u64(), "{check}");
}

#[test]
fn store_in_memory_processes_is_clean_after_a_rail_has_failed() {
    let options = ["--workload", "smallbank", "--accounts", "500"];
    // The failure comes when the thousandth message has been executed, long after the load.
    let fault = [&options[..], &["--fault", "rail0 link-down@5:1000"]].concat();
    let memories = [memory("0", &fault), memory("1", &options), memory("2", &options)];
    let nodes = memories.iter().map(|(_, address)| address.as_str()).collect::<Vec<_>>().join(",");
    let with = |words: &[&str]| run(&[words, &options, &["--nodes", &nodes]].concat());

    let (code, ran) = with(&["local", "--seconds", "2"]);
    assert_eq!(code, Some(0), "{ran}");
    assert!(ran["committed"].as_u64() > Some(0) && ran["rolled_back"].is_u64(), "{ran}");
    // A busy machine may delay a heartbeat for so long that another rail fails over, too.
    assert!(ran["failovers"].as_u64() >= Some(1), "{ran}");
    assert_eq!(ran["is_full"], false, "{ran}");
    assert!(ran["total"]["found"].is_i64(), "{ran}");
    assert_eq!(ran["total"]["found"], ran["total"]["expected"], "{ran}");
    assert_clean(&ran["check"]);

    let (code, check) = with(&["check"]);
    assert_eq!(code, Some(0), "{check}");
    assert_clean(&check);
    assert_eq!(check["records"], serde_json::json!({"savings": 500, "checking": 500}));
    assert_eq!(check["consistency"], Value::Null, "the conditions are those of TPC-C");

    // `local` refuses memory nodes that a coordinator has used. `check` refuses a store with other
    // options.
    assert_eq!(with(&["local"]).0, Some(2));
    let other = run(&["check", "--workload", "smallbank", "--accounts", "5000", "--nodes", &nodes]);
    assert_eq!(other.0, Some(2));
}

#[test]
fn tpcc_keeps_its_conditions() {
    let (code, ran) = run(&["local", "--seconds", "1"]);
    assert_eq!(code, Some(0), "{ran}");
    assert!(ran["committed"].as_u64() > Some(0), "{ran}");
    let check = &ran["check"];
    assert_clean(check);
    for number in 1..=12 {
        assert_eq!(check["consistency"][format!("c{number}")], true, "{check}");
    }
    assert_eq!(check["violations"]["count"], 0, "{check}");
    assert_eq!(check["records"]["item"], 100_000, "{check}");
}

#[test]
fn result_in_words_says_what_was_checked() {
    let output =
        output(&mut txn(&["local", "--workload", "smallbank", "--accounts", "20", "--seconds", "1"]));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(output.status.code(), Some(0), "{text}");
    for line in
        ["savings: 20 records", "held locks: 0", "torn records: 0", "index errors: 0", "nothing is wrong"]
    {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
}

#[test]
fn store_that_was_never_loaded_violates_conditions() {
    let memories = ["0", "1", "2"].map(|id| memory(id, &[]));
    let nodes = memories.iter().map(|(_, address)| address.as_str()).collect::<Vec<_>>().join(",");
    let (code, check) = run(&["check", "--nodes", &nodes]);
    assert_eq!(code, Some(1), "{check}");
    assert_eq!(check["is_clean"], false, "{check}");
    assert_eq!(check["consistency"]["c1"], false, "{check}");
    assert!(check["violations"]["count"].as_u64() > Some(0), "{check}");
    assert_eq!(check["index_errors"]["count"], 0, "{check}");
}

#[test]
fn coordinator_without_a_rail_has_lost_the_store() {
    let options = ["--workload", "smallbank", "--accounts", "100"];
    // The NIC fails during the transactions.
    let fault = [&options[..], &["--rails", "1", "--fault", "rail0 nic-dead@5:1000"]].concat();
    let (_memory, address) = memory("0", &[&fault[..], &["--memories", "1", "--backups", "0"]].concat());
    let local = ["local", "--memories", "1", "--backups", "0", "--rails", "1", "--nodes", &address];
    let output = output(txn(&[&local, &options[..]].concat()).stderr(Stdio::piped()));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the store cannot be used") && said.contains("memory node 0 is lost"), "{said}");
}
