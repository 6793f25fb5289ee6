//! What sysfs says of a device: its driver, and the counters of its port.
//!
//! The files are read by system calls, not by functions of the C library: in a program of `mitra
//! run`, these show the files of Mitra's own device.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use mitra_verbs::Counter;
use rustix::fs::{Dir, Mode, OFlags, open, readlink};
use rustix::io::{Errno, read};

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
    match readlink(directory(device).join("device/driver"), Vec::new()) {
        Ok(path) => {
            Some(Path::new(OsStr::from_bytes(path.as_bytes())).file_name()?.to_string_lossy().into_owned())
        }
        Err(_) => (vendor_id == RXE_VENDOR).then(|| RXE.to_owned()),
    }
}

/// Returns the counters of the device's port. Drivers give them different names.
pub(crate) fn counters(device: &str) -> Vec<Counter> {
    let port = directory(device).join("ports/1");
    let mut counters = Vec::new();
    for kind in ["hw_counters", "counters"] {
        let directory = port.join(kind);
        let Ok(entries) = open_to_read(&directory).and_then(Dir::new) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy();
            if let Some(value) = number_in(&directory.join(&*name)) {
                counters.push(Counter { name: intern(&name), value });
            }
        }
    }
    counters.sort_by_key(|counter| counter.name);
    counters.dedup_by_key(|counter| counter.name);
    counters
}

fn open_to_read(path: &Path) -> Result<OwnedFd, Errno> {
    open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Returns the number that a file contains. `None` for a directory, and for another text.
fn number_in(path: &Path) -> Option<u64> {
    let mut text = [0; 32];
    let length = read(open_to_read(path).ok()?, &mut text).ok()?;
    str::from_utf8(&text[..length]).ok()?.trim().parse().ok()
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
