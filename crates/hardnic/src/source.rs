//! [`HardNics`]: NICs of the kernel as one of the kinds that a program can choose.

use std::net::IpAddr;

use mitra_verbs::{Limits, NicAddress, NicOpenError, NicRequest, NicSource, OpenedNic};

use crate::device_list::devices;
use crate::hard_nic::HardNic;
use crate::open::OpenError;

/// The source of NICs of the kernel. A request names the address of a device; the device has its
/// own limits and links, so those of the request are not used.
#[derive(Clone, Copy, Debug)]
pub struct HardNics;

/// Returns the address of the first device that can be used.
fn first_address() -> Result<IpAddr, OpenError> {
    let devices = devices()?;
    let usable = devices.iter().filter(|device| device.refusal.is_none());
    usable.filter_map(|device| device.address).next().ok_or(OpenError::NoDevice)
}

impl NicSource for HardNics {
    /// Returns limits that most devices have.
    fn limits(&self) -> Limits {
        Limits {
            pds: 1 << 10,
            mrs: 1 << 12,
            mws: 1 << 12,
            cqs: 1 << 10,
            cqe: 1 << 15,
            qps: 1 << 10,
            wrs: 1 << 12,
            sges: 16,
            inline: 64,
            srqs: 1 << 8,
            ahs: 1 << 8,
            mcast_groups: 0,
            mcast_qps: 0,
            mcast_attached: 0,
            rd_atomic: 16,
            message_bytes: 1 << 30,
        }
    }

    fn propose_address(&self) -> Option<IpAddr> {
        first_address().ok()
    }

    fn open(&self, request: &NicRequest) -> Result<OpenedNic, NicOpenError> {
        let address = match request.address {
            NicAddress::At(address) | NicAddress::Preferred(address) => address,
            NicAddress::Free => first_address()?,
        };
        Ok(OpenedNic { nic: HardNic::open_at(address)?, warning: None })
    }
}
