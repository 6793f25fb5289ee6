//! A server and a client of a foreign program, each a process.

use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

/// The time after which a program is considered to hang.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(120);

/// Returns whether a directory of `PATH` has the program.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Returns a TCP port that is free at the time of the call.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Starts a server, and a client as soon as the server listens. Returns what the client printed.
pub(crate) fn run_pair(server: Command, client: Command, port: &str) -> anyhow::Result<String> {
    let called = pair_output(server, client, port)?;
    Ok(String::from_utf8_lossy(&called.stdout).into_owned())
}

/// As [`run_pair`]. Returns the whole output of the client, which has succeeded.
pub(crate) fn pair_output(mut server: Command, mut client: Command, port: &str) -> anyhow::Result<Output> {
    let quiet = |command: &mut Command| -> anyhow::Result<Child> {
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))
    };
    let mut serving = quiet(&mut server)?;
    let until = Instant::now() + PROGRAM_TIMEOUT;
    let port: u16 = port.parse()?;
    while !is_listening(port) && serving.try_wait()?.is_none() && Instant::now() < until {
        sleep(Duration::from_millis(5));
    }
    let mut calling = quiet(&mut client)?;
    while calling.try_wait()?.is_none() {
        if Instant::now() > until {
            let _ = (calling.kill(), serving.kill()); // fails if the process has just ended
            bail!("{client:?} hangs");
        }
        sleep(Duration::from_millis(5));
    }
    let called = calling.wait_with_output()?;
    let _ = serving.kill(); // some servers wait for another client; the server's end is not measured
    serving.wait()?;
    ensure!(
        called.status.success(),
        "{client:?}: {}\n{}",
        called.status,
        String::from_utf8_lossy(&called.stderr)
    );
    Ok(called)
}

fn is_listening(port: u16) -> bool {
    // proc(5): columns sl, local_address, rem_address, st; state 0A is LISTEN.
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        std::fs::read_to_string(table).unwrap_or_default().lines().any(|line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            columns.get(1).is_some_and(|local| local.ends_with(&format!(":{port:04X}")))
                && columns.get(3) == Some(&"0A")
        })
    })
}
