//! The command `mitra topology`: JSON field names, the table, drawings, errors, exit codes.

use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

use mitra_test_process::{TestProcess, command, output};
use serde_json::Value;

fn topology(flags: &[&str]) -> Output {
    output(command(env!("CARGO_BIN_EXE_mitra")).arg("topology").args(flags))
}

fn with_input(flags: &[&str], input: &[u8]) -> Output {
    let mut mitra = command(env!("CARGO_BIN_EXE_mitra"));
    mitra.args(["topology", "--edges", "-"]).args(flags);
    mitra.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut mitra = TestProcess::start(&mut mitra);
    mitra.stdin.take().unwrap().write_all(input).unwrap();
    mitra.output().unwrap()
}

fn text(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_str(&text(output)).unwrap()
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

#[test]
fn json_has_every_field_of_an_exact_result() {
    let edges = file("# a star of six\n0 1\n0 2\n0 3\n\n0 4\n0 5\n");
    let output = topology(&["--edges", edges.path().to_str().unwrap(), "--json"]);
    assert_eq!(
        json(&output),
        serde_json::json!({
            "n": 6, "edges": 5, "connections_per_nic": {"least": 1, "mean": 10.0 / 6.0, "most": 5},
            "expansion": 1.0 / 3.0, "expansion_ratio": "1/3", "bound_f": 3, "slide_f": null, "hbo_f": 3, "best_f": 5,
            "exact": true, "spectral": false,
            "expansion_set": [1, 2, 3], "hbo_minority": [1, 2], "sm_cut": [[], []],
        })
    );
}

#[test]
fn documented_table_is_reproduced_from_edge_lists() {
    let cycle = |n: u32| (0..n).map(|v| format!("{v} {}\n", (v + 1) % n)).collect::<String>();
    let complete =
        |n: u32| (0..n).flat_map(|u| (u + 1..n).map(move |v| format!("{u} {v}\n"))).collect::<String>();
    let petersen = (0..5)
        .map(|v| format!("{v} {}\n{v} {}\n{} {}\n", (v + 1) % 5, v + 5, v + 5, (v + 2) % 5 + 5))
        .collect();
    let cube = (0..8u32)
        .flat_map(|v| [1, 2, 4].map(|bit| (v, v ^ bit)))
        .filter(|(u, v)| u < v)
        .map(|(u, v)| format!("{u} {v}\n"))
        .collect();
    let rows = [
        (complete(4), 4, 1.0, 2, 3, 3),
        (complete(6), 6, 1.0, 4, 5, 5),
        (cycle(6), 6, 2.0 / 3.0, 4, 4, 4),
        (cycle(8), 8, 0.5, 5, 5, 5),
        ("0\n1\n2\n3\n4\n".to_owned(), 5, 0.0, 2, 2, 2),
        ("0 1\n0 2\n0 3\n0 4\n0 5\n".to_owned(), 6, 1.0 / 3.0, 3, 3, 5),
        (petersen, 10, 0.8, 7, 8, 9),
        (cube, 8, 0.75, 5, 6, 6),
    ];
    for (edges, n, h, bound, hbo, best) in rows {
        let value = json(&with_input(&["--json"], edges.as_bytes()));
        assert_eq!(value["n"], n, "{edges}");
        assert!((value["expansion"].as_f64().unwrap() - h).abs() < 1e-12, "{edges}: {value}");
        assert_eq!(
            (&value["bound_f"], &value["hbo_f"], &value["best_f"]),
            (&bound.into(), &hbo.into(), &best.into())
        );
        assert_eq!(value["exact"], true);
        assert!(value.get("hbo_f_at_most").is_none());
    }
}

#[test]
fn inexact_result_has_both_bounds() {
    let value = json(&topology(&["--family", "random-regular", "1000", "6", "--json"]));
    assert_eq!((&value["exact"], &value["spectral"]), (&false.into(), &true.into()));
    for field in ["expansion", "bound_f", "hbo_f", "best_f"] {
        let bound =
            |name: &str| value[name].as_f64().unwrap_or_else(|| panic!("{name} is missing in {value}"));
        assert!(bound(field) <= bound(&format!("{field}_at_most")), "{field}: {value}");
    }
    assert!(value["hbo_f"].as_u64().unwrap() > 500);
    // These sets prove the upper bounds.
    let size = |set: &Value| set.as_array().unwrap().len() as u64;
    assert_eq!(size(&value["hbo_minority"]), 999 - value["hbo_f_at_most"].as_u64().unwrap());
    assert_eq!(size(&value["sm_cut"][1]), 999 - value["best_f_at_most"].as_u64().unwrap());
}

#[test]
fn single_process_has_no_expansion() {
    let value = json(&with_input(&["--json"], b"0\n"));
    assert_eq!(
        (&value["expansion"], &value["best_f"], &value["exact"]),
        (&Value::Null, &0.into(), &true.into())
    );
    assert!(text(&with_input(&[], b"0\n")).contains("expansion h"));
}

#[test]
fn table_names_the_defeating_sets_and_explains_the_misread_bound() {
    let table = text(&topology(&["--family", "hypercube", "3"]));
    let lines: Vec<_> = table.lines().map(str::trim).collect();
    assert_eq!(lines[0], "hypercube 3: 8 processes, 12 shared-memory connections, 3 per NIC");
    let line =
        |start: &str| *lines.iter().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{table}"));
    assert!(line("HBO f").contains("f = 7: live {0}, 4 of 8 represented"), "{table}");
    assert!(line("best possible f").contains("f = 7: {0} and {7} are at distance 3 or more"), "{table}");
    assert!(line("The misread bound").ends_with("it gives 2 instead of 5."), "{table}");
    assert_eq!(lines.last(), Some(&"Exact."));
}

#[test]
fn written_suggestion_is_confirmed_when_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("graph.txt");
    let path = path.to_str().unwrap();
    let suggested = json(&topology(&["--suggest", "16", "12", "--write", path, "--json"]));
    let suggestion = &suggested["suggestion"];
    assert_eq!((&suggestion["f"], &suggestion["checked_by"]), (&12.into(), &"exact".into()));
    assert!(suggestion["degree"].as_u64() >= suggestion["least_degree"].as_u64());
    let again = json(&topology(&["--edges", path, "--json"]));
    assert_eq!((&again["n"], &again["hbo_f"]), (&16.into(), &suggested["hbo_f"]));
    assert!(again["hbo_f"].as_u64().unwrap() >= 12);
    assert_eq!(suggestion["edges"].as_array().unwrap().len() as u64, again["edges"].as_u64().unwrap());
    assert!(again.get("suggestion").is_none());
}

#[test]
fn drawings_show_every_vertex_and_load_no_resources() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    // The page's title is the name of the file.
    let graph = path("<b>&.txt");
    std::fs::write(&graph, "0 1\n1 2\n2 3\n3 0\n4\n").unwrap();
    text(&topology(&["--edges", &graph, "--svg", &path("d.svg"), "--report", &path("r.html")]));
    let (svg, html) = (read("d.svg"), read("r.html"));
    for v in 0..5 {
        assert_eq!(svg.matches(&format!("<title>{v}</title>")).count(), 2, "{v}");
    }
    assert_eq!(svg.matches("<line").count(), 8);
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
    assert!(html.contains("<svg") && html.contains("&#60;b&#62;&#38;.txt") && !html.contains("<b>&"));
    for page in [svg, html] {
        let links = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!links.contains("http") && !links.contains("src=") && !links.contains("<script"));
    }
    // The graph is too large to draw. The report says so; the drawing alone is refused before the
    // computation.
    text(&topology(&["--family", "ring", "301", "--report", &path("large.html")]));
    assert!(read("large.html").contains("Not drawn"));
    refused(&topology(&["--family", "ring", "301", "--svg", &path("large.svg")]), "300 processes");
    assert!(!Path::new(&path("large.svg")).exists());
}

fn refused(output: &Output, says: &str) {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(output.stdout.is_empty());
    assert!(error.starts_with("mitra: ") && error.contains(says) && error.lines().count() == 1, "{error}");
}

#[test]
fn bad_input_is_reported_in_one_line() {
    refused(&with_input(&[], b"0 1\n1 two\n"), "-: line 2: `two` is no vertex");
    refused(&with_input(&[], b""), "at least one");
    refused(&with_input(&[], b"0 1\n5 6\n"), "vertex 2 is missing");
    refused(&topology(&["--edges", "/no/such/file"]), "cannot open /no/such/file");
    refused(&topology(&["--edges", "/"]), "cannot read /");
    refused(&topology(&["--family", "wheel", "5"]), "no family `wheel`");
    refused(&topology(&["--family", "ring", "many"]), "a size of ring is a whole number, not 'many'");
    refused(&topology(&["--family", "ring"]), "ring takes 1: ring N");
    refused(&topology(&["--suggest", "5", "5"]), "at most 4 can crash");
    refused(&topology(&["--suggest", "5"]), "2 values");
    refused(&topology(&[]), "--edges");
    refused(&topology(&["--family", "ring", "8", "--suggest", "5", "2"]), "cannot be used with");
    refused(
        &topology(&["--family", "ring", "8", "--write", "/no/such/dir/file"]),
        "cannot write /no/such/dir/file",
    );
}

#[test]
fn largest_accepted_graph_is_measured() {
    let edges: String = (0..100_000)
        .map(|v| format!("{v} {}\n", (v * 7 + 1) % 100_000))
        .filter(|line| {
            let mut words = line.split_whitespace();
            words.next() != words.next()
        })
        .collect();
    let value = json(&with_input(&["--json"], edges.as_bytes()));
    assert_eq!(value["n"], 100_000);
    assert!(value["bound_f"].as_u64() <= value["hbo_f"].as_u64());
    refused(&with_input(&[], b"0 100000\n"), "`100000` is no vertex: a number from 0 to 99999");
}
