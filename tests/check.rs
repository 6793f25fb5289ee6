//! The commands `mitra check` and `mitra sim`: JSON fields and exit codes.

use std::process::{Command, Output};

fn mitra(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mitra")).args(words).output().expect("the program runs")
}

fn json(words: &[&str]) -> serde_json::Value {
    let output = mitra(words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

#[test]
fn protocol_is_explored_exhaustively() {
    let report = json(&["check", "paxos", "--json"]);
    assert!(report["states"].as_u64().unwrap() > 10_000, "{report}");
    assert_eq!(report["holds"], serde_json::json!(["agreement", "validity"]));
    assert_eq!(report["counterexample_steps"], serde_json::json!([]));
}

#[test]
fn all_protocols_run_from_seeds() {
    let list = mitra(&["check", "--list"]).stdout;
    let list = String::from_utf8(list).unwrap();
    let names: Vec<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.contains(&"protected-memory-paxos"), "{list}");
    for name in names {
        let report = json(&["sim", "--workload", name, "--seeds", "300", "--from", "1000000", "--json"]);
        assert_eq!((&report["violations"], &report["stuck"]), (&0.into(), &0.into()), "{report}");
        assert_eq!(report["seeds"], 300);
        let many = |field: &str| report[field].as_u64().unwrap();
        assert!(many("operations") > 3_000 && many("faults") > 10, "{report}");
    }
}

#[test]
fn workloads_over_simulated_nics_run_from_seeds() {
    let names = json(&["sim", "--list", "--json"]);
    assert!(names.as_array().unwrap().contains(&"paxos".into()), "{names}");
    for name in mitra_sim::seeded::WORKLOADS.iter().map(|workload| workload.name) {
        assert!(names.as_array().unwrap().contains(&name.into()), "{names}");
        let report = json(&["sim", "--workload", name, "--seeds", "20", "--from", "7", "--json"]);
        let empty = serde_json::json!({});
        assert_eq!((&report["violations"], &report["stuck"]), (&0.into(), &0.into()), "{report}");
        assert_eq!((&report["by_checker"], &report["first"]), (&empty, &serde_json::Value::Null), "{report}");
        assert!(report["operations"].as_u64().unwrap() > 20, "{report}");
    }
}

#[test]
fn unknown_protocol_is_reported_with_the_known_ones() {
    for words in [&["check", "raft"][..], &["sim", "--workload", "raft"]] {
        let output = mitra(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2));
        assert!(said.contains("disk-paxos") && said.lines().count() == 1, "{said}");
    }
}
