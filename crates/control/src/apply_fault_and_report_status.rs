//! Applies faults to a software NIC and reports its status, for implementations of
//! [`ControlledDevice`](crate::ControlledDevice).

use mitra_softnic::SoftNic;
use mitra_softnic::fault::Noise;
use mitra_verbs::{PortState, Provider};

use crate::{FaultAction, NewAddress, RailState, RailStatus};

/// Applies a fault to a NIC immediately.
///
/// # Errors
/// If the NIC cannot have the address of [`FaultAction::Address`]: the address and the reason, in
/// one line.
pub fn apply_fault(nic: &SoftNic, action: FaultAction) -> Result<(), String> {
    let faults = nic.faults();
    match action {
        FaultAction::Fail(failure) => faults.fail(failure),
        FaultAction::Heal => faults.heal(),
        FaultAction::Arm(trigger) => faults.arm(trigger),
        FaultAction::Noise(noise) => faults.set_noise(noise, Noise::default()),
        FaultAction::Address(address) => {
            let address = match address {
                NewAddress::Free => None,
                NewAddress::At(address) => Some(address),
            };
            return nic.change_address(address).map_err(|error| error.to_string());
        }
    }
    Ok(())
}

/// Returns the state of the rail that a NIC belongs to.
pub fn rail_status(nic: &SoftNic) -> RailStatus {
    let state = match nic.query_port() {
        Ok(port) if port.state == PortState::Active => RailState::Up,
        Ok(_) => RailState::Down,
        Err(_) => RailState::Failed,
    };
    RailStatus { address: nic.address(), state }
}
