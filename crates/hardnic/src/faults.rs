//! Faults on demand: the link of a NIC, and its death. The device itself has no such calls.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

use mitra_verbs::Provider;
use mitra_verbs::fault::{Failure, FaultKind, FaultSwitch, Noise, Trigger};

use crate::hard_nic::HardNic;
use crate::qp::Qp;

/// Checks whether NICs of the kernel can have faults of a kind. `name` is that of a device, which
/// need not be open.
///
/// # Errors
/// In one line, which faults it can have.
pub fn check_fault(name: &str, kind: FaultKind) -> Result<(), String> {
    match kind {
        FaultKind::Failure(Failure::LinkDown | Failure::NicDead) | FaultKind::Heal => Ok(()),
        FaultKind::Failure(Failure::NicHung | Failure::NotPlaced)
        | FaultKind::Trigger
        | FaultKind::Noise
        | FaultKind::Address => Err(format!(
            "{name} is a NIC of the kernel, which can be made to fail by down, up and nic-dead only"
        )),
    }
}

impl HardNic {
    fn all_qps(&self) -> Vec<Arc<Qp>> {
        let qps = self.objects.qps.read().unwrap_or_else(PoisonError::into_inner);
        qps.values().cloned().collect()
    }

    fn set_link(&self, is_up: bool) {
        let _changing = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        if self.context.is_dead() || self.context.link.is_down() != is_up {
            return;
        }
        // A queue pair that is changed from here on finds the new state. The others follow.
        if is_up {
            self.context.link.release();
            self.all_qps().iter().for_each(|qp| qp.regain_link());
        } else {
            self.context.link.hold_down();
            self.all_qps().iter().for_each(|qp| qp.lose_link());
        }
        // Whoever finds the port up can use it.
        self.watched.hold_down(!is_up);
    }
}

impl FaultSwitch for HardNic {
    fn check(&self, kind: FaultKind) -> Result<(), String> {
        check_fault(&self.attr.name, kind)
    }

    /// A dead NIC has ended all queue pairs and regions when the call returns, which takes up to
    /// one second.
    fn fail(&self, failure: Failure) {
        match failure {
            Failure::LinkDown => self.set_link(false),
            Failure::NicDead => {
                // What is not ended in this time, a thread ends later.
                let _ = self.reset();
                self.watched.die();
            }
            Failure::NicHung | Failure::NotPlaced => {}
        }
    }

    fn heal(&self) {
        self.set_link(true);
    }

    fn arm(&self, _trigger: Trigger) {}

    fn set_noise(&self, _transmitted: Noise, _received: Noise) {}

    fn change_address(&self, _address: Option<IpAddr>) -> Result<(), String> {
        self.check(FaultKind::Address)
    }
}
