//! Faults that a test injects into a world.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;

use mitra_transport::fault::{Failure, Faults, Stage, Trigger};
use mitra_verbs::Time;
use mitra_wire::ROCE_PORT;

use super::{HostId, NicId, World};
use crate::coverage::{Operation, RecoveryPoint};
use crate::failure_injection::FailureInjection;
use crate::nic::{LateCompletions, StageProbe};
use crate::packet_kind::{PacketFate, PacketKind, PacketProbe};
use crate::timeline::{NoteKind, Subject};
use crate::world_state::host::PointProbe;
use crate::world_state::{WorldState, lock};
use crate::{DurationRange, Prng};

impl World {
    /// Stops random packet faults and pauses: from now on no packet gets noise or is delayed as a
    /// straggler, and no host pauses. Failed components stay failed, paused hosts stay paused, and
    /// packets that are already delayed still arrive.
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

    /// Calls `act` without random packet faults and pauses.
    pub fn without_noise<T>(&mut self, act: impl FnOnce(&mut World) -> T) -> T {
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

    /// Stops random faults like [`World::stop_noise`], restores all links, resumes all hosts and
    /// ends starvations, so that pending operations can finish. Dead NICs stay dead, and hung NICs
    /// stay hung.
    pub fn heal(&mut self) {
        self.stop_noise();
        let mut world = lock(&self.shared);
        for n in 0..world.nics.len() {
            world.set_link(n, true);
        }
        for host in 0..world.hosts.len() {
            world.resume(host);
        }
        for n in 0..world.nics.len() {
            world.end_starvation(n);
        }
    }

    /// Fails a NIC or its link immediately.
    pub fn fail(&mut self, nic: NicId, failure: Failure) {
        lock(&self.shared).inject_failures(vec![FailureInjection::new(nic.0, failure)]);
    }

    /// Makes the clock of this NIC jump ahead by `duration` after it has been read `readings` more
    /// times. The jump imitates a host that is suspended just before a reading.
    pub fn jump_clock_at_reading(&mut self, nic: NicId, readings: u32, duration: Duration) {
        lock(&self.shared).nics[nic.0].clock_jump = Some((readings, duration));
    }

    /// Gives a NIC another address, which no NIC has had before. Packets to its old address are
    /// lost, including packets in flight.
    pub fn change_address(&mut self, nic: NicId) {
        lock(&self.shared).change_address(nic.0);
    }

    /// Takes the link of a NIC down or up.
    pub fn set_link(&mut self, nic: NicId, up: bool) {
        lock(&self.shared).set_link(nic.0, up);
    }

    /// Passes a NIC's faults to `f`, which may arm triggers or set the noise of one direction. A
    /// failure that `f` sets takes effect at the NIC's next packet, whereas [`World::fail`] takes
    /// effect immediately.
    pub fn faults<T>(&mut self, nic: NicId, f: impl FnOnce(&mut Faults) -> T) -> T {
        f(&mut lock(&self.shared).nics[nic.0].faults)
    }

    /// Fails `targets` when the `nth` packet reaches this stage at the NIC `at`. With `hold`, that
    /// packet is delayed by this time instead of being lost on the wire or passed on. `hold` has no
    /// effect if the packet is lost at the NIC `at`, or if the stage is [`Stage::NotPlaced`].
    pub fn fail_at_stage(
        &mut self,
        at: NicId,
        stage: Stage,
        nth: u32,
        targets: &[(NicId, Failure)],
        hold: Option<Duration>,
    ) {
        self.fail_operation_at_stage(at, stage, None, nth, targets, hold);
    }

    /// Fails `targets` like [`World::fail_at_stage`]. With `operation`, only the packets of
    /// operations of this kind count. WRITEs and SENDs have the same acknowledgements.
    pub fn fail_operation_at_stage(
        &mut self,
        at: NicId,
        stage: Stage,
        operation: Option<Operation>,
        nth: u32,
        targets: &[(NicId, Failure)],
        hold: Option<Duration>,
    ) {
        let mut injections = injections(targets);
        if stage == Stage::NotPlaced {
            injections.push(FailureInjection { nic: at.0, failure: None, release_placements: true });
        }
        // The packet is dropped if the NIC `at` dies or a link fails. A hung NIC lets the packet
        // pass.
        let drops_packet = targets.iter().any(|&(n, f)| n == at && f != Failure::NicHung)
            || targets.iter().any(|&(_, f)| f == Failure::LinkDown);
        let failure = if drops_packet { Failure::NicDead } else { Failure::NicHung };
        let hold = hold.filter(|_| match stage {
            Stage::RequestOnWire | Stage::AckOnWire => true,
            Stage::NotPlaced => false,
            _ => !drops_packet,
        });
        let probe = StageProbe::new(Trigger { stage, nth, failure }, operation, injections, hold);
        lock(&self.shared).nics[at.0].stage_probes.push(probe);
    }

    /// Fails `targets` when the NIC `at` sends the `nth` packet of a kind. With `arriving`, the
    /// packets that arrive at the NIC count instead.
    pub fn fail_at_packet(
        &mut self,
        at: NicId,
        kind: PacketKind,
        arriving: bool,
        nth: u32,
        fate: PacketFate,
        targets: &[(NicId, Failure)],
    ) {
        let (left, targets) = (nth.max(1), injections(targets));
        let probe = PacketProbe { kind, arriving, left, fragment: 0, fate, targets };
        lock(&self.shared).nics[at.0].packet_probes.push(probe);
    }

    /// Counts the calls by which programs of a host change or query a NIC, and fails `targets`
    /// before the `nth` call from now on. Calls that read the clock, events or completions do not
    /// count.
    pub fn fail_at_call(&mut self, host: HostId, nth: u64, targets: &[(NicId, Failure)]) {
        lock(&self.shared).hosts[host.0].call_probe = Some((nth.max(1), injections(targets)));
    }

    /// Fails `targets` when recoveries of a host have reached this point for the `nth` time.
    pub fn fail_at_point(
        &mut self,
        host: HostId,
        point: RecoveryPoint,
        nth: u32,
        targets: &[(NicId, Failure)],
    ) {
        let probe = PointProbe { point, left: nth.max(1), targets: injections(targets) };
        lock(&self.shared).hosts[host.0].point_probe = Some(probe);
    }

    /// Returns whether all faults of [`World::fail_at_call`] and [`World::fail_at_packet`] have
    /// happened.
    pub fn placed_faults_happened(&self) -> bool {
        let world = lock(&self.shared);
        world.hosts.iter().all(|host| host.call_probe.is_none())
            && world.nics.iter().all(|nic| nic.packet_probes.is_empty())
    }

    /// Returns whether a packet has reached the stage of every [`World::fail_at_stage`] call for
    /// this NIC.
    pub fn stage_reached(&self, nic: NicId) -> bool {
        lock(&self.shared).nics[nic.0].stage_probes.is_empty()
    }

    /// Withdraws all faults of [`World::fail_at_stage`], [`World::fail_at_packet`],
    /// [`World::fail_at_call`] and [`World::fail_at_point`] that have not happened. Placements that
    /// a NIC holds back for [`Stage::NotPlaced`] are made.
    pub fn disarm_stages(&mut self) {
        let mut world = lock(&self.shared);
        for n in 0..world.nics.len() {
            let nic = &mut world.nics[n];
            let holds_back = nic.stage_probes.iter().any(|probe| probe.stage == Stage::NotPlaced);
            nic.stage_probes.clear();
            nic.packet_probes.clear();
            if holds_back {
                nic.faults.resume_placement();
                world.update_health(n);
                world.reschedule(n);
            }
        }
        for host in &mut world.hosts {
            (host.call_probe, host.point_probe) = (None, None);
        }
    }

    /// Pauses the applications of a host until `until` or [`World::resume`]. The host's NICs
    /// continue.
    pub fn pause(&mut self, host: HostId, until: Option<Time>) {
        lock(&self.shared).pause(host.0, until);
    }

    /// Gives the own thread of a NIC no processor until `until`. Until then, the NIC reads packets,
    /// handles timers and transmits only when a program calls it, as a software NIC does. Packets
    /// that arrive wait. A NIC that has failed is not starved.
    pub fn starve(&mut self, nic: NicId, until: Time) {
        lock(&self.shared).starve(nic.0, until);
    }

    /// Ends the process of a host: its applications have no further turn, and its NICs are reset.
    /// While the links are up, the host refuses packets to these NICs, as when the process of a
    /// software NIC ends.
    pub fn exit(&mut self, host: HostId) {
        let mut world = lock(&self.shared);
        world.pause(host.0, None);
        world.apps.iter_mut().filter(|app| app.host == host.0).for_each(|app| app.exited = true);
        for n in (0..world.nics.len()).filter(|&n| world.nics[n].host == host.0).collect::<Vec<_>>() {
            world.close_port(n);
        }
    }

    /// Makes the completions of a NIC late by random times. After a queue pair has moved to ERR,
    /// completions become visible only after a time in `flushes`. Completions of receives become
    /// visible later than completions of sends, by a time in `receives`. Such delays are allowed,
    /// because the verbs promise no order between the completions of the two queues of a queue
    /// pair.
    pub fn delay_completions(&mut self, nic: NicId, flushes: DurationRange, receives: DurationRange) {
        let mut world = lock(&self.shared);
        let rng = Prng::stream(world.seed, &format!("late completions {}", nic.0));
        world.nics[nic.0].late_completions = Some(LateCompletions { flushes, receives, rng });
    }

    /// Resets a NIC like [`Provider::reset`](mitra_verbs::Provider::reset), and makes its host
    /// refuse packets to the NIC. After `Provider::reset` alone, the host refuses nothing, like a
    /// NIC in hardware.
    pub fn close_port(&mut self, nic: NicId) {
        lock(&self.shared).close_port(nic.0);
    }

    /// Makes the NIC `at` learn that the host of `of` refuses packets, as a forged ICMP message
    /// does. In fact the host refuses nothing.
    pub fn forge_refusal(&mut self, at: NicId, of: NicId) {
        lock(&self.shared).arrive_refusal(at.0, of.0);
    }

    /// Resumes the applications of a host.
    pub fn resume(&mut self, host: HostId) {
        lock(&self.shared).resume(host.0);
    }
}

fn injections(targets: &[(NicId, Failure)]) -> Vec<FailureInjection> {
    targets.iter().map(|&(nic, failure)| FailureInjection::new(nic.0, failure)).collect()
}

impl WorldState {
    pub(crate) fn count_call(&mut self, n: usize) {
        let probe = &mut self.hosts[self.nics[n].host].call_probe;
        let Some((left, _)) = probe else { return };
        *left -= 1;
        if *left == 0
            && let Some((_, injections)) = probe.take()
        {
            self.inject_failures(injections);
        }
    }

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
        self.note_failure(n);
        self.routes.insert((rail, self.nics[n].gid), n);
        self.trace.note(self.now, Subject::Nic(n), NoteKind::Fault, format!("has the address {ip}"));
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
            self.inject_failures(vec![FailureInjection::new(n, Failure::LinkDown)]);
        }
    }
}
