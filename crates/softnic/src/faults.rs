use std::sync::Arc;

use mitra_transport::fault::{Failure, Noise, Trigger};

use crate::clock;
use crate::engine::Engine;
use crate::progress::Shared;

/// Faults of one NIC and its rail, on demand: see [`mitra_transport::fault`] for what each does. Works whatever state
/// the NIC is in, from any thread.
#[derive(Clone)]
pub struct RailFaults(pub(crate) Arc<Shared>);

impl RailFaults {
    /// Fails now.
    pub fn fail(&self, failure: Failure) {
        self.change(|engine| {
            engine.faults.fail(failure);
            engine.react(Some(failure));
        });
    }

    /// Puts the cable in again, and places what was held back. Nothing brings a dead or hung NIC back: reset it and
    /// open a new one.
    pub fn heal(&self) {
        self.change(|engine| {
            engine.faults.heal_link();
            engine.faults.resume_placement();
            engine.nic.handle_link(true);
            engine.place_or_hold();
        });
    }

    /// Fails when a packet reaches a stage. Several triggers count side by side; each strikes once.
    pub fn arm(&self, trigger: Trigger) {
        self.change(|engine| engine.faults.arm(trigger));
    }

    /// Disarms all triggers, also one that holds placements back already; these are then placed.
    pub fn disarm(&self) {
        self.change(|engine| {
            engine.faults.disarm_all();
            engine.place_or_hold();
        });
    }

    /// What befalls packets that leave, and packets that arrive.
    pub fn set_noise(&self, leaving: Noise, arriving: Noise) {
        self.change(|engine| {
            engine.faults.set_noise_tx(leaving);
            engine.faults.set_noise_rx(arriving);
        });
    }

    fn change(&self, change: impl FnOnce(&mut Engine)) {
        // A NIC whose lock is poisoned is dead already.
        let Ok(mut engine) = self.0.lock() else { return };
        change(&mut engine);
        engine.settle(clock::now());
        // The thread may have to drive a NIC that callers reach no more, or stop.
        self.0.wake();
    }
}

impl std::fmt::Debug for RailFaults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RailFaults")
    }
}
