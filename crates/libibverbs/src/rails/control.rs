//! Faults on demand, and how the device is: what `mitra fault` asks for.

use std::sync::Weak;

use mitra_control::Change;
use mitra_control::control::{Device, Status, inflict, rail_status};

use super::Rails;

/// The device, as long as it is open.
pub(super) struct Controlled(pub(super) Weak<Rails>);

impl Device for Controlled {
    fn inflict(&mut self, rail: usize, change: Change) {
        let Some(rails) = self.0.upgrade() else { return };
        let Some(nic) = rails.nics().get(rail) else { return };
        inflict(nic, change);
    }

    fn status(&mut self) -> Status {
        let Some(rails) = self.0.upgrade() else {
            return Status { rails: Vec::new(), queue_pairs: 0, failovers: 0 };
        };
        let pairs = rails.spanning.as_ref().map(|spanning| spanning.pairs());
        Status {
            rails: rails.nics().iter().map(|nic| rail_status(nic)).collect(),
            queue_pairs: rails.objects().qps.len(),
            failovers: pairs.iter().flatten().map(|pair| pair.failovers()).sum(),
        }
    }
}
