//! A [`SoftNic`] as the device of a program has it: its implementation of [`Nic`].

use std::net::IpAddr;

use mitra_verbs::Nic;
use mitra_verbs::fault::{Failure, FaultSwitch, Noise, Trigger};

use super::SoftNic;

impl Nic for SoftNic {
    fn address(&self) -> IpAddr {
        SoftNic::address(self)
    }

    fn fault_switch(&self) -> Option<&dyn FaultSwitch> {
        Some(self)
    }
}

impl FaultSwitch for SoftNic {
    fn fail(&self, failure: Failure) {
        self.faults().fail(failure);
    }

    fn heal(&self) {
        self.faults().heal();
    }

    fn arm(&self, trigger: Trigger) {
        self.faults().arm(trigger);
    }

    fn set_noise(&self, transmitted: Noise, received: Noise) {
        self.faults().set_noise(transmitted, received);
    }

    fn change_address(&self, address: Option<IpAddr>) -> Result<(), String> {
        SoftNic::change_address(self, address).map_err(|error| error.to_string())
    }
}
