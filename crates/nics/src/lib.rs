#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod minimal;
mod nic_name;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use mitra_softnic::SoftNics;
use mitra_verbs::{Links, Nic, NicAddress, NicOpenError, NicRequest, NicSource, OpenedNic};
use serde::{Deserialize, Serialize};

pub use mitra_hardnic::{Linker, support_fork, use_own_namespace};

pub use minimal::{MinimalNic, MinimalNics};
pub use nic_name::{NicName, RailNics, TwoEnds};

/// A kind of NIC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum NicKind {
    /// Software NICs (`soft`).
    #[default]
    Soft,
    /// Software NICs that can do less (`minimal`): [`MinimalNic`].
    Minimal,
}

impl NicKind {
    const ALL: [NicKind; 2] = [NicKind::Soft, NicKind::Minimal];

    /// Returns what opens NICs of this kind.
    pub fn source(self) -> &'static dyn NicSource {
        match self {
            NicKind::Soft => &SoftNics,
            NicKind::Minimal => &MinimalNics,
        }
    }

    /// Opens a NIC with the limits of its kind.
    ///
    /// # Errors
    /// The error of [`NicSource::open`].
    pub fn open(self, address: NicAddress, links: Links) -> Result<OpenedNic, NicOpenError> {
        let source = self.source();
        source.open(&NicRequest { links, ..NicRequest::new(source, address) })
    }

    /// Opens a NIC at a free address, which only this machine reaches.
    ///
    /// # Errors
    /// The error of [`NicSource::open`].
    pub fn open_free(self) -> Result<Arc<dyn Nic>, NicOpenError> {
        Ok(self.open(NicAddress::Free, Links::default())?.nic)
    }
}

impl fmt::Display for NicKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NicKind::Soft => "soft",
            NicKind::Minimal => "minimal",
        })
    }
}

impl FromStr for NicKind {
    type Err = String;

    fn from_str(text: &str) -> Result<NicKind, String> {
        let found = NicKind::ALL.into_iter().find(|kind| kind.to_string() == text);
        found.ok_or_else(|| "expected soft or minimal".to_owned())
    }
}
