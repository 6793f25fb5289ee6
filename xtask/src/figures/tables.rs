//! Tables of several runs of one benchmark.

use std::fmt::Write;

use serde_json::Value;

/// Returns a table in Markdown, and a line that says how it was measured.
pub(super) fn table(name: &str, bench: &str, runs: &[Value]) -> String {
    let mut text = match name {
        "peers" => peers(runs),
        _ => rows(runs),
    };
    let loads: Vec<String> =
        runs.iter().map(|run| format!("{:.1}", run["machine"]["load"].as_f64().unwrap_or(0.0))).collect();
    let machine = &runs[0]["machine"];
    let _ = writeln!(
        text,
        "\n`mitra bench {bench} --json`, {} runs of {}; {}, {} CPUs, Linux {}, load before each run {}.",
        runs.len(),
        runs[0]["code"].as_str().unwrap_or("unknown code"),
        machine["cpu"].as_str().unwrap_or("unknown CPU"),
        machine["cpus"],
        machine["kernel"].as_str().unwrap_or("unknown"),
        loads.join(" · "),
    );
    text
}

/// Returns a line for each row of the benchmark.
fn rows(runs: &[Value]) -> String {
    let mut text = "| row | unit | medians of the runs | p99 of the runs | beside | ratios of the runs |\n\
                    |---|---|---|---|---|---|\n"
        .to_owned();
    for row in runs[0]["rows"].as_array().into_iter().flatten() {
        let name = row["name"].as_str().unwrap_or_default();
        let all = |field| {
            let values = runs.iter().filter_map(|run| find(run, name)?[field].as_f64().map(figure));
            values.collect::<Vec<String>>().join(" · ")
        };
        let beside = row["floor"].as_str().map(|floor| format!("`{floor}`")).unwrap_or_default();
        let (medians, p99s, ratios) = (all("median"), all("p99"), all("ratio"));
        let unit = row["unit"].as_str().unwrap_or_default();
        let _ = writeln!(text, "| `{name}` | {unit} | {medians} | {p99s} | {beside} | {ratios} |");
    }
    text
}

/// Returns a line for each peer, with the median of the runs and the worst run.
fn peers(runs: &[Value]) -> String {
    const COLUMNS: [(&str, bool); 5] = [
        ("latency/8", false),
        ("latency/4096", false),
        ("bandwidth/65536", true),
        ("bandwidth/1048576", true),
        ("atomics/8", true),
    ];
    let mut text =
        "| median (worst run) | 8 B, µs | 4 KiB, µs | 64 KiB, GB/s | 1 MiB, GB/s | atomics per µs |\n\
                    |---|---|---|---|---|---|\n"
            .to_owned();
    let mut names: Vec<&str> = Vec::new();
    for row in runs[0]["rows"].as_array().into_iter().flatten() {
        let peer = row["name"].as_str().and_then(|name| name.split('/').next()).unwrap_or_default();
        if !names.contains(&peer) {
            names.push(peer);
        }
    }
    for peer in names {
        let cell = |(column, is_higher_better): (&str, bool)| {
            let name = format!("{peer}/{column}");
            let mut values: Vec<f64> =
                runs.iter().filter_map(|run| find(run, &name)?["median"].as_f64()).collect();
            values.sort_by(f64::total_cmp);
            let worst = if is_higher_better { values.first() } else { values.last() };
            worst.map_or_else(
                || "–".to_owned(),
                |&worst| format!("{} ({})", figure(values[values.len() / 2]), figure(worst)),
            )
        };
        let _ = writeln!(text, "| `{peer}` | {} |", COLUMNS.map(cell).join(" | "));
    }
    text
}

fn find<'a>(run: &'a Value, name: &str) -> Option<&'a Value> {
    run["rows"].as_array()?.iter().find(|row| row["name"] == name)
}

/// Formats a number with three significant digits and at most three decimals.
fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 || v == v.trunc() => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(rows: Value) -> Value {
        let machine = json!({ "cpu": "CPU", "cpus": 2, "kernel": "6", "load": 0.25 });
        json!({ "rows": rows, "machine": machine, "code": "abc, 2026-11-28" })
    }

    #[test]
    fn rows_show_all_runs() {
        let row = |median: f64, ratio: f64| {
            run(
                json!([{ "name": "write/8/qp", "unit": "us", "median": median, "p99": 2.0, "floor": "udp", "ratio": ratio }]),
            )
        };
        let text = table("latency-shm", "latency --links shm", &[row(1.25, 0.5), row(1.5, 0.25)]);
        assert!(
            text.contains("| `write/8/qp` | us | 1.25 · 1.50 | 2 · 2 | `udp` | 0.500 · 0.250 |\n"),
            "{text}"
        );
        assert!(
            text.contains("2 runs of abc, 2026-11-28; CPU, 2 CPUs, Linux 6, load before each run 0.2 · 0.2."),
            "{text}"
        );
    }

    #[test]
    fn peers_show_the_median_and_the_worst_run() {
        let rates = [3.0, 1.0, 2.0].map(|rate| {
            let latency = json!({ "name": "a/latency/8", "median": rate });
            run(json!([latency, { "name": "a/bandwidth/65536", "median": rate }]))
        });
        let text = table("peers", "peers", &rates);
        assert!(text.contains("| `a` | 2 (3) | – | 2 (1) | – | – |\n"), "{text}");
    }
}
