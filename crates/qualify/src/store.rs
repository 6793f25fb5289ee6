//! The file of qualifications.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::qualification::{Qualification, Verdict};

/// The version of the file's format.
const VERSION: u32 = 1;

/// What a result belongs to. Another firmware may behave in another way.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// The name of the kernel's driver. A driver in software has no firmware, so its name should
    /// contain the kernel's release.
    pub driver: String,
    /// The vendor id (`vendor_id` of `ibv_device_attr`).
    pub vendor_id: u32,
    /// The vendor's number of the part (`vendor_part_id`).
    pub part_id: u32,
    /// The firmware's version (`fw_ver`).
    pub firmware: String,
}

/// The results of qualifications, in a JSON file. The default store is empty and has no file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct QualificationStore {
    path: PathBuf,
    results: BTreeMap<Hardware, Qualification>,
}

/// Why the file of qualifications cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file cannot be read.
    #[error("{path}: cannot be read: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file cannot be replaced. It is unchanged.
    #[error("{path}: cannot be written: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file is not a list of qualifications.
    #[error("{path}: is damaged: {reason}; remove it, and qualify the NICs again")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    results: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    hardware: Hardware,
    qualification: Qualification,
}

impl QualificationStore {
    /// Reads the file. If there is none, the store is empty.
    ///
    /// # Errors
    /// [`StoreError::Read`] and [`StoreError::Damaged`].
    pub fn load(path: &Path) -> Result<QualificationStore, StoreError> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(QualificationStore { path: path.to_owned(), results: BTreeMap::new() });
            }
            Err(source) => return Err(StoreError::Read { path: path.to_owned(), source }),
        };
        let results = parse(&text).map_err(|reason| StoreError::Damaged { path: path.to_owned(), reason })?;
        Ok(QualificationStore { path: path.to_owned(), results })
    }

    /// Returns the result of a NIC, or `None` if it is not qualified.
    pub fn get(&self, hardware: &Hardware) -> Option<&Qualification> {
        self.results.get(hardware)
    }

    /// Whether failover may decide by the responder's PSN of a NIC. False for an unknown NIC.
    pub fn permits_psn(&self, hardware: &Hardware) -> bool {
        self.get(hardware).is_some_and(|found| found.verdict().permits_psn())
    }

    /// Whether the fence of a NIC is known not to hold.
    pub fn lacks_fence(&self, hardware: &Hardware) -> bool {
        self.get(hardware).is_some_and(|found| found.verdict() == Verdict::NoFence)
    }

    /// Returns all results, in the order of the NICs.
    pub fn iter(&self) -> impl Iterator<Item = (&Hardware, &Qualification)> {
        self.results.iter()
    }

    /// Adds the result of a NIC, or replaces its earlier one. Call [`QualificationStore::save`]
    /// then.
    pub fn insert(&mut self, hardware: Hardware, qualification: Qualification) {
        self.results.insert(hardware, qualification);
    }

    /// Replaces the file in one step: a reader and a crash find the earlier file or the new one.
    /// Creates its directory.
    ///
    /// # Errors
    /// [`StoreError::Write`].
    pub fn save(&self) -> Result<(), StoreError> {
        self.replace().map_err(|source| StoreError::Write { path: self.path.clone(), source })
    }

    fn replace(&self) -> io::Result<()> {
        let entries = self
            .results
            .iter()
            .map(|(hardware, &qualification)| Entry { hardware: hardware.clone(), qualification });
        let contents = Contents { version: VERSION, results: entries.collect() };
        let mut text = serde_json::to_vec_pretty(&contents)?;
        text.push(b'\n');

        let directory = match self.path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        fs::create_dir_all(directory)?;
        let mut name = self.path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        name.push(format!(".{}.new", std::process::id()));
        let new = directory.join(name);
        let written = write_durably(&new, &text).and_then(|()| fs::rename(&new, &self.path));
        if written.is_err() {
            // The first error says more than one of the removal.
            let _ = fs::remove_file(&new);
        }
        written?;
        File::open(directory)?.sync_all()
    }
}

fn write_durably(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(text)?;
    file.sync_all()
}

/// Returns the results, or what is wrong with the text.
fn parse(text: &[u8]) -> Result<BTreeMap<Hardware, Qualification>, String> {
    let contents: Contents = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if contents.version != VERSION {
        return Err(format!("its version is {}, and this program knows {VERSION}", contents.version));
    }
    let mut results = BTreeMap::new();
    for Entry { hardware, qualification } in contents.results {
        let name = format!("{} {:#x}:{:#x}", hardware.driver, hardware.vendor_id, hardware.part_id);
        if !(qualification.writes.is_possible() && qualification.atomics.is_possible()) {
            return Err(format!("a count of {name} exceeds its fences"));
        }
        if results.insert(hardware, qualification).is_some() {
            return Err(format!("{name} is listed twice with the same firmware"));
        }
    }
    Ok(results)
}
