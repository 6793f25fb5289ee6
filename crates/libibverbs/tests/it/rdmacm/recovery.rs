//! A program whose NIC has died connects again.

use std::path::PathBuf;
use std::sync::LazyLock;

use crate::c_program::build_with;
use crate::c_programs::reports::{SEVERAL, on_rails};

static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| build_with("recovery_cm", &["-lrdmacm"]));

fn run(scenario: &str) {
    on_rails(&SEVERAL, &PROGRAM, &[scenario]);
}

#[test]
fn caller_loses_rails() {
    run("caller_loses_rails");
}

#[test]
fn listener_loses_rails() {
    run("listener_loses_rails");
}

#[test]
fn both_lose_rails() {
    run("both_lose_rails");
}

#[test]
fn last_rail_is_lost() {
    run("last_rail_is_lost");
}
