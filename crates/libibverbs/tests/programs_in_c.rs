//! The verbs as a C program meets them, over the library that is preloaded: what is refused and how, and what may befall one of
//! two processes. Each program runs on one rail and on two.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use support::output_of;

/// The library that is preloaded, built where this test was.
static PRELOAD: LazyLock<PathBuf> = LazyLock::new(|| {
    let own = std::env::current_exe().expect("this test has a path");
    let profile = own.ancestors().nth(2).expect("target/PROFILE/deps/test");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "mitra-preload", "--target-dir"]);
    cargo.arg(profile.parent().expect("it is in the target directory"));
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    output_of(&mut cargo);
    profile.join("libmitra_preload.so")
});

fn build(name: &str) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    // A name of its own: tests run at the same time.
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&program);
    output_of(compiler.arg(sources.join(name).with_extension("c")).arg("-libverbs"));
    program
}

static REFUSED: LazyLock<PathBuf> = LazyLock::new(|| build("refused"));
static PEERS: LazyLock<PathBuf> = LazyLock::new(|| build("peers"));
static RAILS: LazyLock<PathBuf> = LazyLock::new(|| build("rails"));
/// In it are the control sockets of these programs.
static RUNTIME: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a directory"));

/// Runs a program, which ends itself if it hangs.
fn run(program: &Path, play: &[&str], rails: &str) {
    run_with(program, play, rails, &[]);
}

fn run_with(program: &Path, play: &[&str], rails: &str, variables: &[(&str, &str)]) {
    let mut command = Command::new(program);
    command.args(play).env("LD_PRELOAD", &*PRELOAD).env("MITRA_RAILS", rails);
    output_of(command.env("MITRA_RUN_DIR", RUNTIME.path().join("mitra")).envs(variables.iter().copied()));
}

macro_rules! plays {
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

plays! { PEERS: unmapped killed killed_idle forks late destroyed_while_polled ends_in_a_handler parted read_only sleepers shared_receives multicast }

plays! { RAILS: port_events device_fatal access_error last_wqe_reached registers_late resets to_itself rnr_retries_end solicited }

mod log_decides {
    #[test]
    fn with_a_log() {
        super::run_with(&super::RAILS, &["log_decides"], "2", &[("MITRA_LOG", "1")]);
    }

    #[test]
    fn and_not_without() {
        super::run(&super::RAILS, &["log_decides"], "2");
    }
}

mod refused {
    #[test]
    fn on_one_rail() {
        super::run(&super::REFUSED, &[], "1");
    }

    #[test]
    fn on_two_rails() {
        super::run(&super::REFUSED, &[], "2");
    }
}
