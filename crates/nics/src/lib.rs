#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod minimal;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use mitra_softnic::SoftNics;
use mitra_verbs::{Nic, NicAddress, NicOpenError, NicRequest, NicSource};

pub use minimal::{MinimalNic, MinimalNics};

/// A kind of NIC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
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

    /// Opens a NIC at a free address, which only this machine reaches.
    ///
    /// # Errors
    /// The error of [`NicSource::open`].
    pub fn open_free(self) -> Result<Arc<dyn Nic>, NicOpenError> {
        let source = self.source();
        Ok(source.open(&NicRequest::new(source, NicAddress::Free))?.nic)
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
