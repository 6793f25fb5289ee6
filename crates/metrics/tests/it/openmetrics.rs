//! The OpenMetrics text, as the parser of prometheus_client reads it, and the table of the
//! documentation.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::Stdio;

use mitra_metrics::{FAMILIES, Kind, Snapshot, encode};
use mitra_test_process::{TestProcess, command, setup_dir};
use serde_json::Value;

/// Reads OpenMetrics on standard input and prints the families as JSON. The parser refuses what the
/// standard forbids.
const PARSE: &str = "
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
families = [{'name': f.name, 'type': f.type, 'unit': f.unit, 'help': f.documentation,
             'samples': [[s.name, s.labels, s.value] for s in f.samples]}
            for f in parse(sys.stdin.read())]
print(json.dumps(families))
";

fn parse(text: &str) -> Result<Vec<Value>, String> {
    let python = setup_dir().join("venv/bin/python3");
    let mut python = command(&python);
    python.args(["-c", PARSE]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut python = TestProcess::start(&mut python);
    let mut input = python.stdin.take().expect("it is piped");
    input.write_all(text.as_bytes()).expect("python reads its input");
    drop(input);
    let output = python.output().expect("python ends");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!errors.contains("ModuleNotFoundError"), "{errors}; run `cargo xtask setup`");
    if !output.status.success() {
        return Err(errors);
    }
    Ok(serde_json::from_slice(&output.stdout).expect("python prints JSON"))
}

#[test]
fn prometheus_client_reads_every_family_and_sample() {
    let text = encode(&crate::sample_snapshot::snapshot());
    let families = parse(&text).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    assert_eq!(families.len(), FAMILIES.len(), "{text}");
    for (parsed, family) in families.iter().zip(FAMILIES) {
        assert_eq!(parsed["name"], family.name);
        assert_eq!(parsed["type"], family.kind.name(), "{}", family.name);
        assert_eq!(parsed["unit"], family.unit().unwrap_or_default(), "{}", family.name);
        assert_eq!(parsed["help"], family.help);
        let documented: BTreeSet<&str> =
            family.labels.split(", ").filter(|label| !label.is_empty()).collect();
        for sample in parsed["samples"].as_array().unwrap() {
            let labels: BTreeSet<&str> = sample[1].as_object().unwrap().keys().map(String::as_str).collect();
            // Of a histogram's samples, only the buckets have a bound.
            let has_bound =
                family.kind == Kind::Histogram && !sample[0].as_str().unwrap().ends_with("_bucket");
            let missing: Vec<_> = documented.difference(&labels).copied().collect();
            assert_eq!(missing, if has_bound { vec!["le"] } else { vec![] }, "{sample}");
            assert!(labels.is_subset(&documented), "{sample}");
        }
    }
    let value = |name: &str, labels: &[(&str, &str)]| {
        let labels: BTreeMap<_, _> = labels.iter().copied().collect();
        let labels = serde_json::to_value(labels).unwrap();
        let samples = families.iter().flat_map(|family| family["samples"].as_array().unwrap());
        let found: Vec<_> = samples.filter(|s| s[0] == name && s[1] == labels).collect();
        assert_eq!(found.len(), 1, "{name} {labels}");
        found[0][2].as_f64().unwrap()
    };
    assert!(!text.contains("vqp=\"19\""), "a closed vQP has no samples: {text}");
    let rail0 = ("rail", "0");
    assert_eq!(value("mitra_rail_up", &[rail0]), 1.0);
    assert_eq!(value("mitra_rail_up", &[("rail", "1")]), 0.0);
    let info = |address, device| [("address", address), ("device", device)];
    let [address, device] = info("127.0.0.5", "mlx5_0");
    assert_eq!(value("mitra_rail_info", &[rail0, address, device]), 1.0);
    let [address, device] = info("::1", "");
    assert_eq!(value("mitra_rail_info", &[("rail", "1"), address, device]), 1.0);
    assert_eq!(value("mitra_rail_received_bytes_total", &[rail0]), 1e6);
    assert_eq!(value("mitra_rail_transmitted_packets_total", &[rail0]), 20.0);
    assert_eq!(value("mitra_rail_dropped_packets_total", &[rail0, ("reason", "no_qp")]), 3.0);
    assert_eq!(value("mitra_rail_injected_faults_total", &[rail0, ("kind", "dropped")]), 5.0);
    assert_eq!(value("mitra_rail_nic_events_total", &[rail0, ("event", "acks_sent")]), 6.0);
    assert_eq!(value("mitra_rail_failures_detected_total", &[rail0, ("detector", "completion")]), 3.0);
    for (name, expected) in [
        ("failures_without_move", 11.0),
        ("fences", 12.0),
        ("failovers", 3.0),
        ("failbacks", 13.0),
        ("recoveries", 14.0),
        ("inflight_operations", 20.0),
        ("executed_operations", 7.0),
        ("torn_operations", 15.0),
        ("ambiguous_operations", 2.0),
        ("replayed_operations", 9.0),
        ("failed_operations", 16.0),
        ("inflight_bytes", 4096.0),
        ("replayed_bytes", 1024.0),
    ] {
        assert_eq!(value(&format!("mitra_rail_{name}_total"), &[rail0]), expected, "{name}");
    }
    for (name, expected) in [
        ("posted_operations", 1000.0),
        ("completed_operations", 990.0),
        ("failovers", 2.0),
        ("replayed_operations", 9.0),
        ("failed_operations", 16.0),
        ("rejected_messages", 4.0),
    ] {
        assert_eq!(value(&format!("mitra_vqp_{name}_total"), &[("vqp", "17")]), expected, "{name}");
    }
    assert_eq!(value("mitra_vqps_closed_total", &[("reason", "PeerClosed")]), 2.0);
    assert_eq!(value("mitra_vqp_outstanding_operations", &[("vqp", "17")]), 10.0);
    assert_eq!(value("mitra_vqp_active", &[("vqp", "17")]), 0.0);
    assert_eq!(value("mitra_vqp_active", &[("vqp", "18")]), 1.0);
    assert_eq!(value("mitra_vqp_unpolled_seconds", &[("vqp", "18")]), 0.0015);
    let total = ("phase", "total");
    // The buckets contain 0, 1, 2, … durations, so below the third bound there are 0 + 1 + 2.
    assert_eq!(value("mitra_failover_duration_seconds_bucket", &[total, ("le", "0.000005")]), 3.0);
    assert_eq!(value("mitra_failover_duration_seconds_bucket", &[total, ("le", "+Inf")]), 300.0);
    assert_eq!(value("mitra_failover_duration_seconds_count", &[total]), 300.0);
    assert_eq!(value("mitra_failover_duration_seconds_sum", &[total]), 1.234_567_891);
}

#[test]
fn families_without_samples_are_left_out() {
    let families = parse(&encode(&Snapshot::default())).expect("valid");
    let names: Vec<_> = families.iter().map(|family| family["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["mitra_build", "mitra_queue_pairs", "mitra_vqps", "mitra_vqps_recovering"]);
}

/// A parser that accepted everything would show nothing.
#[test]
fn parser_refuses_what_the_standard_forbids() {
    let text = encode(&crate::sample_snapshot::snapshot());
    for (from, to) in [
        ("# EOF\n", ""),
        ("mitra_rail_failovers_total{", "mitra_rail_failovers{"),
        ("# UNIT mitra_rail_received_bytes bytes", "# UNIT mitra_rail_received_bytes seconds"),
        ("{rail=\"0\"} 3", "{rail=\"0} 3"),
        ("# TYPE mitra_vqps gauge\n", "# TYPE mitra_vqps gauge\n# TYPE mitra_vqps gauge\n"),
    ] {
        assert!(text.contains(from), "{from}");
        assert!(parse(&text.replace(from, to)).is_err(), "{from} -> {to}");
    }
}

#[test]
fn documentation_lists_every_family() {
    let page = include_str!("../../../../docs/observability.md");
    let section = page.split_once("## Metrics\n").expect("the page has the section").1;
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| `mitra_")).collect();
    let expected: Vec<String> = FAMILIES
        .iter()
        .map(|f| format!("| `{}` | {} | {} | {} |", f.sample_name(), f.kind.name(), f.labels, f.help))
        .collect();
    assert_eq!(rows, expected, "the table should be:\n{}", expected.join("\n"));
}
