//! What sysfs says of a device: its driver, and the counters of its port.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use mitra_verbs::Counter;

/// The vendor that soft-RoCE reports (`RXE_VENDOR_ID` of the kernel). It has no PCI device, so
/// sysfs names no driver.
const RXE_VENDOR: u32 = 0xff_ffff;

/// The name of the driver of soft-RoCE.
pub(crate) const RXE: &str = "rxe";

fn directory(device: &str) -> PathBuf {
    Path::new("/sys/class/infiniband").join(device)
}

/// Returns the name of the driver of a device, such as `mlx5_core` or `rxe`. Returns `None` if it
/// is not known.
pub(crate) fn driver(device: &str, vendor_id: u32) -> Option<String> {
    match fs::read_link(directory(device).join("device/driver")) {
        Ok(path) => Some(path.file_name()?.to_string_lossy().into_owned()),
        Err(_) => (vendor_id == RXE_VENDOR).then(|| RXE.to_owned()),
    }
}

/// Returns the counters of the device's port. Drivers give them different names.
pub(crate) fn counters(device: &str) -> Vec<Counter> {
    let port = directory(device).join("ports/1");
    let mut counters = Vec::new();
    for kind in ["hw_counters", "counters"] {
        let Ok(entries) = fs::read_dir(port.join(kind)) else { continue };
        for entry in entries.flatten() {
            let value = fs::read_to_string(entry.path()).ok().and_then(|text| text.trim().parse().ok());
            if let Some(value) = value {
                counters.push(Counter { name: intern(&entry.file_name().to_string_lossy()), value });
            }
        }
    }
    counters.sort_by_key(|counter| counter.name);
    counters.dedup_by_key(|counter| counter.name);
    counters
}

/// Returns a string that lives as long as the process. There are as many as the drivers of this
/// machine have names of counters.
fn intern(name: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    match names.get(name) {
        Some(known) => known,
        None => {
            let leaked: &'static str = Box::leak(name.to_owned().into_boxed_str());
            names.insert(leaked);
            leaked
        }
    }
}
