//! A [`SoftNic`] as the device of a program has it: its implementation of [`Nic`].

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use mitra_verbs::fault::{Failure, FaultSwitch, Noise, Trigger};
use mitra_verbs::{Nic, Result};

use super::SoftNic;
use crate::clock;

/// The maximum time for which [`Nic::settle`] waits until another thread releases the lock.
const SETTLE_WAIT: Duration = Duration::from_millis(100);

impl Nic for SoftNic {
    fn address(&self) -> IpAddr {
        SoftNic::address(self)
    }

    fn fault_switch(&self) -> Option<&dyn FaultSwitch> {
        Some(self)
    }

    /// Before this call the class in the GRH is 0. To receive the class costs 0.15 µs per receive
    /// call.
    fn receive_traffic_classes(&self) -> Result<()> {
        self.host_call(|engine, _| {
            engine.receive_traffic_classes();
            Ok(())
        })
    }

    fn settle(&self) {
        let started = Instant::now();
        let mut locked = self.shared.try_lock();
        while locked.is_none() && started.elapsed() < SETTLE_WAIT {
            thread::sleep(SETTLE_WAIT / 100);
            locked = self.shared.try_lock();
        }
        if let Some(mut engine) = locked {
            engine.settle(clock::now());
            self.shared.wake_if_due(&mut engine);
        }
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
