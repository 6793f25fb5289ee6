//! Programs under `mitra run` whose two ends have different options.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use mitra_test_process::{OwnPort, TestProcess, command};

use super::listening::is_listening;

/// Both ends name the option and both values. No end blames the number of rails, which is the same.
pub(crate) fn prefer_mismatch() -> Result<(), String> {
    let cases: [(&[&str], &str, &str); 4] = [
        (&["--prefer", "0"], "--prefer 0", "no --prefer"),
        (&["--policy", "blanket"], "--policy blanket", "--policy exact"),
        (&["--log"], "--log", "no --log"),
        (&["--prefer", "1", "--log"], "--log, --prefer 1", "no --log, no --prefer"),
    ];
    for (options, with, without) in cases {
        for (server, client, texts) in [(options, &[][..], [with, without]), (&[], options, [without, with])]
        {
            // The server of pingpong refuses before its client has called `ibv_modify_qp`. Both
            // ends of ib_write_bw connect at the same time.
            for program in [&["ibv_rc_pingpong", "-g", "0"][..], &["ib_write_bw", "-n", "200"]] {
                refused(program, [server, client], texts)?;
            }
        }
    }
    Ok(())
}

/// Runs a server and its client, and checks that each says its own options and those of its peer.
fn refused(program: &[&str], options: [&[&str]; 2], texts: [&str; 2]) -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let own_port = OwnPort::new();
    let port = own_port.number();
    let logs = ["server", "client"].map(|name| dir.path().join(name));
    let end = |i: usize, log: &Path| -> Result<Command, String> {
        let mut command = command(env!("CARGO_BIN_EXE_mitra"));
        command.args(["run", "--rails", "2"]).args(options[i]).arg("--").args(program);
        command.args(["-p", &port.to_string()]).env("XDG_RUNTIME_DIR", dir.path()).stdout(Stdio::null());
        for name in ["MITRA_PRELOAD", "MITRA_RUN_DIR", "MITRA_PREFER", "MITRA_POLICY", "MITRA_LOG"] {
            command.env_remove(name);
        }
        command.stderr(File::create(log).map_err(|error| error.to_string())?);
        Ok(command)
    };
    let mut server = TestProcess::start(&mut end(0, &logs[0])?);
    while !is_listening(port) && server.try_wait().is_none() {
        sleep(Duration::from_millis(10));
    }
    let mut client = TestProcess::start(end(1, &logs[1])?.arg("127.0.0.1"));
    let statuses = [server.wait(), client.wait()];
    for i in 0..2 {
        let said = fs::read_to_string(&logs[i]).map_err(|error| error.to_string())?;
        let expected = format!(
            "this end has {} and the other end has {}; give both ends the same",
            texts[i],
            texts[1 - i]
        );
        if statuses[i].success() || said.matches(&expected).count() != 1 || said.contains("number of --rails")
        {
            return Err(format!(
                "{program:?} {options:?}, end {i}: {} and not {expected:?}: {said}",
                statuses[i]
            ));
        }
    }
    Ok(())
}
