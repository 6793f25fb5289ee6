//! Applies faults to a NIC and reports its status, for implementations of
//! [`ControlledDevice`](crate::ControlledDevice).

use mitra_verbs::fault::Noise;
use mitra_verbs::{Nic, PortState};

use crate::{FaultAction, NewAddress, RailState, RailStatus};

/// Applies a fault to a NIC immediately.
///
/// # Errors
/// If the NIC does not fail on demand, or cannot have the address of [`FaultAction::Address`]: the
/// reason, in one line.
pub fn apply_fault(nic: &dyn Nic, action: FaultAction) -> Result<(), String> {
    let faults = nic.fault_switch().ok_or_else(|| {
        format!(
            "{} does not fail on demand; take its link down (ip link set INTERFACE down)",
            nic.attr().name
        )
    })?;
    match action {
        FaultAction::Fail(failure) => faults.fail(failure),
        FaultAction::Heal => faults.heal(),
        FaultAction::Arm(trigger) => faults.arm(trigger),
        FaultAction::Noise(noise) => faults.set_noise(noise, Noise::default()),
        FaultAction::Address(NewAddress::Free) => return faults.change_address(None),
        FaultAction::Address(NewAddress::At(address)) => return faults.change_address(Some(address)),
    }
    Ok(())
}

/// Returns the state of the rail that a NIC belongs to.
pub fn rail_status(nic: &dyn Nic) -> RailStatus {
    let state = match nic.query_port() {
        Ok(port) if port.state == PortState::Active => RailState::Up,
        Ok(_) => RailState::Down,
        Err(_) => RailState::Failed,
    };
    RailStatus { address: nic.address(), state }
}
