//! Faults that a test injects into a world.

use core::time::Duration;

use mitra_transport::fault::{Failure, Faults, Stage, Trigger};
use mitra_verbs::Time;

use super::{HostId, NicId, World};
use crate::nic::{FailureInjection, StageProbe};
use crate::world_state::{WorldState, lock};

impl World {
    /// Stops packet noise and host pauses. Failed components stay failed, and delayed packets still arrive.
    pub fn stop_noise(&mut self) {
        let mut world = lock(&self.shared);
        world.config = world.config.without_noise();
        let noise = world.config.link.noise;
        for nic in &mut world.nics {
            nic.faults.set_noise_tx(noise);
            nic.faults.set_noise_rx(noise);
        }
    }

    /// Like [`World::stop_noise`], and also restores all links and resumes all hosts. Dead and hung NICs stay
    /// so. Pending operations can then finish.
    pub fn heal(&mut self) {
        self.stop_noise();
        let mut world = lock(&self.shared);
        for n in 0..world.nics.len() {
            world.set_link(n, true);
        }
        for host in 0..world.hosts.len() {
            world.resume(host);
        }
    }

    /// Fails a NIC or its link immediately.
    pub fn fail(&mut self, nic: NicId, failure: Failure) {
        let injection = FailureInjection { nic: nic.0, failure: Some(failure), release_placements: false };
        lock(&self.shared).inject_failures(vec![injection]);
    }

    /// Makes the clock of this NIC jump ahead by `duration` after `readings` more readings, as if the host
    /// had been suspended at that point of its code.
    pub fn jump_clock_at_reading(&mut self, nic: NicId, readings: u32, duration: Duration) {
        lock(&self.shared).nics[nic.0].clock_jump = Some((readings, duration));
    }

    /// Takes the link of a NIC down or up.
    pub fn set_link(&mut self, nic: NicId, up: bool) {
        lock(&self.shared).set_link(nic.0, up);
    }

    /// Gives access to a NIC's faults, to arm triggers or to set noise in one direction. A failure that is
    /// set this way takes effect when the next packet passes. [`World::fail`] acts immediately.
    pub fn faults<T>(&mut self, nic: NicId, f: impl FnOnce(&mut Faults) -> T) -> T {
        f(&mut lock(&self.shared).nics[nic.0].faults)
    }

    /// Fails `targets` when the `nth` packet reaches this stage at the NIC `at`. With `hold`, a packet that
    /// would pass at that moment, or be lost on the wire, arrives that much later instead.
    pub fn fail_at_stage(
        &mut self,
        at: NicId,
        stage: Stage,
        nth: u32,
        targets: &[(NicId, Failure)],
        hold: Option<Duration>,
    ) {
        let mut injections: Vec<FailureInjection> = targets
            .iter()
            .map(|&(n, f)| FailureInjection { nic: n.0, failure: Some(f), release_placements: false })
            .collect();
        if stage == Stage::NotPlaced {
            injections.push(FailureInjection { nic: at.0, failure: None, release_placements: true });
        }
        // A failure of the observing NIC or of a link drops the packet. A hung NIC lets it pass.
        let drops_packet = targets.iter().any(|&(n, f)| n == at && f != Failure::NicHung)
            || targets.iter().any(|&(_, f)| f == Failure::LinkDown);
        let failure = if drops_packet { Failure::NicDead } else { Failure::NicHung };
        let hold = hold.filter(|_| match stage {
            Stage::RequestOnWire | Stage::AckOnWire => true,
            Stage::NotPlaced => false,
            _ => !drops_packet,
        });
        let probe = StageProbe::new(Trigger { stage, nth, failure }, injections, hold);
        lock(&self.shared).nics[at.0].stage_probes.push(probe);
    }

    /// Returns whether all stages that [`World::fail_at_stage`] waits for at this NIC were reached.
    pub fn stage_reached(&self, nic: NicId) -> bool {
        lock(&self.shared).nics[nic.0].stage_probes.is_empty()
    }

    /// Pauses the applications of a host until a time, or until [`World::resume`]. The host's NICs continue.
    pub fn pause(&mut self, host: HostId, until: Option<Time>) {
        lock(&self.shared).pause(host.0, until);
    }

    /// Resumes a host.
    pub fn resume(&mut self, host: HostId) {
        lock(&self.shared).resume(host.0);
    }
}

impl WorldState {
    fn set_link(&mut self, n: usize, up: bool) {
        if up {
            self.nics[n].faults.heal_link();
            self.update_health(n);
        } else {
            self.inject_failures(vec![FailureInjection {
                nic: n,
                failure: Some(Failure::LinkDown),
                release_placements: false,
            }]);
        }
    }
}
