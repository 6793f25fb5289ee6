//! Unmodified verbs programs under `mitra run --device`: each alone, and some while rail 0 fails.

pub mod pair;
mod rows;

use std::env;
use std::path::Path;
use std::time::Duration;

use libtest_mimic::Failed;
use nix::unistd::geteuid;

use crate::Devices;
use crate::link_faults::Fault;
use pair::Pair;
use rows::{ROWS, Row};

/// The names of the tests, with their rows.
pub fn tests() -> impl Iterator<Item = (String, &'static Row)> {
    ROWS.iter().map(|row| (format!("unmodified_programs::{}", row.name), row))
}

/// Runs a row alone, and through its failure.
pub fn run(devices: &Devices, row: &Row) -> Result<(), Failed> {
    if !is_installed(row.program()) {
        let missing = format!("{} is not installed; `cargo xtask setup` installs it", row.program());
        // On the machine of a user, the other rows are still of interest.
        if devices.are_rxe() {
            return Err(missing.into());
        }
        println!("SKIPPED: {missing}");
        return Ok(());
    }
    devices.qualification();
    let pair = Pair::start(devices, row, row.short, &[])?;
    pair.wait()?;
    match row.fault {
        Some(fault) if can_fail(devices) => through_failure(devices, row, fault),
        _ => Ok(()),
    }
}

/// Whether links can be made to fail here.
fn can_fail(devices: &Devices) -> bool {
    let can = devices.are_rxe() && geteuid().is_root();
    if !can {
        println!("SKIPPED: failures of links, which need root in the emulated machine");
    }
    can
}

/// Runs a row while rail 0 fails, which heals when the program has ended.
fn through_failure(devices: &Devices, row: &Row, fault: Fault) -> Result<(), Failed> {
    let pair = Pair::start(devices, row, row.long, &[])?;
    let struck = pair.survives(fault);
    let ended = if struck.is_ok() { pair.wait() } else { Ok(()) };
    fault.heal(0);
    struck?;
    ended?;
    pair.check_move()
}

fn is_installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(program).is_file()) || Path::new(program).is_file()
}

/// The time between two looks at processes and counters.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
