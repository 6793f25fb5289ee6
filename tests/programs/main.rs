//! Unmodified verbs programs under `mitra run`: each row of the table is a test, and the table is
//! `docs/compatibility.md`.
//!
//! `cargo test --test programs -- ib_send` runs the rows whose names contain `ib_send`.
//! `cargo xtask setup` installs the programs. `cargo xtask compatibility` runs the rows of
//! downloaded programs, and no others.

mod build_programs;
mod compatibility_page;
mod device_files;
mod downloads_table;
mod exactly_once_under_faults;
mod fio_table;
mod listening;
mod loaded_at_run_time;
mod mismatched_ends;
mod program_alone;
mod rdma_core_suite;
mod reported_pairs;
mod row_runner;
mod rust_table;
mod sanitizers;
mod table;

use std::process::ExitCode;
use std::thread::available_parallelism;

use libtest_mimic::{Arguments, Failed, Trial};

use table::{Row, Shape};

/// A test that is not a row of the table. Its error says what happened instead.
type Test = fn() -> Result<(), String>;

fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    // Most rows are two processes that poll without sleeping.
    let at_a_time = available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1));
    args.test_threads = Some(args.test_threads.unwrap_or(at_a_time).min(at_a_time));
    let mut trials = vec![
        Trial::test("document_is_as_the_table", || compatibility_page::compare().map_err(Failed::from)),
        Trial::test("names_differ", || table::names_differ().map_err(Failed::from)),
    ];
    let (downloaded, installed): (Vec<Row>, Vec<Row>) =
        table::rows().partition(|row| row.section.shape == Shape::Downloaded);
    if row_runner::downloads().is_some() {
        return libtest_mimic::run(&args, downloaded.into_iter().map(trial).collect()).exit_code();
    }
    trials.extend(installed.into_iter().map(trial));
    let tests: [(&str, Test); 18] = [
        ("loaded_by_dlsym", loaded_at_run_time::by_dlsym),
        ("loaded_by_dlvsym", loaded_at_run_time::by_dlvsym),
        ("loaded_by_path", loaded_at_run_time::by_path),
        ("loaded_in_a_namespace", loaded_at_run_time::in_a_namespace),
        ("loaded_from_python", loaded_at_run_time::from_python),
        ("linked_with_libibverbs", loaded_at_run_time::linked),
        ("runpath_of_the_caller_is_searched", loaded_at_run_time::runpath_of_the_caller_is_searched),
        ("program_alone_runs_pingpong", program_alone::runs_pingpong),
        ("library_is_written_once_for_each_content", program_alone::library_is_written_once_for_each_content),
        ("prefer_mismatch", mismatched_ends::prefer_mismatch),
        ("tsan", sanitizers::tsan),
        ("tsan_in_the_program", sanitizers::tsan_in_the_program),
        ("asan", sanitizers::asan),
        ("pod_shm", reported_pairs::pod_shm),
        ("fi_pingpong_udp_flush", reported_pairs::fi_pingpong_udp_flush),
        ("cmtime_1500", reported_pairs::cmtime_1500),
        ("rdma_core_suite_on_one_rail", rdma_core_suite::on_one_rail),
        ("rdma_core_suite_on_two_rails", rdma_core_suite::on_two_rails),
    ];
    for (name, test) in tests {
        trials.push(Trial::test(name, move || test().map_err(Failed::from)));
    }
    trials.extend(device_files::trials());
    trials.push(Trial::test("kills_under_exact", || {
        exactly_once_under_faults::kills_under_exact().map_err(Failed::from)
    }));
    trials.push(Trial::test("kills_under_blanket", || {
        exactly_once_under_faults::kills_under_blanket().map_err(Failed::from)
    }));
    trials.push(Trial::test("runs_over_minimal_nics", || {
        exactly_once_under_faults::runs_over_minimal_nics().map_err(Failed::from)
    }));
    trials.push(Trial::test("kills_under_exact_over_minimal_nics", || {
        exactly_once_under_faults::kills_under_exact_over_minimal_nics().map_err(Failed::from)
    }));
    trials.push(Trial::test("healed_rails_are_used_again", || {
        exactly_once_under_faults::healed_rails_are_used_again().map_err(Failed::from)
    }));
    libtest_mimic::run(&args, trials).exit_code()
}

fn trial(row: Row) -> Trial {
    Trial::test(row.name(), move || row_runner::run(&row).map_err(Failed::from))
}
