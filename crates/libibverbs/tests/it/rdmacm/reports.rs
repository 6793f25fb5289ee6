//! Programs made from reports of users. A program prints its expectations, and exits with 1 if an
//! expectation fails.

use crate::c_program::build_with;
use crate::c_programs::reports::on_all_rails;

/// Builds the program of this name and runs it on one, two and three rails.
fn run(name: &str, arguments: &[&str]) {
    on_all_rails(&build_with(name, &["-lrdmacm"]), arguments);
}

#[test]
fn event_before_accept() {
    run("event_before_accept", &[]);
}

#[test]
fn event_before_accept_migrated() {
    run("event_before_accept", &["migrate"]);
}

#[test]
fn nobody_listens() {
    run("nobody_listens", &[]);
}

#[test]
fn private_data() {
    run("private_data", &[]);
}

#[test]
fn reject_flush() {
    run("reject_flush", &[]);
}

#[test]
fn timewait_exit() {
    run("timewait_exit", &[]);
}

#[test]
fn xrc_cm() {
    run("xrc_cm", &[]);
}

#[test]
fn server_at_limit() {
    run("server_at_limit", &[]);
}

#[test]
fn many_channels() {
    run("many_channels", &[]);
}

#[test]
fn cm_fixed_source_port() {
    run("cm_fixed_source_port", &[]);
}

#[test]
fn cm_port_down() {
    run("cm_port_down", &[]);
}
