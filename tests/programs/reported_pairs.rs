//! Pairs of programs whose failures users have reported.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use mitra_test_process::{OwnPort, TestProcess, command, command_in_shared_network, output};

use super::row_runner::is_listening;

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
