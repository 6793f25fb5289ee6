//! Commands that run to their end.

use libtest_mimic::Failed;
use mitra_test_process::output;
use serde_json::Value;

use crate::Devices;

pub fn devices_are_listed_and_qualified(devices: &Devices) -> Result<(), Failed> {
    let report = devices.json(&["devices"]);
    let listed = report["hardware"].as_array().expect("a list");
    for name in devices.ends.iter().flatten() {
        let device = listed.iter().find(|device| device["name"] == **name).expect("the device");
        assert!(device["address"].is_string() && device["refused"].is_null(), "{device}");
    }
    let qualification = devices.qualification();
    let nic = &qualification["nics"][0];
    assert_eq!(nic["name"], devices.ends[0][0].as_str());
    assert_ne!(nic["verdict"], "no-fence", "{nic}");
    let file = qualification["file"].as_str().expect("a file");
    let saved: Value = serde_json::from_slice(&std::fs::read(file)?)?;
    assert_eq!(saved["results"].as_array().map(Vec::len), Some(1), "{saved}");
    if devices.are_rxe() {
        assert_eq!((&nic["verdict"], &nic["probe"]["passed"]), (&"psn-exact".into(), &true.into()), "{nic}");
    }
    Ok(())
}

/// Without saved results, an atomic may end as `ValueLost`, and what was executed behind it as
/// `ExecutedBehindError`. With an exact PSN nothing is indeterminate.
pub fn demo_is_exactly_once(devices: &Devices) -> Result<(), Failed> {
    let has_exact_psn = devices.have_exact_psn();
    let both = devices.of_both();
    let demo = ["demo", "--device", &both, "--rounds", "2", "--ops", "300", "--policy", "exact"];
    let report = devices.json(&demo);
    let exact = &report["policies"]["exact"];
    println!("{}", exact["totals"]);
    for round in exact["rounds"].as_array().expect("a list") {
        assert_eq!((&round["struck"], &round["client_ended"]), (&true.into(), &Value::Null), "{round}");
        assert!(round["moves"].as_u64() >= Some(1), "{round}");
    }
    for count in ["lost", "doubled", "wrong_value"] {
        assert_eq!(exact["totals"][count], 0, "{count}: {}", exact["totals"]);
    }
    if has_exact_psn {
        assert_eq!(exact["totals"]["indeterminate"], 0, "{}", exact["totals"]);
    }
    Ok(())
}

/// Returns the names of the rows of a benchmark.
fn rows(report: &Value) -> Vec<&str> {
    let rows = report["rows"].as_array().expect("a list");
    for row in rows {
        println!("{} {} {}", row["name"].as_str().unwrap_or_default(), row["median"], row["unit"]);
    }
    rows.iter().filter_map(|row| row["name"].as_str()).collect()
}

pub fn latency_and_bandwidth(devices: &Devices) -> Result<(), Failed> {
    devices.qualification();
    let both = devices.of_both();
    let latency = ["bench", "latency", "--device", &both, "--op", "write,faa", "--size", "8"];
    let report = devices.json(&[&latency[..], &["--iters", "100", "--blocks", "1"]].concat());
    let rows_of = |op: &str| ["qp", "vqp", "aa", "vqp+log"].map(|variant| format!("{op}/{variant}"));
    assert_eq!(rows(&report), [rows_of("write/8"), rows_of("faa/8")].concat());
    let bandwidth = ["bench", "bandwidth", "--device", &both, "--op", "write", "--only", "qp,vqp"];
    let report = devices.json(&[&bandwidth[..], &["--iters", "50", "--blocks", "1"]].concat());
    assert_eq!(rows(&report), ["write/65536/qp", "write/65536/vqp"]);
    Ok(())
}

/// A trial in which an operation was lost or executed twice ends the command with an error.
pub fn failover_of_a_reset_device(devices: &Devices) -> Result<(), Failed> {
    devices.qualification();
    let failover =
        ["bench", "failover", "--device", &devices.of_both(), "--trials", "2", "--in-flight", "16"];
    let report = devices.json(&failover);
    let names = rows(&report);
    for name in ["exact/fault_to_last", "exact/doubled", "exact/failed", "blanket/doubled"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    Ok(())
}

pub fn figures_of_varuna(devices: &Devices) -> Result<(), Failed> {
    devices.qualification();
    let both = devices.of_both();
    let varuna = ["bench", "varuna", "--device", &both, "--only", "failover", "--trials", "1"];
    let report = devices.json(&[&varuna[..], &["--in-flight", "16"]].concat());
    assert!(rows(&report).contains(&"failover/total"), "{report}");
    Ok(())
}

/// TPC-C for 10 seconds, at full size with one warehouse.
pub fn tpcc_keeps_its_conditions(devices: &Devices) -> Result<(), Failed> {
    devices.qualification();
    // One memory node, so that the store fits into the emulated machine.
    let options = ["--memories", "1", "--backups", "0"];
    let (_memory, address) = devices.memory(&[&["txn", "memory"], &options[..]].concat());
    let clients = devices.of_end(0);
    let local = ["txn", "local", "--nodes", &address, "--device", &clients, "--seconds", "10"];
    let ran = devices.json(&[&local[..], &options].concat());
    println!("TPC-C: {} committed in {} s", ran["committed"], ran["seconds"]);
    assert!(ran["committed"].as_u64() > Some(0), "{ran}");
    assert_eq!(ran["check"]["is_clean"], true, "{ran}");
    for number in 1..=12 {
        assert_eq!(ran["check"]["consistency"][format!("c{number}")], true, "{ran}");
    }
    Ok(())
}

pub fn what_devices_cannot_do_is_refused(devices: &Devices) -> Result<(), Failed> {
    let (both, end) = (devices.of_both(), devices.of_end(0));
    for (words, says) in [
        (
            &["bench", "latency", "--device", &both, "--mtu", "1024"][..],
            "--mtu and --links are of software NICs",
        ),
        (
            &["memory", "kv", "--device", &end, "--fault", "rail0 down; rail1 noise drop=5ppm at 9s"],
            "`rail1 noise drop=5ppm at 9s`: ",
        ),
        (&["memory", "kv", "--device", "none0"], "this machine has no verbs device none0; it has "),
    ] {
        let said = devices.refusal(words);
        assert!(said.contains(says), "{words:?}: {said}");
    }
    Ok(())
}

/// A memory node whose rails fail and come back while it runs.
pub fn links_fail_on_demand(devices: &Devices) -> Result<(), Failed> {
    devices.qualification();
    let (memory, _) = devices.memory(&["memory", "kv", "--fault", "rail1 down"]);
    let pid = memory.id().to_string();
    let states = || {
        let listed = devices.json(&["fault", "--pid", &pid, "--list"]);
        let rails = listed["processes"][0]["rails"].as_array().expect("its rails").clone();
        rails.iter().map(|rail| rail["state"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(states(), ["up", "down"]);
    devices.json(&["fault", "--pid", &pid, "rail0 down; rail1 up"]);
    assert_eq!(states(), ["down", "up"]);
    let refused = output(&mut devices.mitra(&["fault", "--pid", &pid, "rail0 up; rail1 nic-hung at 9s"]));
    let printed = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert_eq!((refused.status.code(), printed.lines().count()), (Some(1), 1), "{printed}");
    let says = "which can be made to fail by down, up and nic-dead only";
    assert!(printed.contains("`rail1 nic-hung at 9s`: ") && printed.contains(says), "{printed}");
    assert_eq!(states(), ["down", "up"]);
    devices.json(&["fault", "--pid", &pid, "rail0 up; rail1 nic-dead"]);
    assert_eq!(states(), ["up", "failed"]);
    Ok(())
}
