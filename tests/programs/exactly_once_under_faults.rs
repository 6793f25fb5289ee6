//! A program whose rail is killed in mid-run, at many places: each request must have been executed exactly once.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::row_runner::{MOVED, free_port, is_listening};

/// Longer than a run takes on a slow machine: then it hangs.
const PATIENCE: Duration = Duration::from_secs(120);
/// Kills under `exact`, and under `blanket`.
const KILLS: (u64, u64) = (50, 6);
/// Rounds of fetch-and-add, WRITE and SEND of a run; a window of 48 rounds is in flight.
const ROUNDS: u64 = 4_000;
static CHECKER: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("exactly-once");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/exactly_once.c");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-Wall", "-Wno-unused-result", "-o"]).arg(&program).arg(source).arg("-libverbs");
    let built = cc.output().map_err(|error| format!("cc: {error}; `cargo xtask setup` installs it"))?;
    match built.status.success() {
        true => Ok(program),
        false => Err(format!("cc: {}", String::from_utf8_lossy(&built.stderr))),
    }
});

/// A program under `mitra run --rails 2`.
fn under_mitra(options: &[&str], words: &[&str]) -> Result<Child, String> {
    Command::new(env!("CARGO_BIN_EXE_mitra"))
        .args(["run", "--rails", "2"])
        .args(options)
        .arg("--")
        .args(words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot start mitra: {error}"))
}

/// Waits for it to end; kills it when the time is up.
fn end(mut child: Child, until: Instant) -> Result<Output, String> {
    let in_time = loop {
        match child.try_wait() {
            Ok(Some(_)) | Err(_) => break true,
            Ok(None) if Instant::now() > until => break false,
            Ok(None) => sleep(Duration::from_millis(5)),
        }
    };
    if !in_time {
        let _ = child.kill(); // it may just have ended
    }
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if in_time { Ok(output) } else { Err(format!("hangs\n{}", text(&output))) }
}

fn text(output: &Output) -> String {
    let streams = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{}\n{}{}", output.status, streams[0], streams[1])
}

/// Runs a server, and a client when it listens.
fn pair(server: (&[&str], &[&str]), client: (&[&str], &[&str]), port: u16) -> Result<[Output; 2], String> {
    let until = Instant::now() + PATIENCE;
    let mut serving = under_mitra(server.0, server.1)?;
    while !is_listening(port) && matches!(serving.try_wait(), Ok(None)) && Instant::now() < until {
        sleep(Duration::from_millis(5));
    }
    let calling = under_mitra(client.0, client.1)?;
    let called = end(calling, until);
    let served = end(serving, until.max(Instant::now() + Duration::from_secs(10)));
    match (served, called) {
        (Ok(served), Ok(called)) => Ok([served, called]),
        (served, called) => {
            let said = |end: Result<Output, String>| end.map_or_else(|e| e, |output| text(&output));
            Err(format!("--- server: {}\n--- client: {}", said(served), said(called)))
        }
    }
}

fn both(ends: &[Output; 2]) -> String {
    format!("--- server: {}\n--- client: {}", text(&ends[0]), text(&ends[1]))
}

/// What the checker found.
#[derive(Clone, Copy, Debug)]
struct Found {
    lost: u64,
    doubled: u64,
    wrong: u64,
    torn: u64,
    errors: u64,
}

/// One run of the checker with one kill, of either end's link, at a stage and a number that the seed chooses.
fn kill(seed: u64, policy: &str) -> Result<(Found, String), String> {
    // Requests leave the client (1, 2) and arrive (3), are executed (5) and acknowledged (6) at the server; the client hears of
    // that (7). Acknowledgements are fewer than requests.
    let (stage, most) =
        [(1, 9_000), (2, 9_000), (3, 9_000), (5, 9_000), (6, 400), (7, 400)][seed as usize % 6];
    let nth = 50 + (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) % (most - 50);
    let fault = format!("rail0 link-down@{stage}:{nth}");
    let (found, said) = check(&fault, policy, matches!(stage, 1 | 2 | 7), ROUNDS)?;
    if !said.contains(MOVED) {
        return Err(format!("no rail was killed in mid-run\n{said}"));
    }
    Ok((found, said))
}

/// One run of the checker with these faults of the client's or the server's rails.
fn check(fault: &str, policy: &str, at_client: bool, rounds: u64) -> Result<(Found, String), String> {
    let program = CHECKER.clone()?;
    let program = program.to_str().ok_or("the target directory's name is not UTF-8")?;
    let port = free_port()?;
    let (number, rounds) = (port.to_string(), rounds.to_string());
    let policy = ["--policy", policy];
    let with_fault = [policy[0], policy[1], "--fault", fault];
    let (server, client): (&[&str], &[&str]) =
        if at_client { (&policy, &with_fault) } else { (&with_fault, &policy) };
    let ends =
        pair((server, &[program, &number]), (client, &[program, &number, "127.0.0.1", &rounds]), port)?;
    let said = both(&ends);
    let json: serde_json::Value = serde_json::from_slice(&ends[1].stdout)
        .map_err(|error| format!("{fault}: the checker found nothing: {error}\n{said}"))?;
    let get = |name: &str| json[name].as_u64().ok_or(format!("{fault}: no {name:?}\n{said}"));
    let found = Found {
        lost: get("lost")?,
        doubled: get("doubled")?,
        wrong: get("wrong")?,
        torn: get("torn")?,
        errors: get("errors")?,
    };
    Ok((found, format!("{fault}: {found:?}\n{said}")))
}

/// Each request is executed exactly once, whenever the rail is killed.
pub(crate) fn kills_under_exact() -> Result<(), String> {
    for seed in 0..KILLS.0 {
        let (found, said) = kill(seed, "exact")?;
        if found.lost + found.doubled + found.wrong + found.torn + found.errors > 0 {
            return Err(format!("seed {seed}: {said}"));
        }
    }
    Ok(())
}

/// Rails go and come back in turn, and there is one at any time: the program lives on, and uses again what it left.
pub(crate) fn healed_rails_are_used_again() -> Result<(), String> {
    let mut script = String::new();
    for loss in 0..6 {
        let (rail, at) = (loss % 2, 300 + 400 * loss);
        script += &format!("rail{rail} down at {at}ms; rail{rail} up at {}ms; ", at + 200);
    }
    for at_client in [true, false] {
        let mut rounds = 50 * ROUNDS;
        loop {
            let (found, said) = check(script.trim_end_matches("; "), "exact", at_client, rounds)?;
            if found.lost + found.doubled + found.wrong + found.torn + found.errors > 0 {
                return Err(said);
            }
            // Each end tells of each move.
            let moved =
                ["from rail 0 to rail 1", "from rail 1 to rail 0"].map(|move_| said.matches(move_).count());
            if moved == [6, 6] {
                break;
            }
            // On a fast machine it was done before that.
            rounds *= 2;
            if rounds > 2_000 * ROUNDS {
                return Err(format!("{rounds} rounds, and {moved:?} moves there and back\n{said}"));
            }
        }
    }
    Ok(())
}

/// The same, sent again blindly, doubles: the checker sees what there is to see.
pub(crate) fn kills_under_blanket() -> Result<(), String> {
    let mut doubled = 0;
    for seed in 0..KILLS.1 {
        doubled += kill(seed, "blanket")?.0.doubled;
    }
    if doubled > 0 { Ok(()) } else { Err(format!("{} kills, and nothing was executed twice", KILLS.1)) }
}
