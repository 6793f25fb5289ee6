//! Unmodified verbs programs under `mitra run`: each row of the table is a test, and the table is `docs/compatibility.md`.
//!
//! `cargo test --test programs -- ib_send` runs the rows whose names contain `ib_send`. `cargo xtask setup` installs the programs.

mod build_libraries;
mod compatibility_page;
mod exactly_once_under_faults;
mod replacement_library;
mod row_runner;
mod table;

use std::process::ExitCode;
use std::thread::available_parallelism;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    // Most rows are two processes that poll without sleeping.
    let at_a_time = available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1));
    args.test_threads = Some(args.test_threads.unwrap_or(at_a_time).min(at_a_time));
    let mut trials = vec![
        Trial::test("document_is_as_the_table", || compatibility_page::compare().map_err(Failed::from)),
        Trial::test("names_differ", || table::names_differ().map_err(Failed::from)),
    ];
    for row in table::rows() {
        trials.push(Trial::test(row.name(), move || row_runner::run(&row).map_err(Failed::from)));
    }
    for (name, test) in [
        (
            "replacement_is_loaded_at_run_time",
            replacement_library::loaded_at_run_time as fn() -> Result<(), String>,
        ),
        ("replacement_is_linked", replacement_library::linked),
        ("replacement_is_enough_for_rdma_core", replacement_library::under_rdma_core),
    ] {
        trials.push(Trial::test(name, move || test().map_err(Failed::from)));
    }
    trials.push(Trial::test("kills_under_exact", || {
        exactly_once_under_faults::kills_under_exact().map_err(Failed::from)
    }));
    trials.push(Trial::test("kills_under_blanket", || {
        exactly_once_under_faults::kills_under_blanket().map_err(Failed::from)
    }));
    trials.push(Trial::test("healed_rails_are_used_again", || {
        exactly_once_under_faults::healed_rails_are_used_again().map_err(Failed::from)
    }));
    if !args.list {
        build_libraries::preload();
    }
    libtest_mimic::run(&args, trials).exit_code()
}
