//! What every NIC must do, case by case.

use std::cell::OnceCell;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use mitra_conformance::{CASES, Case, Difference, Fabric, Outcome, Report, run};
use mitra_hardnic::HardNic;
use mitra_verbs::Provider;

use crate::devices::Devices;

/// What soft-RoCE does otherwise.
const RXE: &[Difference] = &[];

/// Two devices, which are opened for the first case and used for all.
struct HardNics {
    devices: Devices,
    open: Mutex<OnceCell<[Arc<HardNic>; 2]>>,
}

impl Fabric for HardNics {
    fn name(&self) -> String {
        self.devices.names.join(" and ")
    }

    fn nics(&self) -> [Arc<dyn Provider>; 2] {
        let open = self.open.lock().expect("no case panics while it opens devices");
        open.get_or_init(|| self.devices.open()).clone().map(|nic| nic as Arc<dyn Provider>)
    }

    fn wait(&self) {
        std::thread::yield_now();
    }

    /// Each case takes milliseconds, and a device that does otherwise must not keep CI waiting.
    fn patience(&self) -> Duration {
        Duration::from_secs(5)
    }
}

pub fn trials(devices: &Option<Devices>) -> Vec<Trial> {
    let fabric = devices.clone().map(|devices| Arc::new(HardNics { devices, open: Mutex::default() }));
    let trial = |case: &'static Case| {
        let fabric = fabric.clone();
        Trial::test(format!("conformance::{}", case.name), move || check(&*fabric.ok_or("no devices")?, case))
    };
    CASES.iter().map(trial).collect()
}

fn check(fabric: &HardNics, case: &'static Case) -> Result<(), Failed> {
    let outcome = run(fabric, case);
    let is_rxe = fabric
        .open
        .lock()
        .is_ok_and(|open| open.get().is_some_and(|nics| nics.iter().any(|nic| nic.driver() == Some("rxe"))));
    if let Outcome::Refused(what) = &outcome {
        println!("{}: not offered: {what}", case.name);
    }
    let differences: Vec<Difference> =
        if is_rxe { RXE.iter().filter(|d| d.case() == case.name).copied().collect() } else { Vec::new() };
    let report = Report { fabric: fabric.name(), outcomes: vec![(case.name, outcome)] };
    let unexpected = report.unexpected(&differences);
    if unexpected.is_empty() { Ok(()) } else { Err(unexpected.join("\n").into()) }
}
