//! The execution of requests that `mitra fault` and `mitra watch` send to a running device.

use std::sync::Weak;

use mitra_control::{
    ControlledDevice, DeviceStatus, FaultAction, apply_fault, check_fault, nic_snapshots, rail_status,
};
use mitra_metrics::Snapshot;

use super::rail_set::RailSet;

/// The device that `mitra fault` controls and `mitra watch` shows. The weak reference does not keep
/// the device open.
pub(super) struct FaultControl(pub(super) Weak<RailSet>);

impl ControlledDevice for FaultControl {
    fn check_fault(&self, rail: usize, action: FaultAction) -> Result<(), String> {
        let Some(rails) = self.0.upgrade() else { return Ok(()) };
        rails.nics.get(rail).map_or(Ok(()), |nic| check_fault(&**nic, action))
    }

    fn apply_fault(&mut self, rail: usize, action: FaultAction) -> Result<(), String> {
        let Some(rails) = self.0.upgrade() else { return Ok(()) };
        rails.nics.get(rail).map_or(Ok(()), |nic| apply_fault(&**nic, action))
    }

    fn status(&mut self) -> DeviceStatus {
        let Some(rails) = self.0.upgrade() else {
            return DeviceStatus { rails: Vec::new(), queue_pairs: 0, failovers: 0 };
        };
        // The device is called without the lock of the object table.
        let queue_pairs = rails.objects().qps.len();
        DeviceStatus {
            rails: rails.nics.iter().map(|nic| rail_status(&**nic)).collect(),
            queue_pairs,
            failovers: rails.device.failovers(),
        }
    }

    fn snapshot(&mut self) -> Snapshot {
        let Some(rails) = self.0.upgrade() else { return Snapshot::default() };
        let (nics, now) = nic_snapshots(rails.nics.iter().map(|nic| &**nic));
        Snapshot::take(nics, rails.objects().qps.len(), now, rails.device.telemetry())
    }
}
