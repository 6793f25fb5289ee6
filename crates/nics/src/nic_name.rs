//! [`NicName`]: a NIC as a user names it.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use mitra_hardnic::{HardNic, LibraryError, OpenError};
use mitra_verbs::fault::FaultKind;
use mitra_verbs::{Links, NicAddress, NicOpenError, OpenedNic, Provider};
use serde::{Deserialize, Serialize};

use crate::NicKind;

/// The most rails of a virtual queue pair.
const MAX_RAILS: usize = 8;

/// A NIC as a user names it: `mlx5_0` is an RDMA device of the kernel. An IP address is the device
/// that has it, because RoCE's packets to the address go there, and otherwise a software NIC.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum NicName {
    /// An RDMA device of the kernel.
    Device(String),
    /// The device or the software NIC at this address.
    Address(IpAddr),
}

impl NicName {
    /// Opens the NIC. A software NIC has this kind and these links; a device has its own.
    ///
    /// # Errors
    /// Why it cannot be opened, in one line.
    pub fn open(&self, kind: NicKind, links: Links) -> Result<OpenedNic, NicOpenError> {
        match self {
            NicName::Device(name) => Ok(opened(HardNic::open(name)?)),
            NicName::Address(address) => match HardNic::open_at(*address) {
                Ok(nic) => Ok(opened(nic)),
                Err(
                    OpenError::Library(LibraryError::NotFound(_))
                    | OpenError::NoDevice
                    | OpenError::NoSuchAddress(_),
                ) => {
                    let opened = kind.open(NicAddress::At(*address), links)?;
                    let note =
                        format!("{address} is the address of no RDMA device, so a software NIC has it");
                    Ok(OpenedNic { warning: Some(opened.warning.unwrap_or(note)), ..opened })
                }
                Err(error) => Err(error.into()),
            },
        }
    }

    /// Returns the address that the NIC will have. `None` if there is no such device, or it has no
    /// address.
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            NicName::Device(name) => {
                let devices = mitra_hardnic::devices().ok()?;
                devices.into_iter().find(|device| device.name == *name)?.address
            }
            NicName::Address(address) => Some(*address),
        }
    }

    /// Checks whether a fault can be injected, without opening the NIC. A device that is named by
    /// its address refuses later what it cannot have.
    ///
    /// # Errors
    /// Which faults the NIC can have, in one line.
    pub fn check_fault(&self, kind: FaultKind) -> Result<(), String> {
        match self {
            NicName::Device(name) => mitra_hardnic::check_fault(name, kind),
            NicName::Address(_) => Ok(()),
        }
    }

    /// Whether the name is that of a device of the kernel, which has few faults on demand.
    pub fn is_device(&self) -> bool {
        matches!(self, NicName::Device(_))
    }
}

/// The driver whose programs may use more than the verbs.
const MLX5: &str = "mlx5_core";

fn opened(nic: Arc<HardNic>) -> OpenedNic {
    let hardware = nic.hardware();
    let warning = (hardware.driver == MLX5).then(|| {
        format!("{}: its direct verbs (mlx5dv) are not offered, only those of libibverbs", nic.attr().name)
    });
    OpenedNic { nic, warning }
}

impl fmt::Display for NicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NicName::Device(name) => name.fmt(f),
            NicName::Address(address) => address.fmt(f),
        }
    }
}

impl FromStr for NicName {
    type Err = String;

    fn from_str(text: &str) -> Result<NicName, String> {
        if let Ok(address) = text.parse() {
            return Ok(NicName::Address(address));
        }
        let is_name = text.starts_with(|first: char| first.is_ascii_alphabetic())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
        is_name.then(|| NicName::Device(text.to_owned())).ok_or_else(|| {
            format!(
                "{text:?} is neither the name of an RDMA device nor an IP address; `mitra devices` lists both"
            )
        })
    }
}

impl TryFrom<String> for NicName {
    type Error = String;

    fn try_from(text: String) -> Result<NicName, String> {
        text.parse()
    }
}

impl From<NicName> for String {
    fn from(name: NicName) -> String {
        name.to_string()
    }
}

/// The NICs of one end, one for each rail: `mlx5_0,mlx5_1`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RailNics(Vec<NicName>);

impl RailNics {
    /// The NICs, from rail 0.
    pub fn names(&self) -> &[NicName] {
        &self.0
    }
}

impl FromStr for RailNics {
    type Err = String;

    fn from_str(text: &str) -> Result<RailNics, String> {
        let names = text.split(',').map(|name| name.trim().parse()).collect::<Result<Vec<NicName>, _>>()?;
        if names.len() > MAX_RAILS {
            return Err(format!("{} rails; a virtual queue pair has at most {MAX_RAILS}", names.len()));
        }
        match (1..names.len()).find(|&at| names[..at].contains(&names[at])) {
            Some(at) => Err(format!("{} is listed twice; each rail needs a NIC of its own", names[at])),
            None => Ok(RailNics(names)),
        }
    }
}

/// The NICs of two ends with two rails. `A,B,C,D`: A and B are those of the end that asks, from
/// rail 0, and C and D those of its peer. `A,B`: both ends use the same devices, each of which
/// reaches itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TwoEnds(pub [[NicName; 2]; 2]);

impl TwoEnds {
    /// Whether a NIC is a device of the kernel.
    pub fn have_devices(&self) -> bool {
        self.0.iter().flatten().any(NicName::is_device)
    }
}

impl fmt::Display for TwoEnds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [[a, b], [c, d]] = &self.0;
        write!(f, "{a},{b},{c},{d}")
    }
}

impl FromStr for TwoEnds {
    type Err = String;

    fn from_str(text: &str) -> Result<TwoEnds, String> {
        let RailNics(names) = text.parse()?;
        match <[NicName; 4]>::try_from(names) {
            Ok([a, b, c, d]) => Ok(TwoEnds([[a, b], [c, d]])),
            Err(names) => match <[NicName; 2]>::try_from(names) {
                Ok(names) if names.iter().all(NicName::is_device) => Ok(TwoEnds([names.clone(), names])),
                Ok(_) => {
                    Err("two ends cannot share the address of a software NIC; give four NICs".to_owned())
                }
                Err(_) => Err(
                    "give two devices for both ends, or four NICs, with commas: two of this process, two of its peer"
                        .to_owned(),
                ),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_software_nics_and_names_are_devices() {
        for (text, is_device) in [("rxe0", true), ("mlx5_0", true), ("10.0.0.1", false), ("fd00::1", false)] {
            let name: NicName = text.parse().unwrap();
            assert_eq!((name.is_device(), name.to_string()), (is_device, text.to_owned()));
        }
        for text in ["", "2", "../rxe0", "rxe 0", "10.0.0.300"] {
            let error = text.parse::<NicName>().unwrap_err();
            assert!(
                error.starts_with(&format!("{text:?} is neither the name of an RDMA device nor")),
                "{error}"
            );
        }
    }

    #[test]
    fn each_rail_has_a_nic_of_its_own() {
        let nics: RailNics = "rxe0, 10.0.0.1".parse().unwrap();
        assert_eq!(nics.names(), ["rxe0".parse().unwrap(), "10.0.0.1".parse().unwrap()]);
        let twice = "rxe0,rxe1,rxe0".parse::<RailNics>().unwrap_err();
        assert!(twice.starts_with("rxe0 is listed twice"), "{twice}");
        assert!("a,b,c,d,e,f,g,h,i".parse::<RailNics>().unwrap_err().starts_with("9 rails"));
    }

    #[test]
    fn two_names_are_the_devices_of_both_ends() {
        let ends = |text: &str| text.parse::<TwoEnds>().map(|ends| ends.to_string());
        assert_eq!(ends("a,b").as_deref(), Ok("a,b,a,b"));
        assert_eq!(ends("a,b,10.0.0.1,::1").as_deref(), Ok("a,b,10.0.0.1,::1"));
        for (text, expected) in [("a", "two devices"), ("a,b,c", "two devices"), ("a,::1", "cannot share")] {
            assert!(ends(text).unwrap_err().contains(expected), "{text}");
        }
    }
}
