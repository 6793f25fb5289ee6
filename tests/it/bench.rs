//! Tests of `mitra bench`: short runs that must succeed (the benchmark verifies the transferred
//! data), the JSON fields, errors and Ctrl-C. No test compares a time or a rate with a limit,
//! because the machine may be busy.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use mitra_test_process::{
    BUILD_DEADLINE, OwnNetwork, TestProcess, command, once_per_run, output, output_within,
};
use nix::sys::signal::Signal;
use serde_json::Value;

fn mitra() -> Command {
    command(env!("CARGO_BIN_EXE_mitra"))
}

fn bench(args: &[&str]) -> Output {
    output(mitra().arg("bench").args(args))
}

/// Runs a benchmark that must succeed, and returns its JSON object.
fn json(args: &[&str]) -> Value {
    let output = output(mitra().arg("bench").args(args).arg("--json"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {errors}");
    assert!(errors.is_empty(), "progress is for terminals: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Builds the Raft baseline of `mitra kv` next to the `mitra` program, unless
/// `cargo test --workspace` has built it.
fn build_raft() {
    let dir = Path::new(env!("CARGO_BIN_EXE_mitra")).parent().unwrap();
    once_per_run(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("mitra-raft-baseline.built"), || {
        if dir.join("mitra-raft-baseline").exists() {
            return;
        }
        let mut cargo = command(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "mitra-raft-baseline", "--target-dir"]);
        cargo.arg(dir.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR"));
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        let output = output_within(&mut cargo, BUILD_DEADLINE);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cannot build mitra-raft-baseline: {errors}");
    });
}

fn row<'a>(report: &'a Value, name: &str) -> &'a Value {
    let rows = report["rows"].as_array().unwrap();
    let found = rows.iter().find(|row| row["name"] == name);
    found.unwrap_or_else(|| panic!("no row {name} in {rows:#?}"))
}

fn is_positive(row: &Value, field: &str) -> bool {
    row[field].as_f64().is_some_and(|value| value > 0.0)
}

#[test]
fn consensus_rows_have_raw_writes_as_baseline() {
    build_raft();
    let report = json(&["consensus", "--iters", "50", "--blocks", "2", "--requests", "200"]);
    for (name, beside) in [
        ("replicated-log/entry", "fanout_floor"),
        ("protected-memory-paxos/decide", "fanout_floor"),
        ("disk-paxos/decide", "fanout_floor"),
        ("permission/switch", "round_trip"),
        ("replicated-log/takeover", "round_trip"),
        ("replicated-log/detection", "round_trip"),
    ] {
        let row = row(&report, name);
        assert!(is_positive(row, "median") && is_positive(row, "ratio"), "{row}");
        assert_eq!(row["floor"], beside);
    }
    for mechanism in ["qp_flags", "window", "key"] {
        assert!(is_positive(row(&report, &format!("permission/{mechanism}")), "median"));
    }
    for load in ["set", "get", "set-pipelined", "get-pipelined"] {
        for (measure, unit) in [("latency", "us"), ("rate", "op/s"), ("cpu", "op/cpu-s")] {
            let [kv, raft, redis] =
                ["kv", "raft", "redis"].map(|s| row(&report, &format!("{s}/{load}/{measure}")));
            for row in [kv, raft, redis] {
                assert!(
                    is_positive(row, "median") && is_positive(row, "p99") && row["unit"] == unit,
                    "{row}"
                );
            }
            assert!(is_positive(kv, "ratio") && kv["floor"] == raft["name"], "{kv}");
            assert!(raft["floor"].is_null() && redis["floor"].is_null());
        }
    }
    let notes = report["notes"].as_array().unwrap();
    assert!(!notes.iter().any(|note| note.as_str().unwrap().contains("left out")), "{notes:?}");
}

#[test]
fn missing_stores_are_noted_with_how_to_install_them() {
    // A copy of `mitra` without the Raft baseline next to it. Redis is found only with the real
    // PATH.
    let alone = tempfile::tempdir().unwrap();
    let mitra = alone.path().join("mitra");
    fs::copy(env!("CARGO_BIN_EXE_mitra"), &mitra).unwrap();
    let report = |path: &str| -> Value {
        let mut command = command(&mitra);
        command.args(["bench", "consensus", "--iters", "10", "--blocks", "1", "--requests", "100", "--json"]);
        let output = output(command.env("PATH", path));
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let has = |report: &Value, store: &str| {
        let rows = report["rows"].as_array().unwrap();
        rows.iter().any(|row| row["name"].as_str().unwrap().starts_with(store))
    };
    let nothing = report("/nowhere");
    assert!(["kv/", "raft/", "redis/"].iter().all(|store| !has(&nothing, store)), "{nothing}");
    assert!(nothing["notes"].to_string().contains("redis-tools"), "{nothing}");
    let no_raft = report(&std::env::var("PATH").unwrap());
    assert!(has(&no_raft, "kv/") && has(&no_raft, "redis/") && !has(&no_raft, "raft/"), "{no_raft}");
    assert!(row(&no_raft, "kv/set/cpu")["ratio"].is_null());
    assert!(
        no_raft["notes"].to_string().contains("cargo build --release -p mitra-raft-baseline"),
        "{no_raft}"
    );
}

/// The rows of 8 bytes, and one of the bandwidths.
#[test]
fn peers_are_measured_side_by_side() {
    const PEERS: [&str; 9] = [
        "mitra-shm",
        "mitra-udp",
        "ucx-posix",
        "ucx-tcp",
        "libfabric-shm",
        "libfabric-tcp",
        "libfabric-udp",
        "qperf-tcp",
        "qperf-udp",
    ];
    let report = json(&["peers", "--only", "/8", "--iters", "100", "--blocks", "1"]);
    let names = PEERS.map(|peer| format!("{peer}/latency/8"));
    let atomics = &PEERS[..4];
    for name in names.into_iter().chain(atomics.iter().map(|peer| format!("{peer}/atomics/8"))) {
        let row = row(&report, &name);
        assert!(is_positive(row, "median"), "{row}");
        assert_eq!(row["floor"].is_null(), name.starts_with("mitra-shm"), "{row}");
    }
    assert_eq!(report["rows"].as_array().unwrap().len(), PEERS.len() + atomics.len());
    let notes = report["notes"].as_array().unwrap();
    assert!(!notes.iter().any(|note| note.as_str().unwrap().contains("left out")), "{notes:?}");

    let report = json(&["peers", "--only", "bandwidth/65536", "--iters", "100", "--blocks", "1"]);
    let rows = report["rows"].as_array().unwrap();
    assert!(rows.len() == PEERS.len() && rows.iter().all(|row| is_positive(row, "median")), "{rows:?}");
}

#[test]
fn peer_that_is_not_installed_is_left_out() {
    let empty = tempfile::tempdir().unwrap();
    let mut command = mitra();
    command.args(["bench", "peers", "--only", "latency/8", "--iters", "100", "--blocks", "1", "--json"]);
    let output = output(command.env("PATH", empty.path()));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (rows, notes) = (report["rows"].as_array().unwrap(), report["notes"].to_string());
    assert_eq!(rows.len(), 2, "the rows of Mitra need no other program: {rows:?}");
    assert!(notes.contains("ucx-tcp/latency/8 is left out: install ucx_perftest"), "{notes}");
}

#[test]
fn error_of_the_load_generator_fails_the_benchmark() {
    let scene = tempfile::tempdir().unwrap();
    let stand_in = scene.path().join("redis-benchmark");
    let script = "#!/bin/sh\n[ \"$1\" = --version ] || { echo 'Error from server: MOVED' >&2; exit 1; }\n";
    fs::write(&stand_in, script).unwrap();
    fs::set_permissions(&stand_in, fs::Permissions::from_mode(0o700)).unwrap();
    let path = format!("{}:{}", scene.path().display(), std::env::var("PATH").unwrap());
    let output = output(mitra().args(["bench", "consensus", "--blocks", "1"]).env("PATH", path));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("redis-benchmark: Error from server: MOVED"), "{errors}");
    assert!(output.stdout.is_empty());
}

#[test]
fn latency_has_a_row_per_variant_with_its_baseline() {
    let report = json(&["latency", "--iters", "200", "--blocks", "2", "--size", "8,65536"]);
    assert_eq!((&report["name"], &report["unit"]), (&"latency".into(), &"us".into()));
    for case in ["write/8", "read/8", "send/8", "faa/8", "write/65536", "read/65536", "send/65536"] {
        let one_packet = case.ends_with("/8");
        for thing in ["qp", "aa", "vqp", "vqp+log"] {
            let row = row(&report, &format!("{case}/{thing}"));
            assert!(is_positive(row, "median") && is_positive(row, "p99"), "{row}");
            let beside = if thing == "qp" { "udp_floor" } else { "qp" };
            if thing != "qp" || one_packet {
                assert_eq!(row["floor"], format!("{case}/{beside}"));
                assert!(is_positive(row, "floor_median") && is_positive(row, "ratio"), "{row}");
            }
            assert_eq!(row["aa_ratio"].is_number(), thing.starts_with("vqp"), "{row}");
        }
    }
    assert!(is_positive(&report["machine"], "cpus"));
    assert_eq!(report["settings"]["iters"], 200);
}

#[test]
fn mtu_and_addresses_are_used() {
    let network = OwnNetwork::new();
    let addresses = [1, 2, 3, 4].map(|host| network.address(host).to_string()).join(",");
    let report = json(&[
        "latency",
        "--op",
        "write,read",
        "--size",
        "1024",
        "--mtu",
        "256",
        "--addresses",
        &addresses,
        "--iters",
        "50",
        "--blocks",
        "1",
    ]);
    assert_eq!(report["settings"]["mtu"], 256);
    // A message of four packets has no single datagram to compare with.
    assert!(report["rows"].as_array().unwrap().iter().all(|row| row["name"] != "write/1024/udp_floor"));
}

#[test]
fn bandwidth_measures_write_and_read() {
    let report = json(&["bandwidth", "--iters", "200", "--blocks", "2"]);
    assert_eq!((&report["name"], &report["unit"]), (&"bandwidth".into(), &"GB/s".into()));
    for op in ["write", "read"] {
        for thing in ["udp_floor", "qp", "aa", "vqp", "vqp+log"] {
            assert!(is_positive(row(&report, &format!("{op}/65536/{thing}")), "median"));
        }
        assert!(is_positive(row(&report, &format!("{op}/65536/qp")), "ratio"));
    }
}

#[test]
fn failover_is_exactly_once_under_exact() {
    let report =
        json(&["failover", "--trials", "12", "--silent-trials", "1", "--size", "8192", "--in-flight", "32"]);
    assert_eq!(report["name"], "failover");
    assert_eq!(report["rows"][0]["name"], "exact/silent/fault_to_last");
    for must_not_be in ["post_failure_resent", "doubled", "failed"] {
        assert_eq!(row(&report, &format!("exact/{must_not_be}"))["spread"], serde_json::json!([0.0, 0.0]));
    }
    for name in
        ["rail_round_trip", "exact/detected_to_last", "exact/fault_to_last", "exact/silent/fault_to_last"]
    {
        assert!(is_positive(row(&report, name), "median"), "{name}");
    }
    for sleepers in ["responder_sleeps", "requester_sleeps", "both_sleep"] {
        let name = format!("exact/silent_{sleepers}/fault_to_last");
        assert!(is_positive(row(&report, &name), "median"), "{name}");
    }
    for program in ["exact/silent_run", "exact/silent_run_sleeps"] {
        let of = |measure: &str| row(&report, &format!("{program}/{measure}"));
        assert!(is_positive(of("gap"), "median") && is_positive(of("fault_to_last"), "median"), "{program}");
        assert_eq!(of("violations")["spread"], serde_json::json!([0.0, 0.0]));
    }
    assert_eq!(row(&report, "exact/bytes_resent")["floor"], "blanket/bytes_resent");
    let bytes = |name: &str| {
        (row(&report, &format!("{name}/bytes_resent")), row(&report, &format!("{name}/bytes_in_flight")))
    };
    assert_at_most(bytes("exact"));
    assert_equal(bytes("blanket"));
}

/// The quantiles of a row over the same trials.
fn quantiles(row: &Value) -> [f64; 4] {
    [&row["spread"][0], &row["median"], &row["p99"], &row["spread"][1]].map(|value| value.as_f64().unwrap())
}

/// Asserts that the trials of both rows had the same values.
fn assert_equal((row, other): (&Value, &Value)) {
    assert_eq!(quantiles(row), quantiles(other), "{row} {other}");
}

/// Asserts that no trial of the first row had a higher value than in the second row. The quantiles
/// are then in the same order.
fn assert_at_most((row, other): (&Value, &Value)) {
    let (of_row, of_other) = (quantiles(row), quantiles(other));
    assert!(of_row.iter().zip(of_other).all(|(value, bound)| *value <= bound), "{row} {other}");
}

/// Runs `mitra bench varuna` with few failures and short blocks.
fn varuna(only: &str, more: &[&str]) -> Value {
    let mut args = vec!["varuna", "--only", only, "--blocks", "2", "--iters", "100", "--size", "8"];
    args.extend(more);
    json(&args)
}

fn claim<'a>(report: &'a Value, name: &str) -> &'a Value {
    let claims = report["claims"].as_array().unwrap();
    claims
        .iter()
        .find(|claim| claim["name"] == name)
        .unwrap_or_else(|| panic!("no claim {name} in {claims:#?}"))
}

#[test]
fn varuna_overhead_is_beside_the_bare_queue_pair_and_the_paper() {
    let report = varuna("overhead", &[]);
    assert_eq!(report["name"], "varuna");
    for op in ["write", "read", "send", "faa"] {
        for evidence in ["none", "psn", "log"] {
            let row = row(&report, &format!("overhead/{op}/8/{evidence}"));
            assert_eq!(row["floor"], format!("overhead/{op}/8/qp"));
            assert!(is_positive(row, "median") && is_positive(row, "ratio") && is_positive(row, "aa_ratio"));
        }
    }
    for evidence in ["aa", "none", "psn", "log"] {
        let row = row(&report, &format!("overhead/write/8/{evidence}/rate"));
        assert_eq!((&row["unit"], &row["floor"]), (&"op/s".into(), &"overhead/write/8/qp/rate".into()));
        assert!(is_positive(row, "ratio"), "{row}");
    }
    let claim = claim(&report, "overhead/write/8/log");
    assert_eq!((&claim["paper"], &claim["target"]), (&"0.6 to 10 % of latency".into(), &"≤ 10 %".into()));
    assert!(claim["value"].is_number() && claim["met"].is_boolean(), "{claim}");
}

#[test]
fn varuna_policies_meet_the_same_failures() {
    // The third seed draws two failures directly after an execution of a FAA, before its
    // acknowledgment.
    let report = varuna("trials", &["--trials", "4", "--in-flight", "24", "--seed", "3"]);
    let number = |name: &str, field: &str| row(&report, name)[field].as_f64().unwrap();
    for mix in ["read-heavy", "write-heavy", "atomic-heavy"] {
        for measure in ["post_failure", "doubled", "failed"] {
            let name = format!("resent/exact/{mix}/{measure}");
            assert_eq!(row(&report, &name)["spread"], serde_json::json!([0.0, 0.0]), "{name}");
        }
        assert_eq!(claim(&report, &format!("resent/exact/{mix}/post_failure"))["met"], true);
        let bytes = |policy: &str| {
            let name = format!("resent/{policy}/{mix}");
            (row(&report, &name), row(&report, &format!("{name}/bytes_in_flight")))
        };
        for by_evidence in ["exact", "delay"] {
            assert_at_most(bytes(by_evidence));
        }
        assert_eq!(number(&format!("resent/delay/{mix}/failed"), "p99"), 0.0);
        // Without evidence, every operation in flight is sent again, READs included.
        for baseline in ["blanket", "cached"] {
            assert_equal(bytes(baseline));
            assert_eq!(number(&format!("resent/{baseline}/{mix}/failed"), "p99"), 0.0);
        }
        assert_eq!(number(&format!("resent/none/{mix}/ops"), "p99"), 0.0);
        assert!(number(&format!("resent/none/{mix}/failed"), "median") > 0.0);
        let times = row(&report, &format!("inflight/{mix}/failure_time"))["blocks"].as_array().unwrap();
        assert!(times.windows(2).all(|pair| pair[0].as_f64() <= pair[1].as_f64()), "{times:?}");
        for class in ["pre-failure", "post-failure"] {
            let row = row(&report, &format!("inflight/{mix}/{class}"));
            assert_eq!(row["blocks"].as_array().unwrap().len(), times.len());
        }
    }
    // Blanket retransmission executes the FAA again.
    for policy in ["blanket", "cached"] {
        assert!(number(&format!("resent/{policy}/atomic-heavy/doubled"), "p99") > 0.0, "{policy}");
    }
}

#[test]
fn varuna_draws_phases_many_vqps_and_the_timeline() {
    let scene = tempfile::tempdir().unwrap();
    let page = scene.path().join("report.html");
    let path = page.to_str().unwrap();
    let report = varuna("failover,vqps,timeline", &["--trials", "3", "--vqps", "40", "--report", path]);
    for phase in ["detection", "agreement", "fence", "evidence", "decision", "replay", "total"] {
        let row = row(&report, &format!("failover/{phase}"));
        assert_eq!(row["floor"], "failover/round_trip");
        assert!(row["ratio"].is_number(), "{row}");
    }
    for measure in ["memory", "failover", "last"] {
        assert!(is_positive(row(&report, &format!("vqps/40/{measure}")), "median"), "{measure}");
    }
    let [failover, failback] = ["failover_at", "failback_at"]
        .map(|event| row(&report, &format!("timeline/{event}"))["median"].as_f64().unwrap() as usize);
    let rates = row(&report, "timeline/rate")["blocks"].as_array().unwrap();
    assert!(0 < failover && failover < failback && failback < rates.len(), "{failover} {failback}");
    for phase in ["before", "after_failover", "after_failback"] {
        assert!(is_positive(row(&report, &format!("timeline/{phase}")), "median"), "{phase}");
    }
    let page = fs::read_to_string(page).unwrap();
    assert_eq!(page.matches("<svg").count(), 3, "two plots of the phases, one of the timeline");
    assert!(page.contains("vqps/40/last") && page.contains("rail 0 fails"));
}

#[test]
fn memory_has_bytes_per_queue_pair() {
    let report = json(&["memory", "--count", "100"]);
    for thing in ["qp", "vqp", "vqp+log"] {
        let [idle, used] = ["idle", "used"].map(|when| row(&report, &format!("{thing}/{when}")));
        assert!(is_positive(idle, "median") && idle["median"].as_f64() <= used["median"].as_f64());
    }
}

#[test]
fn idle_has_cpu_time_and_wakeups() {
    let report = json(&["idle", "--vqps", "10", "--seconds", "1", "--settle", "1", "--blocks", "1"]);
    for processes in ["kv/memories", "kv/processes", "kv", "vqps/10"] {
        for measure in ["cpu", "wakeups"] {
            let row = row(&report, &format!("{processes}/{measure}"));
            assert!(is_positive(row, "median"), "{row}");
        }
    }
}

/// The machine of a test may have no processor for a process, so a vQP may move. The exit code then
/// says so.
#[test]
fn alarms_counts_operations_and_moves() {
    for links in ["shm", "udp"] {
        let args = ["alarms", "--vqps", "5", "--seconds", "1", "--stop", "--links", links, "--json"];
        let output = bench(&args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.is_empty(), "{errors}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let median = |name: &str| row(&report, name)["median"].as_f64().unwrap();
        let moves = median("moves/a") + median("moves/b");
        assert_eq!(output.status.code(), Some(i32::from(moves > 0.0)), "{report}");
        let causes = ["completion", "device", "heartbeat"];
        let alarms: f64 = ["a", "b"]
            .iter()
            .flat_map(|end| causes.map(|cause| median(&format!("alarms/{cause}/{end}"))))
            .sum();
        assert!(moves == 0.0 || alarms > 0.0, "a move without an alarm: {report}");
        assert!(median("operations/a") > 0.0 && median("operations/b") > 0.0, "{report}");
        assert!(report["settings"]["stops"].as_u64() > Some(0), "{report}");
    }
}

#[test]
fn return_measures_the_rate_before_and_after() {
    let args = ["return", "--rounds", "1", "--flaps", "2", "--delay", "20", "--down", "0.02"];
    let report = json(&args);
    for links in ["shm", "udp"] {
        for measure in ["before", "aa", "after", "link_up_to_failback", "failback_to_full", "gap"] {
            assert!(is_positive(row(&report, &format!("{links}/{measure}")), "median"), "{links}/{measure}");
        }
        assert_eq!(row(&report, &format!("{links}/after"))["floor"], format!("{links}/before"));
        // The vQP may be away already.
        assert!(row(&report, &format!("{links}/down_to_away"))["median"].as_f64() >= Some(0.0));
        let moves = row(&report, &format!("{links}/moves"))["median"].as_f64().unwrap();
        assert!(moves >= 2.0, "away and back, {moves} moves");
    }
}

#[test]
fn text_output_is_a_table() {
    let output = bench(&["latency", "--op", "faa", "--iters", "20", "--blocks", "1"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().any(|line| line.starts_with("faa/8/qp")), "{text}");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn bad_input_is_refused_with_a_remedy() {
    for (args, named, way_out) in [
        (&["latency", "--size", "7"][..], "'7'", "a multiple of 8"),
        (&["latency", "--op", "push"], "'push'", "use write, read, send or faa"),
        (&["latency", "--mtu", "1500"], "'1500'", "256, 512, 1024, 2048 and 4096"),
        (&["latency", "--iters", "1"], "'1'", "10..="),
        (&["latency", "--addresses", "127.0.0.300,a,b,c"], "\"127.0.0.300\"", "nor an IP address"),
        (&["latency", "--device", "mlx5_0"], "--device", "give two devices for both ends, or four NICs"),
        (&["latency", "--device", "127.0.0.8,127.0.0.9"], "--device", "give four NICs"),
        (
            &["idle", "--device", "mlx5_0,mlx5_1"],
            "needs software NICs",
            "latency, bandwidth, failover and varuna",
        ),
        (
            &["latency", "--addresses", "203.0.113.9,127.1.2.3,127.1.2.4,127.1.2.5"],
            "203.0.113.9",
            "use one in 127.0.0.0/8",
        ),
        (
            &["latency", "--addresses", "127.78.1.3,127.78.1.4,127.78.1.5,203.0.113.9"],
            "203.0.113.9",
            "use one in 127.0.0.0/8",
        ),
        (&["bandwidth", "--op", "faa"], "'faa'", "use write, read or all"),
        (&["bandwidth", "--window", "0"], "'0'", "1..="),
        (&["failover", "--in-flight", "1000"], "'1000'", "1..=100"),
        (&["varuna", "--only", "speed"], "'speed'", "possible values"),
        (&["varuna", "--vqps", "10001"], "'10001'", "1..=10000"),
        (&["nothing"], "'nothing'", "--help"),
    ] {
        let output = bench(args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
        assert!(errors.contains(named) && errors.contains(way_out), "{args:?}: {errors}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn peer_command_refuses_to_run_alone() {
    let output = output(mitra().args(["peer", "bench", "1"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("started by other mitra commands"));
}

#[test]
fn ctrl_c_ends_both_processes() {
    let mut bench = mitra();
    bench.args(["bench", "latency", "--op", "write", "--size", "8", "--iters", "1000000"]);
    let mut first = TestProcess::start(bench.stdout(Stdio::null()));
    let begin = Instant::now();
    let children = format!("/proc/{0}/task/{0}/children", first.id());
    let second = loop {
        let list = fs::read_to_string(&children).unwrap_or_default();
        if let Some(pid) = list.split_ascii_whitespace().next() {
            break pid.to_owned();
        }
        assert!(begin.elapsed() < Duration::from_secs(100), "no second process");
        std::thread::sleep(Duration::from_millis(5));
    };
    // Lets the benchmark enter its measuring loop.
    std::thread::sleep(Duration::from_millis(300));
    first.signal(Signal::SIGINT);
    assert!(!first.wait().success());
    while fs::read_to_string(format!("/proc/{second}/cmdline")).is_ok_and(|line| line.contains("peer")) {
        assert!(begin.elapsed() < Duration::from_secs(100), "the second process {second} goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A rail fails twice a second and a coordinator is killed. Nothing is lost, torn or left locked,
/// and no transaction aborts because of these failures.
#[test]
fn tpcc_stays_consistent_through_failures() {
    let report = json(&[
        "tpcc",
        "--warehouses=1",
        "--memories=2",
        "--terminals=2",
        "--seconds=3",
        "--fault=500ms",
        "--kill-coordinator=500ms",
        "--takeover-timeout=1s",
    ]);
    let conditions = report["consistency"].as_object().unwrap();
    assert_eq!(conditions.len(), 12);
    assert!(conditions.values().all(|holds| holds == true), "{report:#}");
    for (field, expected) in [("cycles", 0), ("stuck_locks", 0), ("corrupt", 0)] {
        assert_eq!(report[field], expected, "{field}: {report:#}");
    }
    assert!(report["committed"].as_u64() > Some(0) && report["failures"].as_u64() > Some(0), "{report:#}");
    assert_eq!(report["is_clean"], true, "{report:#}");
    assert_eq!(report["recovered_coordinators"], 1, "{report:#}");
    assert!(is_positive(row(&report, "exact/throughput"), "median"));
    assert!(is_positive(row(&report, "exact/latency/new_order"), "ratio"));
}

#[test]
fn links_measures_memory_and_streams_to_a_stopped_receiver() {
    let report = json(&["links", "--peers", "2", "--qps", "4", "--blocks", "1", "--block-ms", "100"]);
    assert_eq!(report["name"], "links");
    for name in ["link/first", "link/used", "link/idle", "stream/shm", "stream/udp", "stream/shm/busy"] {
        assert!(is_positive(row(&report, name), "median"), "{name}");
    }
    let median = |name: &str| row(&report, name)["median"].as_f64().unwrap();
    assert!(median("link/used") > median("link/idle"), "idle links give memory back");
    assert_eq!(median("link/descriptors"), 2.0);
    for name in ["stream/shm/lost", "stream/shm/busy/lost", "stream/shm/again"] {
        assert_eq!(median(name), 0.0, "{name}");
    }
}
