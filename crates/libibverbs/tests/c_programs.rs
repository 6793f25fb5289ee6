//! C programs that use the verbs through the preloaded library. Each scenario runs on one rail and on two, and those about permissions
//! and limits on three.

mod rdma_core;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use rdma_core::output_of;

/// The preload library, built in the same target directory and profile as this test.
static PRELOAD: LazyLock<PathBuf> = LazyLock::new(|| {
    let own = std::env::current_exe().expect("the test binary has a path");
    let profile = own.ancestors().nth(2).expect("target/PROFILE/deps/test");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "mitra-preload", "--target-dir"]);
    cargo.arg(profile.parent().expect("the profile directory has a parent"));
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    output_of(&mut cargo);
    profile.join("libmitra_preload.so")
});

fn build(name: &str) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    // Each program has its own name, because tests run in parallel.
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&program);
    output_of(compiler.arg(sources.join(name).with_extension("c")).arg("-libverbs"));
    program
}

static REFUSED_CALLS: LazyLock<PathBuf> = LazyLock::new(|| build("refused_calls"));
static TWO_PROCESSES: LazyLock<PathBuf> = LazyLock::new(|| build("two_processes"));
static ADDRESSES: LazyLock<PathBuf> = LazyLock::new(|| build("addresses"));
static PERMISSIONS: LazyLock<PathBuf> = LazyLock::new(|| build("permissions"));
static LIMITS: LazyLock<PathBuf> = LazyLock::new(|| build("limits"));
static MEMORY_REGIONS: LazyLock<PathBuf> = LazyLock::new(|| build("memory_regions"));
static DEVICE_AND_RAILS: LazyLock<PathBuf> = LazyLock::new(|| build("device_and_rails"));
static CONNECT_WITHOUT_RAIL_0: LazyLock<PathBuf> = LazyLock::new(|| build("connect_without_rail_0"));
static OBJECTS: LazyLock<PathBuf> = LazyLock::new(|| build("objects"));
/// The directory for the control sockets of the programs.
static RUNTIME: LazyLock<tempfile::TempDir> =
    LazyLock::new(|| tempfile::tempdir().expect("a temporary directory can be created"));

/// Runs a program, which ends by an alarm if it hangs.
fn run(program: &Path, arguments: &[&str], rails: &str) {
    run_with(program, arguments, rails, &[]);
}

fn run_with(program: &Path, arguments: &[&str], rails: &str, variables: &[(&str, &str)]) {
    let mut command = Command::new(program);
    command.args(arguments).env("LD_PRELOAD", &*PRELOAD).env("MITRA_RAILS", rails);
    output_of(command.env("MITRA_RUN_DIR", RUNTIME.path().join("mitra")).envs(variables.iter().copied()));
}

macro_rules! scenarios {
    ($program:ident: $($name:ident)*) => {$(
        mod $name {
            #[test]
            fn on_one_rail() {
                super::run(&super::$program, &[stringify!($name)], "1");
            }

            #[test]
            fn on_two_rails() {
                super::run(&super::$program, &[stringify!($name)], "2");
            }
        }
    )*};
}

scenarios! { TWO_PROCESSES: unmapped killed killed_idle forks forks_during_progress late_acknowledgement destroyed_while_polled exits_in_signal_handler peer_closed read_only sleepers shared_receives multicast }

scenarios! { DEVICE_AND_RAILS: port_events device_fatal access_error last_wqe_reached registration_after_nic_death resets connected_to_itself rnr_retries_are_limited solicited }

scenarios! { OBJECTS: foreign_handles destroyed_twice busy inherited domains resized windows_of_type_1 keys_of_windows refused_by_completion }

scenarios! { ADDRESSES: gid_table network_device gid_indices }

scenarios! { MEMORY_REGIONS: unregisterable reregistration null_regions on_demand }

/// Scenarios that run on one, two and three rails, and on two with a completion log.
macro_rules! scenarios_on_any_rails {
    ($program:ident: $($name:ident)*) => {$(
        mod $name {
            #[test]
            fn on_one_rail() {
                super::run(&super::$program, &[stringify!($name)], "1");
            }

            #[test]
            fn on_two_rails() {
                super::run(&super::$program, &[stringify!($name)], "2");
            }

            #[test]
            fn on_two_rails_with_log() {
                super::run_with(&super::$program, &[stringify!($name)], "2", &[("MITRA_LOG", "1")]);
            }

            #[test]
            fn on_three_rails() {
                super::run(&super::$program, &[stringify!($name)], "3");
            }
        }
    )*};
}

scenarios_on_any_rails! { PERMISSIONS: queue_pair_flags changed_flags region_flags foreign_regions unknown_keys messages shared_messages shared_immediates windows failovers datagrams unreliable_writes }

scenarios_on_any_rails! { LIMITS: capacities requests objects completions }

/// Scenarios in which all rails but the last are lost.
macro_rules! scenarios_of_lost_rails {
    ($program:ident: $($name:ident)*) => {$(
        mod $name {
            #[test]
            fn on_two_rails() {
                super::run(&super::$program, &[stringify!($name)], "2");
            }

            #[test]
            fn on_three_rails() {
                super::run(&super::$program, &[stringify!($name)], "3");
            }
        }
    )*};
}

scenarios_of_lost_rails! { CONNECT_WITHOUT_RAIL_0: one_end_is_down both_ends_are_down one_nic_is_dead both_nics_are_dead goes_down_while_connecting }

mod completion_log {
    #[test]
    fn enabled() {
        super::run_with(&super::DEVICE_AND_RAILS, &["completion_log"], "2", &[("MITRA_LOG", "1")]);
    }

    #[test]
    fn disabled() {
        super::run(&super::DEVICE_AND_RAILS, &["completion_log"], "2");
    }
}

mod refused_calls {
    #[test]
    fn on_one_rail() {
        super::run(&super::REFUSED_CALLS, &[], "1");
    }

    #[test]
    fn on_two_rails() {
        super::run(&super::REFUSED_CALLS, &[], "2");
    }
}
