//! Applies faults to a NIC and reports its status, for implementations of
//! [`ControlledDevice`](crate::ControlledDevice).

use mitra_verbs::fault::{FaultSwitch, Noise};
use mitra_verbs::{Nic, PortState};

use crate::{FaultAction, NewAddress, RailState, RailStatus};

/// Checks whether a fault can be applied to a NIC. Whether it can have the address of
/// [`FaultAction::Address`] is known only when the fault is applied.
///
/// # Errors
/// If the NIC cannot have this fault: the reason, in one line.
pub fn check_fault(nic: &dyn Nic, action: FaultAction) -> Result<(), String> {
    fault_switch(nic)?.check(action.kind())
}

/// Applies a fault to a NIC immediately.
///
/// # Errors
/// If the NIC cannot have this fault, or not the address of [`FaultAction::Address`]: the reason,
/// in one line.
pub fn apply_fault(nic: &dyn Nic, action: FaultAction) -> Result<(), String> {
    check_fault(nic, action)?;
    let faults = fault_switch(nic)?;
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

fn fault_switch(nic: &dyn Nic) -> Result<&dyn FaultSwitch, String> {
    nic.fault_switch().ok_or_else(|| format!("{} does not fail on demand", nic.attr().name))
}

/// Returns the state of the rail that a NIC belongs to.
pub fn rail_status(nic: &dyn Nic) -> RailStatus {
    let state = match nic.query_port() {
        Ok(port) if port.state == PortState::Active => RailState::Up,
        Ok(_) => RailState::Down,
        Err(_) => RailState::Failed,
    };
    RailStatus { address: nic.address(), device: nic.device_name().map(str::to_owned), state }
}
