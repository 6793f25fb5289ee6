//! The commands `mitra check` and `mitra sim`: JSON fields and exit codes.

use std::process::Output;

use mitra_test_process::{command, output};

fn mitra(words: &[&str]) -> Output {
    output(command(env!("CARGO_BIN_EXE_mitra")).args(words))
}

fn json(words: &[&str]) -> serde_json::Value {
    let output = mitra(words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

#[test]
fn protocol_is_explored_exhaustively() {
    let report = json(&["check", "hbo", "--json"]);
    assert!(report["states"].as_u64().unwrap() > 10_000, "{report}");
    assert_eq!(report["holds"], serde_json::json!(["agreement", "validity"]));
    assert_eq!(report["counterexample_steps"], serde_json::json!([]));
}

/// The steps of each theorem have the same effect on the software NIC as in the model.
#[test]
fn steps_of_each_theorem_are_replayed_on_the_software_nic() {
    let list = String::from_utf8(mitra(&["check", "--list"]).stdout).unwrap();
    for (name, histories) in [
        ("indistinguishability", &[(0, 0, 0), (1, 0, 0)][..]),
        ("double-fadd", &[(2, 0, 2)]),
        ("cas-reset", &[(2, 0, 1)]),
        ("aba", &[(2, 0, 1)]),
        ("late-request", &[(2, 0, 2)]),
    ] {
        assert!(list.lines().any(|line| line.starts_with(&format!("{name} "))), "{list}");
        let report = json(&["check", name, "--replay", "--json"]);
        assert!(report["counterexample_steps"].as_array().unwrap().len() > 2, "{report}");
        assert!(report["states"].as_u64().unwrap() > 5 && report["counterexample"].is_null(), "{report}");
        let field = |history: &serde_json::Value, name: &str| history[name].as_u64().unwrap();
        let replayed = report["replayed"].as_array().unwrap().iter();
        let mut replayed: Vec<_> = replayed
            .map(|history| ["executions", "completions", "word"].map(|name| field(history, name)))
            .map(|[executions, completions, word]| (executions, completions, word))
            .collect();
        replayed.sort_unstable();
        assert_eq!(replayed, histories, "{report}");
        let ends = report["on_a_vqp"].as_array().unwrap();
        assert_eq!(ends.len(), histories.len(), "{report}");
        for end in ends {
            let fields = ["executions", "completions", "value"].map(|name| field(end, name));
            assert_eq!(fields, [1, 1, 0], "{report}");
        }
    }
}

/// In the model `fence-evidence-replay`, the failover works.
#[test]
fn run_of_fence_evidence_and_replay_is_replayed_on_the_software_nic() {
    let report = json(&["check", "fence-evidence-replay", "--replay", "--json"]);
    assert_eq!(report["replayed"][0]["executions"], 4, "{report}");
    let steps = report["example_steps"].as_array().unwrap().iter();
    let fences = steps.filter(|step| step.as_str().unwrap().contains("is fenced")).count();
    assert_eq!(fences, 2, "{report}");
}

#[test]
fn protocol_has_no_steps_to_replay() {
    let output = mitra(&["check", "paxos", "--replay"]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("paxos is a protocol") && error.contains("late-request"), "{error}");
}

#[test]
fn all_protocols_run_from_seeds() {
    let list = json(&["check", "--list", "--json"]);
    let names: Vec<&str> =
        list["protocols"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"protected-memory-paxos"), "{list}");
    for name in names {
        let report = json(&["sim", "--workload", name, "--seeds", "100", "--from", "1000000", "--json"]);
        assert_eq!((&report["violations"], &report["stuck"]), (&0.into(), &0.into()), "{report}");
        assert_eq!(report["seeds"], 100);
        let many = |field: &str| report[field].as_u64().unwrap();
        assert!(many("operations") > 1_000 && many("faults") > 3, "{report}");
    }
}

#[test]
fn workloads_over_simulated_nics_run_from_seeds() {
    let names = json(&["sim", "--list", "--json"]);
    assert!(names.as_array().unwrap().contains(&"paxos".into()), "{names}");
    for name in mitra_sweep::seeded::WORKLOADS.iter().map(|workload| workload.name) {
        assert!(names.as_array().unwrap().contains(&name.into()), "{names}");
        let report = json(&["sim", "--workload", name, "--seeds", "10", "--from", "7", "--json"]);
        let empty = serde_json::json!({});
        assert_eq!((&report["violations"], &report["stuck"]), (&0.into(), &0.into()), "{report}");
        assert_eq!((&report["by_checker"], &report["first"]), (&empty, &serde_json::Value::Null), "{report}");
        assert!(report["operations"].as_u64().unwrap() > 20, "{report}");
    }
}

/// The seed in which a late packet breaks the baseline `delay`.
#[test]
fn baseline_workload_prints_the_seed_that_breaks_it() {
    let names = json(&["sim", "--list", "--json"]);
    assert!(names.as_array().unwrap().contains(&"late-packet-delay".into()), "{names}");
    let output = mitra(&["sim", "--workload", "late-packet-delay", "--seeds", "1", "--from", "1"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("mitra sim --workload late-packet-delay --seeds 1 --from 1"), "{error}");
    let found = String::from_utf8(output.stdout).unwrap();
    assert!(found.contains("\n1 seed from 1, ") && found.contains(": 1 violation, 0 stuck\n"), "{found}");
    assert!(found.ends_with("doubled: 1 seed\n"), "{found}");
}

#[test]
fn shards_together_are_the_whole_sweep() {
    let words = ["sim", "--workload", "rc", "--seeds", "11", "--from", "3", "--json"];
    let whole = json(&words);
    let shards = ["1/3", "2/3", "3/3"].map(|shard| json(&[&words[..], &["--shard", shard]].concat()));
    for field in ["seeds", "operations", "faults"] {
        let sum: u64 = shards.iter().map(|shard| shard[field].as_u64().unwrap()).sum();
        assert_eq!(whole[field], sum, "{field}");
    }
    assert_eq!(shards.map(|shard| shard["seeds"].as_u64().unwrap()), [4, 4, 3]);
}

#[test]
fn sweep_by_time_begins_at_a_fresh_seed_and_prints_it() {
    let words = ["sim", "--workload", "packets", "--minutes", "0.002", "--json"];
    let [first, second] = [0, 1].map(|_| {
        let output = mitra(&words);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            said,
            format!("packets: seeds from {}\n", report["from"]),
            "nothing but the seed is printed"
        );
        assert!(report["seeds"].as_u64().unwrap() > 0, "{report}");
        report["from"].as_u64().unwrap()
    });
    assert_ne!(first, second);
    let report = json(&[&words[..], &["--from", "77", "--shard", "2/2"]].concat());
    assert_eq!(report["from"], 77);
}

#[test]
fn seeds_that_run_twice_repeat() {
    for name in ["failover", "rc", "paxos"] {
        let report = json(&["sim", "--workload", name, "--seeds", "5", "--twice", "--json"]);
        assert_eq!((&report["violations"], &report["seeds"]), (&0.into(), &5.into()), "{report}");
        assert_eq!(report["false_alarms"].is_u64(), name == "failover", "{report}");
    }
}

#[test]
fn shrunk_world_is_run_and_drawn() {
    let directory = tempfile::tempdir().unwrap();
    let page = directory.path().join("seed.html");
    let words =
        ["sim", "--workload", "failover", "--from", "11", "--shrunk", "faults=0,operations=3+2", "--json"];
    let report = json(&[&words[..], &["--report", page.to_str().unwrap()]].concat());
    assert_eq!((&report["seeds"], &report["operations"]), (&1.into(), &5.into()), "{report}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("Seed 11 of the workload failover") && page.contains("<svg"), "{page}");
}

/// Few seeds leave cells empty, which is a failure although no checker finds anything.
#[test]
fn coverage_counts_what_failures_met_and_names_what_they_did_not() {
    let words = ["sim", "--workload", "failover", "--seeds", "30", "--coverage"];
    let output = mitra(&[&words[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["violations"], &report["stuck"]), (&0.into(), &0.into()));
    let cells = report["cells"].as_array().unwrap();
    let count = |field: &str, name: &str| -> u64 {
        let of_it = cells.iter().filter(|cell| cell[field] == name);
        of_it.map(|cell| cell["count"].as_u64().unwrap()).sum()
    };
    assert!(count("failure", "link-down") > 0 && count("recovery", "proposed") > 0, "{report}");
    let empty = cells.iter().filter(|cell| cell["count"] == 0).count();
    assert_eq!(report["empty_cells"], empty);
    assert!(!cells.iter().any(|cell| cell["stage"] == 4 && cell["operation"] == "READ"), "{report}");
    let table = String::from_utf8(mitra(&words).stdout).unwrap();
    assert!(table.contains(&format!("{empty} of {} cells are empty", cells.len())), "{table}");
    assert_eq!(table.matches("  empty: stage").count(), empty, "{table}");
}

/// A protocol has no failures of NICs, so its coverage table would always be empty.
#[test]
fn coverage_of_a_workload_without_nics_that_fail_is_refused() {
    for name in ["paxos", "packets", "kv"] {
        let output = mitra(&["sim", "--workload", name, "--seeds", "1", "--coverage"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(name) && said.contains("failover") && said.lines().count() == 1, "{said}");
        assert!(output.stdout.is_empty());
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

/// Returns the names of the mutants, which the documentation lists.
fn mutants() -> Vec<&'static str> {
    let (_, table) = include_str!("../../docs/simulator.md").split_once("| mutant |").expect("a table");
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    rows.filter_map(|row| row.strip_prefix("| `")?.split_once('`').map(|(name, _)| name)).collect()
}

#[test]
#[cfg(not(feature = "mutants"))]
fn program_without_mutants_says_how_to_get_them() {
    for words in [&["sim", "--mutants"][..], &["sim", "--mutant", "fence-ignored", "--json"]] {
        let output = mitra(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("cargo run --features mutants"), "{said}");
    }
}

#[test]
#[cfg(feature = "mutants")]
fn mutant_is_found_by_its_name() {
    let listed = String::from_utf8(mitra(&["sim", "--mutants"]).stdout).unwrap();
    assert_eq!(listed.lines().collect::<Vec<_>>(), mutants());
    let report = json(&["sim", "--mutant", "fence-ignored", "--json"]);
    assert_eq!((&report["found"], &report["workload"]), (&true.into(), &"rc".into()), "{report}");
    assert!(report["seeds_needed"].as_u64() >= Some(1), "{report}");
    assert_eq!(mitra(&["sim", "--mutant", "none"]).status.code(), Some(2));
}
