//! Faults on demand, and how the device is: what `mitra fault` asks for.

use std::sync::Weak;

use mitra_launch::Change;
use mitra_launch::control::{Device, RailState, RailStatus, Status};
use mitra_softnic::fault::Noise;
use mitra_verbs::{PortState, Provider};

use super::Rails;

/// The device, as long as it is open.
pub(super) struct Controlled(pub(super) Weak<Rails>);

impl Device for Controlled {
    fn inflict(&mut self, rail: usize, change: Change) {
        let Some(rails) = self.0.upgrade() else { return };
        let Some(nic) = rails.nics().get(rail) else { return };
        let faults = nic.faults();
        match change {
            Change::Fail(failure) => faults.fail(failure),
            Change::Heal => faults.heal(),
            Change::Arm(trigger) => faults.arm(trigger),
            Change::Noise(noise) => faults.set_noise(noise, Noise::default()),
        }
    }

    fn status(&mut self) -> Status {
        let Some(rails) = self.0.upgrade() else {
            return Status { rails: Vec::new(), queue_pairs: 0, failovers: 0 };
        };
        let rail = |nic: &std::sync::Arc<mitra_softnic::SoftNic>| RailStatus {
            address: nic.address(),
            state: match nic.query_port() {
                Ok(port) if port.state == PortState::Active => RailState::Up,
                Ok(_) => RailState::Down,
                Err(_) => RailState::Failed,
            },
        };
        let pairs = rails.spanning.as_ref().map(|spanning| spanning.pairs());
        Status {
            rails: rails.nics().iter().map(rail).collect(),
            queue_pairs: rails.objects().qps.len(),
            failovers: pairs.iter().flatten().map(|pair| pair.failovers()).sum(),
        }
    }
}
