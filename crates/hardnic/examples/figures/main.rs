//! Figures of NICs of the kernel: what a virtual queue pair costs over a raw queue pair of the same
//! device, how long a move takes, and Mitra's software NIC beside the kernel's. All ratios are
//! within one run, of blocks that alternate.
//!
//! ```console
//! $ cargo build --release -p mitra-hardnic --example figures
//! $ MITRA_DEVICES=rxe0,rxe0b,rxe1,rxe1b cargo xtask rxe -- target/release/examples/figures [--json] [PART...]
//! ```
//!
//! The parts are `cost`, `failover` and `software`. The last two need the links of the emulated
//! machine, and `software` makes two network namespaces in it.

mod cost;
#[path = "../../tests/hardware/devices.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod devices;
mod failover;
#[path = "../../tests/hardware/link_faults.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod link_faults;
#[path = "../../tests/hardware/rails.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod rails;
mod requester;
mod rows;
mod software;

use std::error::Error;

use devices::Devices;
use rows::Rows;

fn main() -> Result<(), Box<dyn Error>> {
    let (options, parts): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|arg| arg.starts_with("--"));
    let devices = Devices::named().ok_or("set MITRA_DEVICES to the names of four devices")?;
    let mut rows = Rows::default();
    let is_wanted = |part: &str| parts.is_empty() || parts.iter().any(|wanted| wanted == part);
    if is_wanted("cost") {
        cost::measure(&devices, &mut rows)?;
    }
    if is_wanted("failover") {
        failover::measure(&devices, &mut rows)?;
    }
    if is_wanted("software") {
        software::measure(&devices, &mut rows)?;
    }
    rows.print(options.iter().any(|option| option == "--json"));
    Ok(())
}
