//! The tests on verbs devices: soft-RoCE in the emulated machine, or what this machine has. `cargo
//! xtask hardware` runs them. `MITRA_DEVICES` names pairs of devices that reach each other, with
//! commas between: `rxe0,rxe0b,rxe1,rxe1b`. A single device is connected to itself.

mod central_schedule;
mod conformance;
mod destroyed_queue_pair;
mod devices;
mod dropped_nic;
mod ends;
mod faults;
#[allow(dead_code, reason = "the programs of mitra use all of it")]
mod link_faults;
mod lost_address;
mod rails;
mod watch;

use std::process::ExitCode;
use std::sync::Arc;

use devices::Devices;
use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    central_schedule::run_peer();
    let args = Arguments::from_args();
    let devices = Devices::named().map(Arc::new);
    let mut trials = conformance::trials(devices.as_ref());
    trials.extend(central_schedule::trials(devices.as_ref()));
    trials.extend(destroyed_queue_pair::trials(devices.as_ref()));
    trials.extend(dropped_nic::trials(devices.as_ref()));
    trials.extend(faults::trials(devices.as_ref()));
    trials.extend(lost_address::trials(devices.as_ref()));
    trials.extend(watch::trials(devices.as_ref()));
    // Without devices each test is listed as ignored.
    let is_ignored = devices.is_none();
    let trials: Vec<Trial> = trials.into_iter().map(|trial| trial.with_ignored_flag(is_ignored)).collect();
    libtest_mimic::run(&args, trials).exit_code()
}
