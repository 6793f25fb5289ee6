//! `mitra` in a directory without any other file of the build, as `cargo install` leaves it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use mitra_test_process::{OwnPort, TestProcess, command};

use super::build_programs::output_of;
use super::listening::is_listening;

/// Copies `mitra` alone into a directory.
fn copy(dir: &Path) -> Result<PathBuf, String> {
    let copy = dir.join("bin/mitra");
    fs::create_dir(dir.join("bin")).map_err(|error| format!("cannot create a directory: {error}"))?;
    fs::copy(env!("CARGO_BIN_EXE_mitra"), &copy).map_err(|error| format!("cannot copy mitra: {error}"))?;
    Ok(copy)
}

fn run(mitra: &Path, dir: &Path, program: &[&str]) -> Command {
    let mut command = command(mitra);
    command.args(["run", "--"]).args(program);
    command.env("XDG_RUNTIME_DIR", dir).env_remove("MITRA_PRELOAD").env_remove("MITRA_RUN_DIR");
    command
}

pub(crate) fn runs_pingpong() -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mitra = copy(dir.path())?;
    let own_port = OwnPort::new();
    let port = own_port.number();
    let line = ["ibv_rc_pingpong", "-g", "0", "-p", &port.to_string()];
    let mut server = TestProcess::start(run(&mitra, dir.path(), &line).stdout(Stdio::null()));
    while !is_listening(port) && server.try_wait().is_none() {
        sleep(Duration::from_millis(10));
    }
    let client = output_of(run(&mitra, dir.path(), &line).arg("127.0.0.1"));
    // The server ends with its client.
    let status = server.wait();
    let text = client?;
    if status.success() && text.contains("1000 iters") {
        Ok(())
    } else {
        Err(format!("server: {status}\n{text}"))
    }
}

pub(crate) fn library_is_written_once_for_each_content() -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mitra = copy(dir.path())?;
    let written = || -> Result<Vec<(PathBuf, u32)>, String> {
        let entries = fs::read_dir(dir.path().join("mitra")).map_err(|error| error.to_string())?;
        Ok(entries
            .flatten()
            .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "so"))
            .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?.permissions().mode() & 0o777)))
            .collect())
    };
    let devices = || output_of(&mut run(&mitra, dir.path(), &["ibv_devices"]));
    let shown = devices()?;
    let first = written()?;
    if !shown.contains("mitra0") || first.len() != 1 || first[0].1 != 0o500 {
        return Err(format!("{shown}\n{first:?}"));
    }
    // A damaged library is written again.
    fs::set_permissions(&first[0].0, fs::Permissions::from_mode(0o700)).map_err(|error| error.to_string())?;
    fs::write(&first[0].0, b"no library").map_err(|error| error.to_string())?;
    let shown = devices()?;
    if shown.contains("mitra0") && written()? == first {
        Ok(())
    } else {
        Err(format!("{shown}\n{:?}", written()?))
    }
}
