use serde_json::json;

use super::*;

fn observation(pid: u32, snapshot: serde_json::Value) -> Observation {
    let snapshot: Snapshot = serde_json::from_value(snapshot).expect("the fields are those of a snapshot");
    let program = "ib_write_bw\x1b[2J -D 10 localhost".to_owned();
    Observation { pid, answer: Answer::Snapshot { program, snapshot: Box::new(snapshot) } }
}

fn counts(failovers: u64) -> serde_json::Value {
    json!({
        "detected": {"device": failovers}, "stayed": 0, "fenced": failovers, "failovers": failovers, "failbacks": 0,
        "recovered": failovers, "in_flight": 4, "executed": 1, "torn": 0, "ambiguous": 0, "replayed": 3, "failed": 0,
        "bytes_in_flight": 32, "bytes_replayed": 24,
    })
}

/// A snapshot of `vqps` vQPs, of which number 5 recovers. vQP n has completed n · `completed`
/// operations.
fn snapshot(vqps: u32, completed: u64, rx_bytes: u64) -> serde_json::Value {
    let vqp = |n: u32| {
        json!({
            "vqp": n, "phase": if n == 5 { "recovering" } else { "active" }, "active_rail": 0, "epoch": 1,
            "posted": u64::from(n) * completed + 7, "completed": u64::from(n) * completed, "rejected_messages": 0,
            "unpolled_ns": 40_000, "failover": counts(u64::from(n % 3)),
        })
    };
    let rail = |state: &str| {
        json!({"address": "127.0.0.5", "state": state, "failover": counts(2),
               "counters": {"rx_bytes": rx_bytes, "tx_bytes": 0, "retransmitted_packets": 3}})
    };
    let histogram = json!({"count": 2, "sum_ns": 5, "p50_ns": 200_000, "p99_ns": 1_000_000, "buckets": []});
    let event = |number: u32| {
        json!({"number": number, "age_ns": 1_500_000_000u64, "vqp": 5, "event": "detected", "rail": 0,
               "cause": "silent, and another rail answers"})
    };
    json!({
        "rails": [rail("up"), rail("down")], "queue_pairs": vqps, "vqp_count": vqps, "recovering": 1,
        "vqps": (0..vqps.min(1000)).map(vqp).collect::<Vec<_>>(), "closed": {"NoRail": 1},
        "events": (1..=20).map(event).collect::<Vec<_>>(),
        "durations": {"fence": histogram, "total": histogram}, "latency": null,
    })
}

fn view(vqps: u32, order: Order, size: Size) -> Vec<String> {
    let before = [observation(9, snapshot(vqps, 10, 1000))];
    let now = [observation(9, snapshot(vqps, 30, 5_001_000))];
    lines(&now, &before, Duration::from_secs(2), order, size)
}

const LARGE: Size = Size { rows: 60, columns: 200 };

/// The rows of the table of virtual queue pairs, each as its words.
fn vqp_rows(lines: &[String]) -> Vec<Vec<&str>> {
    let from = lines.iter().position(|line| line.trim_start().starts_with("vqp ")).expect("a heading");
    let rows = lines[from + 1..].iter().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.take_while(|words| words[0].starts_with("0x")).collect()
}

#[test]
fn screen_shows_rails_rates_vqps_and_events() {
    let lines = view(7, Order::Number, LARGE);
    let text = lines.join("\n");
    assert!(lines[0].starts_with("9: ib_write_bw?[2J -D 10"), "control characters do not reach the terminal");
    assert!(text.contains("virtual queue pairs 7, recovering 1, failovers 4,"), "{text}");
    assert!(text.contains("closed NoRail 1"), "{text}");
    assert!(text.contains("2.5 MB"), "5 MB in 2 s: {text}");
    assert!(text.contains("recovery: half ≤ 200µs, 99% ≤ 1ms"), "{text}");
    assert!(
        text.contains("1.5 s ago  vqp 0x000005  detected: rail 0 failed: silent, and another rail answers"),
        "{text}"
    );
    let rows = vqp_rows(&lines);
    assert_eq!(rows.len(), 7);
    assert_eq!(rows[0][..2], ["0x000005", "recovering"], "failovers in progress come first");
    assert_eq!(rows[1][..5], ["0x000000", "active", "0", "0", "7"]);
    assert_eq!(rows[6][3], "60", "vqp 6 completed 120 operations in 2 s");
}

/// A process of an earlier version sends no `device`, like one with software NICs.
#[test]
fn device_of_the_kernel_is_shown_beside_the_address() {
    let mut snapshot = snapshot(1, 10, 0);
    snapshot["rails"][1]["device"] = json!("mlx5_0\x1b[2J");
    let lines = lines(&[observation(9, snapshot)], &[], Duration::ZERO, Order::Number, LARGE);
    let rail = |index| {
        let line = lines.iter().find(|line| line.trim_start().starts_with(index)).expect("a row");
        line.split_whitespace().take(4).collect::<Vec<_>>()
    };
    assert_eq!(rail("rail0"), ["rail0", "127.0.0.5", "up", "-"]);
    assert_eq!(rail("rail1"), ["rail1", "127.0.0.5", "(mlx5_0?[2J)", "down"]);
}

#[test]
fn table_of_vqps_fits_a_terminal_of_80_columns() {
    let lines = view(7, Order::Number, Size { rows: 60, columns: 80 });
    assert_eq!(vqp_rows(&lines)[0].last(), Some(&"ms"), "the last column is not cut: {lines:#?}");
}

#[test]
fn orders_sort_as_they_say() {
    let first = |order| vqp_rows(&view(9, order, LARGE))[1][0].to_owned();
    assert_eq!(first(Order::Number), "0x000000");
    assert_eq!(first(Order::Rate), "0x000008");
    assert_eq!(first(Order::Failovers), "0x000002");
    let now = [observation(9, snapshot(3, 10, 0))];
    let lines = lines(&now, &[], Duration::ZERO, Order::Outstanding, LARGE);
    assert_eq!(vqp_rows(&lines)[0][3], "-", "the first look has no rates");
}

#[test]
fn no_line_is_wider_and_no_screen_higher_than_the_window() {
    for columns in [1, 20, 80, 200] {
        for rows in [1, 5, 10, 24, 60] {
            for vqps in [0, 1, 7, 1000, 3000] {
                let lines = view(vqps, Order::Failovers, Size { rows, columns });
                assert!(lines.len() <= rows, "{rows} rows: {lines:#?}");
                assert!(lines.iter().all(|line| line.chars().count() <= columns), "{columns}: {lines:#?}");
            }
        }
    }
}

#[test]
fn wide_characters_do_not_make_a_line_wider_than_the_window() {
    let mut observation = observation(9, snapshot(1, 10, 0));
    let Answer::Snapshot { program, .. } = &mut observation.answer else { panic!("a snapshot") };
    *program = "机".repeat(100);
    let lines = lines(&[observation], &[], Duration::ZERO, Order::Number, Size { rows: 24, columns: 40 });
    assert_eq!(lines[0].matches('机').count(), 18, "`9: ` and `…` take 4 of the 40 columns");
}

/// A process may send any text in any field, and any number.
#[test]
fn hostile_snapshot_neither_controls_the_terminal_nor_ends_the_program() {
    let evil = "\x1b[2J\n\r\u{9b}31m";
    let mut snapshot = snapshot(7, u64::MAX / 8, u64::MAX);
    snapshot["vqp_count"] = json!(2);
    snapshot["vqps"][1]["phase"] = json!(evil);
    snapshot["vqps"][2]["completed"] = json!(u64::MAX);
    snapshot["vqps"][3]["posted"] = json!(u64::MAX);
    snapshot["vqps"][4]["posted"] = json!(u64::MAX);
    snapshot["closed"] = json!({(evil): u64::MAX});
    snapshot["events"][19]["cause"] = json!(evil);
    for rail in 0..2_usize {
        snapshot["rails"][rail]["failover"]["failovers"] = json!(u64::MAX);
        snapshot["rails"][rail]["failover"]["detected"] = json!({"device": u64::MAX, "peer": 1});
    }
    let failed = Observation { pid: 3, answer: Answer::Failed { error: evil.to_owned() } };
    let all = [observation(9, snapshot), failed];
    for rows in [9, 30, 60] {
        let size = Size { rows, columns: 200 };
        for line in lines(&all, &[], Duration::ZERO, Order::Outstanding, size) {
            assert!(!line.contains(char::is_control), "{line:?}");
        }
    }
}

#[test]
fn vqps_beyond_the_window_are_summed() {
    let lines = view(3000, Order::Rate, Size { rows: 24, columns: 80 });
    assert_eq!(lines.len(), 24);
    let shown = vqp_rows(&lines).len();
    assert!(shown >= 3, "{lines:#?}");
    let rest = lines.iter().find(|line| line.contains(" more: ")).expect("a line about the rest");
    assert!(rest.trim_start().starts_with(&format!("{} more: ", 3000 - shown)), "{rest}");
    assert!(rest.contains(&format!("{} in the queue", (1000 - shown) * 7)), "{rest}");
}

#[test]
fn processes_share_the_window() {
    let all: Vec<_> = (0..10).map(|pid| observation(pid, snapshot(50, 1, 0))).collect();
    let lines = lines(&all, &[], Duration::ZERO, Order::Number, Size { rows: 40, columns: 80 });
    assert!(lines.len() <= 40, "{lines:#?}");
    assert_eq!(lines.iter().filter(|line| line.contains(": ib_write_bw")).count(), 4);
    assert!(lines.last().is_some_and(|line| line.starts_with("6 more processes: ")), "{lines:#?}");
}

#[test]
fn error_of_a_process_is_shown() {
    let failed =
        Observation { pid: 3, answer: Answer::Failed { error: "process 3 does not respond".to_owned() } };
    assert_eq!(
        lines(&[failed], &[], Duration::ZERO, Order::Number, LARGE),
        ["3: process 3 does not respond"]
    );
}

#[test]
fn numbers_have_three_digits_and_a_unit() {
    for (value, text) in
        [(0.0, "0"), (999.4, "999"), (999.6, "1.0 k"), (123_456.0, "123 k"), (5e12, "5000 G")]
    {
        assert_eq!(scaled(value, &["", "k", "M", "G"]), text);
    }
    assert_eq!(age(Duration::from_millis(15)), "15 ms");
    assert_eq!(age(Duration::from_millis(1999)), "1.9 s");
    assert_eq!(age(Duration::from_secs(250)), "4 min");
    assert_eq!(age(Duration::from_secs(7300)), "2 h");
}
