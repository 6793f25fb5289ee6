//! Runs a program and fails its rail at many points of the run. Each request must be executed
//! exactly once.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::LazyLock;
use std::thread::sleep;
use std::time::Duration;

use mitra_prng::seeds;
use mitra_test_process::{Expired, OwnPort, TestProcess, command, variants};

use super::build_programs::compile_with;
use super::listening::is_listening;
use super::row_runner::MOVED;

/// The time after which a run counts as hanging. It is longer than a run takes on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The number of runs under `exact`, and under `blanket`.
const KILLS: (u64, u64) = (50, 6);
/// The number of runs over minimal NICs.
const KILLS_OVER_MINIMAL_NICS: u64 = 6;
const EXACT: [&str; 4] = ["--rails", "2", "--policy", "exact"];
/// Rounds of a run. A round is a fetch-and-add, a WRITE and a SEND; 48 rounds are in flight.
const ROUNDS: u64 = 4_000;
static CHECKER: LazyLock<PathBuf> = LazyLock::new(|| {
    let mut cc = command("cc");
    cc.args(["-O2", "-Wall", "-Wno-unused-result"]);
    compile_with(&mut cc, "exactly_once.c", "exactly-once", &["-libverbs"])
});

/// Starts a program under `mitra run`.
fn under_mitra(options: &[&str], words: &[&str], dir: &Path) -> TestProcess {
    let mut mitra = command(env!("CARGO_BIN_EXE_mitra"));
    mitra.arg("run").args(options).arg("--").args(words);
    mitra.env("XDG_RUNTIME_DIR", dir).stdout(Stdio::piped()).stderr(Stdio::piped());
    TestProcess::start_within(&mut mitra, TIMEOUT)
}

fn text(output: &Output) -> String {
    let streams = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{}\n{}{}", output.status, streams[0], streams[1])
}

/// Runs a server, and a client once the server listens.
fn pair(server: (&[&str], &[&str]), client: (&[&str], &[&str]), port: u16) -> Result<[Output; 2], String> {
    let dir = tempfile::tempdir().map_err(|error| format!("cannot make a directory: {error}"))?;
    let mut serving = under_mitra(server.0, server.1, dir.path());
    while !is_listening(port) && serving.try_wait().is_none() {
        sleep(Duration::from_millis(5));
    }
    let calling = under_mitra(client.0, client.1, dir.path());
    let called = calling.output();
    match (serving.output(), called) {
        (Ok(served), Ok(called)) => Ok([served, called]),
        (served, called) => {
            let outputs = |end: Result<Output, Expired>| end.map_or_else(|e| e.to_string(), |o| text(&o));
            Err(format!("--- server: {}\n--- client: {}", outputs(served), outputs(called)))
        }
    }
}

fn both(ends: &[Output; 2]) -> String {
    format!("--- server: {}\n--- client: {}", text(&ends[0]), text(&ends[1]))
}

/// The violations that the checking program counted.
#[derive(Clone, Copy, Debug)]
struct Violations {
    lost: u64,
    doubled: u64,
    wrong: u64,
    torn: u64,
    errors: u64,
}

impl Violations {
    fn any(self) -> bool {
        self.lost + self.doubled + self.wrong + self.torn + self.errors > 0
    }
}

/// Runs the checking program once, with these options at both ends, and takes down the link of
/// either end, at a stage and a packet that the seed chooses.
fn kill(seed: u64, options: &[&str]) -> Result<(Violations, String), String> {
    // Stages 1, 2 and 7 occur at the client, 3, 5 and 6 at the server. Acknowledgements (6, 7) are
    // fewer than requests.
    let (stage, most) =
        [(1, 9_000), (2, 9_000), (3, 9_000), (5, 9_000), (6, 400), (7, 400)][seed as usize % 6];
    let nth = 50 + (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) % (most - 50);
    let fault = format!("rail0 link-down@{stage}:{nth}");
    let (found, outputs) = check(&fault, options, matches!(stage, 1 | 2 | 7), ROUNDS)?;
    if !outputs.contains(MOVED) && found.errors == 0 {
        return Err(format!("no rail failed during the run\n{outputs}"));
    }
    Ok((found, outputs))
}

/// Runs the checking program once, with these options at both ends, and a fault script at the
/// client or at the server unless it is empty.
fn check(
    fault: &str,
    options: &[&str],
    at_client: bool,
    rounds: u64,
) -> Result<(Violations, String), String> {
    let program = CHECKER.to_str().ok_or("the target directory's name is not UTF-8")?;
    let own_port = OwnPort::new();
    let port = own_port.number();
    let (number, rounds) = (port.to_string(), rounds.to_string());
    let with_fault =
        if fault.is_empty() { options.to_vec() } else { [options, &["--fault", fault]].concat() };
    let (server, client): (&[&str], &[&str]) =
        if at_client { (options, &with_fault) } else { (&with_fault, options) };
    let ends =
        pair((server, &[program, &number]), (client, &[program, &number, "127.0.0.1", &rounds]), port)?;
    let outputs = both(&ends);
    let json: serde_json::Value = serde_json::from_slice(&ends[1].stdout)
        .map_err(|error| format!("{fault}: the checker found nothing: {error}\n{outputs}"))?;
    let get = |name: &str| json[name].as_u64().ok_or(format!("{fault}: no {name:?}\n{outputs}"));
    let found = Violations {
        lost: get("lost")?,
        doubled: get("doubled")?,
        wrong: get("wrong")?,
        torn: get("torn")?,
        errors: get("errors")?,
    };
    Ok((found, format!("{fault}: {found:?}\n{outputs}")))
}

/// Under `exact` each request is executed exactly once, wherever the rail fails.
pub(crate) fn kills_under_exact() -> Result<(), String> {
    for seed in seeds(KILLS.0) {
        let (found, outputs) = kill(seed, &EXACT)?;
        if found.any() {
            return Err(format!("seed {seed}: {outputs}"));
        }
    }
    Ok(())
}

/// Two rails fail and heal in turn, and at any time one of them is up. The program survives and
/// moves back to healed rails.
pub(crate) fn healed_rails_are_used_again() -> Result<(), String> {
    let mut script = String::new();
    for loss in 0..6 {
        let (rail, at) = (loss % 2, 300 + 400 * loss);
        script += &format!("rail{rail} down at {at}ms; rail{rail} up at {}ms; ", at + 200);
    }
    for at_client in variants("rails fail at the client", &[true, false]) {
        let mut rounds = 50 * ROUNDS;
        loop {
            let (found, outputs) = check(script.trim_end_matches("; "), &EXACT, at_client, rounds)?;
            if found.any() {
                return Err(outputs);
            }
            // Each end logs each move.
            let moved = ["from rail 0 to rail 1", "from rail 1 to rail 0"]
                .map(|move_| outputs.matches(move_).count());
            if moved == [6, 6] {
                break;
            }
            // On a fast machine the run ended before the last fault.
            rounds *= 2;
            if rounds > 2_000 * ROUNDS {
                return Err(format!("{rounds} rounds, and {moved:?} moves there and back\n{outputs}"));
            }
        }
    }
    Ok(())
}

/// Under `blanket` requests are executed twice, which shows that the checking program detects it.
pub(crate) fn kills_under_blanket() -> Result<(), String> {
    let mut doubled = 0;
    for seed in 0..KILLS.1 {
        doubled += kill(seed, &["--rails", "2", "--policy", "blanket"])?.0.doubled;
    }
    if doubled > 0 { Ok(()) } else { Err(format!("{} kills, and nothing was executed twice", KILLS.1)) }
}

/// NICs that are no plain software NICs: without inline data, and with less evidence.
fn minimal_nics(rails: &str) -> [&str; 4] {
    ["--nics", "minimal", "--rails", rails]
}

/// The program does what it does over software NICs, on one rail and on two. A completion log needs
/// inline data, which shows that the NICs are the chosen ones.
pub(crate) fn runs_over_minimal_nics() -> Result<(), String> {
    for rails in ["1", "2"] {
        let (found, outputs) = check("", &minimal_nics(rails), true, ROUNDS)?;
        if found.any() {
            return Err(format!("{rails} rails: {outputs}"));
        }
    }
    let options = [&minimal_nics("2")[..], &["--log"]].concat();
    match check("", &options, true, ROUNDS) {
        Err(outputs) if outputs.contains("inline") => Ok(()),
        Err(outputs) => Err(outputs),
        Ok((_, outputs)) => Err(format!("a completion log without inline data\n{outputs}")),
    }
}

/// Over minimal NICs a request in flight may end with an error, which ends the run. None is
/// executed twice, and a run without an error has lost nothing.
pub(crate) fn kills_under_exact_over_minimal_nics() -> Result<(), String> {
    for seed in seeds(KILLS_OVER_MINIMAL_NICS) {
        let (found, outputs) = kill(seed, &minimal_nics("2"))?;
        if found.doubled + found.wrong > 0 || found.errors == 0 && found.any() {
            return Err(format!("seed {seed}: {outputs}"));
        }
    }
    Ok(())
}
