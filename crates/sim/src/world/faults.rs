//! Faults that a test injects into a world.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;

use mitra_transport::fault::{Failure, Faults, Stage, Trigger};
use mitra_verbs::Time;
use mitra_wire::ROCE_PORT;

use super::{HostId, NicId, World};
use crate::nic::{FailureInjection, StageProbe};
use crate::world_state::{WorldState, lock};

impl World {
    /// Stops random packet faults and pauses: from now on no packet gets noise or is delayed as a straggler,
    /// and no host pauses. Failed components stay failed, paused hosts stay paused, and packets that are
    /// already delayed still arrive.
    pub fn stop_noise(&mut self) {
        let mut world = lock(&self.shared);
        world.config = world.config.without_noise();
        let noise = world.config.link.noise;
        for link in world.rail_links.values_mut() {
            *link = link.without_noise();
        }
        for nic in &mut world.nics {
            nic.faults.set_noise_tx(noise);
            nic.faults.set_noise_rx(noise);
        }
    }

    /// Calls `act` without random packet faults and pauses, and lets them begin again.
    pub(crate) fn without_noise<T>(&mut self, act: impl FnOnce(&mut World) -> T) -> T {
        let (config, links) = {
            let world = lock(&self.shared);
            (world.config.clone(), world.rail_links.clone())
        };
        self.stop_noise();
        let result = act(self);
        let mut world = lock(&self.shared);
        (world.config, world.rail_links) = (config, links);
        for n in 0..world.nics.len() {
            let noise = world.link(world.nics[n].rail).noise;
            world.nics[n].faults.set_noise_tx(noise);
        }
        result
    }

    /// Stops random faults like [`World::stop_noise`], restores all links and resumes all hosts, so that
    /// pending operations can finish. Dead NICs stay dead, and hung NICs stay hung.
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

    /// Makes the clock of this NIC jump ahead by `duration` after it has been read `readings` more times. The
    /// jump imitates a host that is suspended just before a reading.
    pub fn jump_clock_at_reading(&mut self, nic: NicId, readings: u32, duration: Duration) {
        lock(&self.shared).nics[nic.0].clock_jump = Some((readings, duration));
    }

    /// Gives a NIC another address, which no NIC has had before. Packets to its old address are lost, also those in flight.
    pub fn change_address(&mut self, nic: NicId) {
        lock(&self.shared).change_address(nic.0);
    }

    /// Takes the link of a NIC down or up.
    pub fn set_link(&mut self, nic: NicId, up: bool) {
        lock(&self.shared).set_link(nic.0, up);
    }

    /// Passes a NIC's faults to `f`, which may arm triggers or set the noise of one direction. A failure that
    /// `f` sets takes effect at the NIC's next packet. [`World::fail`] takes effect immediately.
    pub fn faults<T>(&mut self, nic: NicId, f: impl FnOnce(&mut Faults) -> T) -> T {
        f(&mut lock(&self.shared).nics[nic.0].faults)
    }

    /// Fails `targets` when the `nth` packet reaches this stage at the NIC `at`. With `hold`, that packet is
    /// delayed by this time instead of being lost on the wire or passed on. `hold` has no effect if the
    /// packet is lost at the NIC `at`, or if the stage is [`Stage::NotPlaced`].
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
        // The packet is dropped if the NIC `at` dies or a link fails. A hung NIC lets the packet pass.
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

    /// Returns whether the stages of all calls of [`World::fail_at_stage`] for this NIC were reached.
    pub fn stage_reached(&self, nic: NicId) -> bool {
        lock(&self.shared).nics[nic.0].stage_probes.is_empty()
    }

    /// Withdraws all calls of [`World::fail_at_stage`] whose stages were not reached.
    pub fn disarm_stages(&mut self) {
        lock(&self.shared).nics.iter_mut().for_each(|nic| nic.stage_probes.clear());
    }

    /// Pauses the applications of a host until `until` or [`World::resume`]. The host's NICs continue.
    pub fn pause(&mut self, host: HostId, until: Option<Time>) {
        lock(&self.shared).pause(host.0, until);
    }

    /// Ends the process of a host: its applications have no further turn, and its NICs are reset. The host refuses packets to
    /// them if the links are up, as it does when the process of a software NIC ends.
    pub fn exit(&mut self, host: HostId) {
        let mut world = lock(&self.shared);
        world.pause(host.0, None);
        world.apps.iter_mut().filter(|app| app.host == host.0).for_each(|app| app.exited = true);
        for n in (0..world.nics.len()).filter(|&n| world.nics[n].host == host.0).collect::<Vec<_>>() {
            world.close_port(n);
        }
    }

    /// Resets a NIC as its process would by [`Provider::reset`](mitra_verbs::Provider::reset), and makes its host refuse packets to it. A NIC that
    /// is reset otherwise refuses nothing, as a NIC in hardware.
    pub fn close_port(&mut self, nic: NicId) {
        lock(&self.shared).close_port(nic.0);
    }

    /// Makes the NIC `at` learn that the host of `of` refuses packets, although it does not, as a forged ICMP message does.
    pub fn forge_refusal(&mut self, at: NicId, of: NicId) {
        lock(&self.shared).arrive_refusal(at.0, of.0);
    }

    /// Resumes the applications of a host.
    pub fn resume(&mut self, host: HostId) {
        lock(&self.shared).resume(host.0);
    }
}

impl WorldState {
    fn change_address(&mut self, n: usize) {
        if self.nics[n].detached {
            return;
        }
        let (rail, host) = (self.nics[n].rail, self.nics[n].host);
        self.routes.remove(&(rail, self.nics[n].gid));
        let nic = &mut self.nics[n];
        nic.address_changes += 1;
        let ip = IpAddr::V4(Ipv4Addr::new(10, rail, host as u8, 1 + nic.address_changes as u8));
        (nic.gid, nic.address) = (ip.into(), SocketAddr::new(ip, ROCE_PORT));
        nic.nic.change_gid(nic.gid);
        self.routes.insert((rail, self.nics[n].gid), n);
        self.trace.text(self.now, format!("{:<4} has the address {ip}", self.nics[n].name));
        self.reschedule(n);
    }

    fn close_port(&mut self, n: usize) {
        let nic = &mut self.nics[n];
        (nic.capabilities.reset, nic.refuses) = (true, true);
        self.reset_nic(n).expect("a NIC that has the capability can be reset");
    }

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
