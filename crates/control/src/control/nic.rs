//! What a software NIC does of what is asked of a device.

use mitra_softnic::SoftNic;
use mitra_softnic::fault::Noise;
use mitra_verbs::{PortState, Provider};

use super::{RailState, RailStatus};
use crate::Change;

/// Does this to a NIC, now.
pub fn inflict(nic: &SoftNic, change: Change) {
    let faults = nic.faults();
    match change {
        Change::Fail(failure) => faults.fail(failure),
        Change::Heal => faults.heal(),
        Change::Arm(trigger) => faults.arm(trigger),
        Change::Noise(noise) => faults.set_noise(noise, Noise::default()),
    }
}

/// How its rail is.
pub fn rail_status(nic: &SoftNic) -> RailStatus {
    let state = match nic.query_port() {
        Ok(port) if port.state == PortState::Active => RailState::Up,
        Ok(_) => RailState::Down,
        Err(_) => RailState::Failed,
    };
    RailStatus { address: nic.address(), state }
}
