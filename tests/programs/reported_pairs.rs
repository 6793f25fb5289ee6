//! Pairs of programs whose failures users have reported.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use mitra_test_process::{OwnPort, TestProcess, command, command_in_shared_network, output, variants};
use nix::sys::signal::Signal;

use super::listening::is_listening;

/// How often the pair of [`fi_pingpong_udp_flush`] runs. One run of three failed.
const PINGPONG_RUNS: usize = 4;

/// Adds `mitra run` with its options, and a program with its options.
fn under_mitra<'a>(command: &'a mut Command, dir: &Path, options: &str, program: &[&str]) -> &'a mut Command {
    command.arg(env!("CARGO_BIN_EXE_mitra")).arg("run").args(options.split(' ')).arg("--").args(program);
    command.env("XDG_RUNTIME_DIR", dir).env_remove("MITRA_RUN_DIR").env_remove("MITRA_PRELOAD");
    command
}

/// Runs a server, and a client when the server listens. Returns what they print if one fails.
fn run_pair(mut server: Command, client: &mut Command, port: u16) -> Result<String, String> {
    let mut server = TestProcess::start(server.stdout(Stdio::piped()).stderr(Stdio::piped()));
    while !is_listening(port) && server.try_wait().is_none() {
        sleep(Duration::from_millis(10));
    }
    let client = output(client);
    // The server ends with its client.
    let server = server.output().map_err(|expired| format!("{expired:?}"))?;
    let printed =
        [&client.stdout, &client.stderr, &server.stdout, &server.stderr].map(|text| &text[..]).concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    if client.status.success() && server.status.success() {
        Ok(printed)
    } else {
        Err(format!("client: {}, server: {}\n{printed}", client.status, server.status))
    }
}

/// Two containers of a pod: one network namespace, one user, and a PID namespace each. With links
/// through shared memory only, nothing else can carry the packets.
pub(crate) fn pod_shm() -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).map_err(|error| error.to_string())?;
    for options in ["--links shm", "--links shm --rails 2"] {
        let own_port = OwnPort::new();
        let port = own_port.number().to_string();
        let program = ["ibv_rc_pingpong", "-g", "0", "-c", "-n", "200", "-p", &port];
        let mut server = command_in_shared_network();
        under_mitra(&mut server, dir.path(), options, &program);
        let mut client = command_in_shared_network();
        under_mitra(&mut client, dir.path(), options, &program).arg("127.0.0.1");
        run_pair(server, &mut client, own_port.number()).map_err(|error| format!("{options}: {error}"))?;
    }
    Ok(())
}

/// 1,500 connections at once in processes that may have 1,024 descriptors. A connection took two.
pub(crate) fn cmtime_1500() -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    for options in variants("cmtime_1500", &["--rails 1", "--rails 2"]) {
        let own_port = OwnPort::new();
        // The TCP port that stands for the port of rdma_cm.
        let port = (own_port.number() ^ 1 << 13).to_string();
        let start = |arguments: &[&str]| {
            let mut limited = command("sh");
            limited.args(["-c", "ulimit -n 1024 && exec \"$@\"", "sh"]);
            let program = [&["cmtime", "-c", "1500", "-p", &port], arguments].concat();
            under_mitra(&mut limited, dir.path(), options, &program);
            limited
        };
        let mut server = TestProcess::start(start(&[]).stdout(Stdio::null()).stderr(Stdio::null()));
        while !is_listening(own_port.number()) {
            if let Some(status) = server.try_wait() {
                return Err(format!("{options}: the server ended with {status}"));
            }
            sleep(Duration::from_millis(10));
        }
        let client = output(&mut start(&["-s", "127.0.0.1"]));
        // The server serves its next client.
        server.signal(Signal::SIGTERM);
        server.wait();
        let [printed, errors] = [&client.stdout, &client.stderr].map(|text| String::from_utf8_lossy(text));
        let steps = ["connect", "disconnect", "destroy"];
        let has_all = steps.iter().all(|step| printed.lines().any(|line| line.starts_with(step)));
        let has_failed =
            [&printed, &errors].iter().any(|text| text.contains("error") || text.contains("fail"));
        if !client.status.success() || !has_all || has_failed {
            return Err(format!("{options}: {}\n{printed}\n{errors}", client.status));
        }
    }
    Ok(())
}

/// The last SEND of fi_pingpong was flushed when its peer had ended.
pub(crate) fn fi_pingpong_udp_flush() -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    for run in 0..PINGPONG_RUNS {
        let own_port = OwnPort::new();
        let port = own_port.number().to_string();
        let program = "fi_pingpong -p verbs;ofi_rxm -e rdm -m tagged -c -I 20 -S 64";
        let program: Vec<_> = program.split(' ').collect();
        let options = "--links udp --rails 2";
        let mut server = command("env");
        under_mitra(&mut server, dir.path(), options, &program).args(["-B", &port]);
        let mut client = command("env");
        under_mitra(&mut client, dir.path(), options, &program).args(["-P", &port, "127.0.0.1"]);
        let printed = run_pair(server, &mut client, own_port.number())
            .map_err(|error| format!("run {run}: {error}"))?;
        // fi_pingpong succeeds even if its last request fails.
        if printed.contains("Flushed Error") {
            return Err(format!("run {run}: {printed}"));
        }
    }
    Ok(())
}
