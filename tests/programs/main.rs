//! Unmodified verbs programs under `mitra run`: each row of the table is a test, and the table is `docs/compatibility.md`.
//!
//! `cargo test --test programs -- ib_send` runs the rows with that in their name. What they need is installed by
//! `cargo xtask setup`.

mod build;
mod document;
mod play;
mod survive;
mod table;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

/// Rows at a time: most programs spin, two processes a row.
const AT_A_TIME: usize = 2;

fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    args.test_threads = Some(args.test_threads.unwrap_or(AT_A_TIME).min(AT_A_TIME));
    let mut trials = vec![
        Trial::test("document_is_as_the_table", || document::compare().map_err(Failed::from)),
        Trial::test("names_differ", || table::names_differ().map_err(Failed::from)),
    ];
    for row in table::rows() {
        trials.push(Trial::test(row.name(), move || play::run(&row).map_err(Failed::from)));
    }
    trials.push(Trial::test("kills_under_exact", || survive::kills_under_exact().map_err(Failed::from)));
    trials.push(Trial::test("kills_under_blanket", || survive::kills_under_blanket().map_err(Failed::from)));
    if !args.list {
        build::preload();
    }
    libtest_mimic::run(&args, trials).exit_code()
}
