//! Mitra and Linux's `rdma_rxe` on one link, in the virtual machine of `cargo xtask rxe`.
//!
//! The test program runs twice. On the host it compiles `rxe_peer.c`, boots the virtual machine and
//! starts itself there, in the namespace peer0. In the virtual machine it runs the scenarios and
//! prints a line for each.

#[path = "interop/kernel_endpoint.rs"]
mod kernel_endpoint;
#[path = "interop/kernel_to_kernel.rs"]
mod kernel_to_kernel;
#[path = "interop/mitra/mod.rs"]
mod mitra;
#[path = "interop/rxe_peer_protocol.rs"]
mod rxe_peer_protocol;

use std::path::Path;
use std::time::{Duration, Instant};

use mitra_test_process::{build_once, command, output, output_within};

/// The name and the function of a scenario.
type Scenario = (&'static str, fn() -> anyhow::Result<()>);

/// The environment variable that selects the scenarios whose names begin with its value.
const ONLY: &str = "MITRA_RXE_ONLY";

/// The time for the scenarios, after which the task ends the machine.
const MACHINE_SECONDS: &str = "600";
/// [`MACHINE_SECONDS`], and the time to build the task and to boot.
const XTASK_DEADLINE: Duration = Duration::from_secs(900);

/// All scenarios, in the order in which they run.
fn scenarios() -> impl Iterator<Item = &'static Scenario> {
    let only = std::env::var(ONLY).unwrap_or_default();
    kernel_to_kernel::SCENARIOS
        .iter()
        .chain(mitra::scenarios())
        .filter(move |(name, _)| name.starts_with(&only))
}

/// The environment variable that is set in the virtual machine.
const IN_THE_MACHINE: &str = "MITRA_RXE_MACHINE";

#[test]
fn interop_with_rdma_rxe() {
    if std::env::var_os(IN_THE_MACHINE).is_some() { run_scenarios() } else { boot() }
}

fn run_scenarios() {
    for (name, scenario) in scenarios() {
        let start = Instant::now();
        match scenario() {
            Ok(()) => println!("ok {name}  ({} ms)", start.elapsed().as_millis()),
            Err(error) => {
                println!("FAIL {name}: {error:#}");
                if name.starts_with("mitra/") {
                    mitra::print_wire();
                }
            }
        }
    }
}

fn boot() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/rxe_peer.c");
    let peer = build_once(Path::new(env!("CARGO_TARGET_TMPDIR")).join("rxe_peer"), |peer| {
        let mut cc = command("cc");
        let compiled =
            output(cc.args(["-O1", "-Wall", "-Werror", "-o"]).arg(peer).arg(&source).arg("-libverbs"));
        assert!(
            compiled.status.success(),
            "cannot compile rxe_peer.c (it needs libibverbs-dev; run `cargo xtask setup`): {}",
            String::from_utf8_lossy(&compiled.stderr)
        );
    });

    let guest = r#""$0" & exec ip netns exec peer0 "$1" --exact interop_with_rdma_rxe --nocapture"#;
    let mut xtask = command(env!("CARGO"));
    xtask
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args([
            "xtask",
            "rxe",
            "--no-fetch",
            "--topo",
            "interop",
            "--timeout",
            MACHINE_SECONDS,
            "--",
            "sh",
            "-c",
            guest,
        ])
        .arg(&peer)
        .arg(std::env::current_exe().expect("this program has a path"))
        .env(IN_THE_MACHINE, "1");
    let ran = output_within(&mut xtask, XTASK_DEADLINE);
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    println!("{out}{err}");
    assert_ne!(
        ran.status.code(),
        Some(125),
        "the rxe machine did not run (see above); run `cargo xtask setup`"
    );
    assert!(scenarios().next().is_some(), "no scenario begins with the value of {ONLY}");
    for (name, _) in scenarios() {
        assert!(
            out.lines().any(|line| line.split("  ").next() == Some(&format!("ok {name}"))),
            "no `ok {name}`"
        );
    }
    assert!(ran.status.success(), "the scenarios ended with {}", ran.status);
}
