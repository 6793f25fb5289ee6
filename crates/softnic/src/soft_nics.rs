//! [`SoftNics`]: software NICs as one of the kinds that a program can choose.

use std::net::IpAddr;

use mitra_verbs::{Limits, NicAddress, NicOpenError, NicRequest, NicSource, OpenedNic};

use crate::{Config, OpenError, SoftNic, random_loopback_address};

/// The source of software NICs.
#[derive(Clone, Copy, Debug)]
pub struct SoftNics;

impl NicSource for SoftNics {
    fn limits(&self) -> Limits {
        Config::loopback().limits
    }

    /// Returns `None` if the system's random source cannot be read.
    fn propose_address(&self) -> Option<IpAddr> {
        random_loopback_address().ok()
    }

    fn open(&self, request: &NicRequest) -> Result<OpenedNic, NicOpenError> {
        let NicRequest { address, links, limits } = *request;
        let open = |address| SoftNic::open(Config { address, links, limits, ..Config::loopback() });
        let opened = match address {
            NicAddress::Free => open(None),
            NicAddress::At(address) => open(Some(address)),
            NicAddress::Preferred(address) => match open(Some(address)) {
                Err(OpenError::PortTaken { .. }) => open(None),
                opened => opened,
            },
        };
        let nic = opened?;
        let warning = nic.link_failure().map(|failure| {
            format!(
                "packets of {} to programs of this machine go over UDP, not through shared memory, because the name of its \
                 links cannot be used: {failure}. Another process may have taken it (ss -xl | grep mitra-softnic); another address helps",
                nic.address()
            )
        });
        Ok(OpenedNic { nic, warning })
    }
}
