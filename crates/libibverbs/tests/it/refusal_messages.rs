//! The explanations of refused calls on standard error, each kind once in a process.

use std::path::PathBuf;
use std::sync::LazyLock;

use mitra_libibverbs::refused_entry_points::{REFUSED_SLOTS, refused_functions};

static REFUSALS: LazyLock<PathBuf> = LazyLock::new(|| crate::c_program::build("refusals"));

/// Runs the program and returns the lines on its standard error.
fn lines(rails: &str, arguments: &[String], variable: Option<&str>) -> Vec<String> {
    let variables: Vec<_> = variable.map(|name| (name, "1")).into_iter().collect();
    let output = crate::c_program::run(&REFUSALS, rails, arguments, &variables);
    let written = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {}\n{written}", output.status);
    assert!(output.stdout.is_empty(), "the library writes nothing to standard output");
    written.lines().map(str::to_owned).collect()
}

fn scenario(name: &str) -> Vec<String> {
    vec![name.to_owned()]
}

/// The calls that the lines explain, sorted. Each line is one sentence: the call, the rule and the
/// way out.
fn explained(lines: &[String]) -> Vec<&str> {
    let mut calls: Vec<&str> = lines
        .iter()
        .map(|line| {
            let rest = line.strip_prefix("mitra: ").unwrap_or_else(|| panic!("{line}"));
            let (call, rule) = rest.split_once(" is refused: ").unwrap_or_else(|| panic!("{line}"));
            assert!(rule.contains([';', ',', ':']), "{line}: a rule and a way out");
            call
        })
        .collect();
    calls.sort_unstable();
    calls
}

/// Every entry point that is always refused: the program's argument, and the name in the message.
fn entry_points() -> (Vec<String>, Vec<&'static str>) {
    let slots = REFUSED_SLOTS.iter().map(|slot| (format!("{}@{}", slot.call, slot.offset), slot.call));
    slots.chain(refused_functions().map(|name| (name.to_owned(), name))).unzip()
}

#[test]
fn every_refused_entry_point_is_explained_once() {
    let (entries, mut calls) = entry_points();
    calls.sort_unstable();
    assert!(calls.len() > 60, "{calls:?}");
    let arguments = [scenario("entry_points"), entries].concat();
    for rails in ["1", "2"] {
        assert_eq!(explained(&lines(rails, &arguments, None)), calls, "on {rails} rails");
    }
    let all = lines("1", &arguments, Some("MITRA_VERBOSE"));
    assert_eq!(explained(&all).len(), 2 * calls.len(), "each call was made twice, and --verbose shows both");
    assert_eq!(lines("1", &arguments, Some("MITRA_QUIET")), [""; 0]);
}

#[test]
fn refused_arguments_are_explained_once() {
    let calls = [
        "ibv_create_ah",
        "ibv_create_qp",
        "ibv_create_qp",
        "ibv_create_qp",
        "ibv_modify_qp",
        "ibv_query_gid",
        "ibv_query_port",
        "ibv_reg_dmabuf_mr",
        "ibv_rereg_mr",
        "rdma_create_id",
    ];
    for rails in ["1", "2"] {
        let lines = lines(rails, &scenario("arguments"), None);
        assert_eq!(explained(&lines), calls, "on {rails} rails: {lines:#?}");
        let way_out = |call: &str, text: &str| {
            let found = lines.iter().any(|line| line.contains(call) && line.contains(text));
            assert!(found, "{call}: {text:?} is in none of {lines:#?}");
        };
        way_out("ibv_create_ah", "-g 0");
        way_out("ibv_query_gid", "-x 0");
        way_out("rdma_create_id", "RDMA_PS_TCP");
    }
}

#[test]
fn calls_of_programs_that_work_are_not_explained() {
    for rails in ["1", "2"] {
        assert_eq!(lines(rails, &scenario("expected"), None), [""; 0], "on {rails} rails");
        let all = lines(rails, &scenario("expected"), Some("MITRA_VERBOSE"));
        assert_eq!(
            explained(&all),
            ["ibv_create_qp", "ibv_dealloc_pd", "ibv_post_send", "ibv_reg_dmabuf_mr"]
        );
    }
}

/// Two ends with different numbers of rails do not connect, and each end explains the refusal once.
#[test]
fn another_number_of_rails_is_explained_at_both_ends() {
    const OWN: &str = "ibv_modify_qp";
    const PEER: &str = "the peer's ibv_modify_qp";
    for (own, other) in [("2", "3"), ("2", "1"), ("1", "3")] {
        let lines = lines(own, &[scenario("rails"), scenario(other)].concat(), None);
        let calls = explained(&lines);
        match [own, other].contains(&"1") {
            true => assert_eq!(calls, [OWN, PEER], "{own} and {other}: {lines:#?}"),
            // An end learns of the other number from the peer's query or from the answer to its
            // own.
            false => {
                let is_right = calls.len() == 2 && calls.iter().all(|call| [OWN, PEER].contains(call));
                assert!(is_right, "{own} and {other}: {lines:#?}");
            }
        }
        assert!(lines.iter().all(|line| line.contains("rails") && line.contains("same")), "{lines:#?}");
    }
}
