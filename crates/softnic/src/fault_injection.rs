//! Fault injection into a running NIC.

use std::sync::Arc;

use mitra_verbs::fault::{Failure, Noise, Trigger};

use crate::clock;
use crate::engine::Engine;
use crate::progress_thread::SharedNic;

/// A handle that injects faults into one NIC and its link. [`mitra_verbs::fault`] defines the
/// faults. The methods work from any thread, also on a dead, hung or reset NIC. After a panic under
/// the NIC's lock they do nothing.
#[derive(Clone)]
pub struct RailFaults(pub(crate) Arc<SharedNic>);

impl RailFaults {
    /// Fails the link or the NIC immediately.
    pub fn fail(&self, failure: Failure) {
        self.update(|engine| {
            engine.faults.fail(failure);
            engine.handle_failure(Some(failure));
        });
    }

    /// Brings the link up again, and places the writes that [`Failure::NotPlaced`] has deferred. A
    /// dead or hung NIC stays dead or hung. Reset it and open a new NIC.
    pub fn heal(&self) {
        self.update(|engine| {
            engine.faults.heal_link();
            engine.faults.resume_placement();
            engine.update_link();
            engine.update_placement();
        });
    }

    /// Arms a trigger, which fails the NIC when a packet reaches a stage. Several triggers can be
    /// armed; each counts packets independently and fires once.
    pub fn arm(&self, trigger: Trigger) {
        self.update(|engine| engine.faults.arm(trigger));
    }

    /// Disarms all triggers, and ends a deferral of placements that a trigger has begun. The NIC
    /// then places the deferred writes.
    pub fn disarm(&self) {
        self.update(|engine| {
            engine.faults.disarm_all();
            engine.update_placement();
        });
    }

    /// Sets the noise on transmitted packets and on received packets.
    pub fn set_noise(&self, tx: Noise, rx: Noise) {
        self.update(|engine| {
            engine.faults.set_noise_tx(tx);
            engine.faults.set_noise_rx(rx);
        });
    }

    fn update(&self, update: impl FnOnce(&mut Engine)) {
        // A NIC whose lock is poisoned is dead already.
        let Ok(mut engine) = self.0.lock() else { return };
        update(&mut engine);
        engine.flush(clock::now());
        // The progress thread must drive a hung NIC, which callers no longer drive, and must not
        // drive a dead NIC.
        self.0.wake();
    }
}

impl std::fmt::Debug for RailFaults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RailFaults")
    }
}
