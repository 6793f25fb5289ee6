//! Faults on demand, and how the device is: what `mitra fault` asks for.

use std::sync::Weak;

use mitra_control::FaultAction;
use mitra_control::{ControlledDevice, DeviceStatus, apply_fault, rail_status};

use super::Rails;

/// The device, as long as it is open.
pub(super) struct Controlled(pub(super) Weak<Rails>);

impl ControlledDevice for Controlled {
    fn apply_fault(&mut self, rail: usize, change: FaultAction) {
        let Some(rails) = self.0.upgrade() else { return };
        let Some(nic) = rails.nics().get(rail) else { return };
        apply_fault(nic, change);
    }

    fn status(&mut self) -> DeviceStatus {
        let Some(rails) = self.0.upgrade() else {
            return DeviceStatus { rails: Vec::new(), queue_pairs: 0, failovers: 0 };
        };
        let pairs = rails.spanning.as_ref().map(|spanning| spanning.pairs());
        DeviceStatus {
            rails: rails.nics().iter().map(|nic| rail_status(nic)).collect(),
            queue_pairs: rails.objects().qps.len(),
            failovers: pairs.iter().flatten().map(|pair| pair.failovers()).sum(),
        }
    }
}
