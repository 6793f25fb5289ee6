//! Many clients share a word by atomics while links, NICs and programs fail or are slow. In each
//! world, no update is lost and all work is done. When the faults are over, the home settles on a
//! rail that all clients can use.

use core::time::Duration;

use mitra_failover::{CloseReason, Failback};
use mitra_sim::workload::check_liveness;
use mitra_sim::{DurationRange, Failure, Prng, reproduce_command, seeds};

use crate::shared_word::{Setup, Shape};
use mitra_sim::workload::shared_word::{Pace, time_below};

/// The values that a seed draws, besides the configuration of NICs and links.
struct Storm {
    clients: usize,
    rails: usize,
    peer_timeout: Duration,
    /// The time of silence after which an end leaves a rail. `None` without heartbeats.
    heartbeat_timeout: Option<Duration>,
    /// The time between two polls of the server and of each client. 0 for a program that polls in
    /// each turn.
    intervals: Vec<Duration>,
    /// The only rail that all can use when the faults are over. `None` if all can use each rail.
    common_rail: Option<usize>,
    preferred_rail: Option<u8>,
    /// The rail of the server's NIC that fails, and how the NIC fails.
    lost_nic: Option<(usize, Failure)>,
}

/// The longest time between two polls at which an end never seems silent to its peer. A vQP reads
/// the clock at least at every fourth poll, so each heartbeat may be up to four polls late. The
/// interval of heartbeats is an eighth of the timeout.
fn rarest_poll(heartbeat_timeout: Option<Duration>, peer_timeout: Duration) -> Duration {
    heartbeat_timeout.unwrap_or(peer_timeout / 2) / 8
}

impl Storm {
    fn draw(rng: &mut Prng) -> Storm {
        let (clients, rails) = (rng.between(2, 8) as usize, rng.between(2, 4) as usize);
        let peer_timeout = Duration::from_millis(*rng.pick(&[40, 80]));
        let heartbeat_timeout = *rng.pick(&[Some(peer_timeout / 20), Some(peer_timeout / 5), None]);
        let rarest = rarest_poll(heartbeat_timeout, peer_timeout);
        let intervals = (0..=clients).map(|_| match rng.below(3) {
            0 => Duration::from_nanos(rng.below(rarest.as_nanos() as u64)),
            _ => Duration::ZERO,
        });
        let intervals = intervals.collect();
        let common_rail = (rng.below(2) == 0).then(|| rng.index(rails));
        let preferred_rail =
            (rng.below(4) == 0).then(|| common_rail.unwrap_or_else(|| rng.index(rails)) as u8);
        let failure = *rng.pick(&[Failure::NicDead, Failure::NicHung]);
        let lost_nic = (rng.below(4) == 0).then(|| (rng.index(rails), failure));
        let lost_nic = lost_nic.filter(|(rail, _)| common_rail.is_some_and(|common| common != *rail));
        Storm {
            clients,
            rails,
            peer_timeout,
            heartbeat_timeout,
            intervals,
            common_rail,
            preferred_rail,
            lost_nic,
        }
    }

    fn rarest_poll(&self) -> Duration {
        rarest_poll(self.heartbeat_timeout, self.peer_timeout)
    }

    fn set_up(&self, seed: u64, rng: &mut Prng) -> Setup {
        let mut world = mitra_sim::Config::swarm(seed);
        world.link.switched = true; // the rails of the clients fail one by one
        world.memory.atomic_delay = DurationRange::nanos(100, 3_000);
        world.host.pause_length.max = world.host.pause_length.max.min(self.peer_timeout / 16);
        world.host.max_idle_step = world.host.max_idle_step.min(self.rarest_poll());
        world.host.pause_length.min = world.host.pause_length.min.min(world.host.pause_length.max);
        let rails = vec![world.capabilities; self.rails];
        let server_pace = Pace::every(self.intervals[0]);
        let shape = Shape { clients: self.clients, rails, shares: true, server_pace };
        let mut setup = Setup::with_shape(seed, world, shape);
        setup.config.peer_timeout = self.peer_timeout;
        let delay = self.peer_timeout / 8;
        setup.config.failback = self.preferred_rail.map(|rail| Failback { rail, delay });
        setup.config.control_retry_interval = self.peer_timeout / 200;
        let detector = &mut setup.config.detector;
        detector.heartbeat_interval = self.heartbeat_timeout.unwrap_or(self.peer_timeout / 5) / 8;
        detector.max_missed_heartbeats = if self.heartbeat_timeout.is_some() { 8 } else { 0 };
        for n in 0..self.clients {
            setup.add_client(rng.below(3) == 0, rng.between(20, 100));
            let mut client = setup.clients[n].borrow_mut();
            client.pace = Pace::every(self.intervals[n + 1]);
            client.longest_pause = Duration::from_micros(*rng.pick(&[60, 1_000])).min(self.rarest_poll());
        }
        setup
    }

    /// Draws failures of links that are healed later, naps, and the loss of a NIC. Returns the
    /// number of faults.
    fn add_faults(&self, setup: &mut Setup, rng: &mut Prng) -> usize {
        let faults = rng.between(1, 4 + self.clients as u64) as usize;
        let mut at = Duration::ZERO;
        for _ in 0..faults {
            at += time_below(rng, 14, 23);
            let host = rng.index(self.clients + 1);
            if rng.below(3) == 0 {
                let (host, nap) = (setup.hosts[host], time_below(rng, 18, 24).min(self.peer_timeout / 4));
                setup.world.after(at, move |w| {
                    let until = w.now() + nap;
                    w.pause(host, Some(until));
                });
            } else {
                let nic = setup.nics[host][rng.index(self.rails)].id();
                let up = at + time_below(rng, 15, 24);
                setup.world.after(at, move |w| w.set_link(nic, false));
                setup.world.after(up, move |w| w.set_link(nic, true));
            }
        }
        if let Some((rail, failure)) = self.lost_nic {
            let nic = setup.nics[0][rail].id();
            setup.world.after(Duration::from_nanos(rng.below(1 << 21)), move |w| w.fail(nic, failure));
        }
        faults + usize::from(self.lost_nic.is_some())
    }

    /// Ends the faults. Lost NICs stay lost. Each client loses one of the rails other than the
    /// common rail.
    fn end_faults(&self, setup: &mut Setup, rng: &mut Prng) {
        setup.world.stop_noise();
        for nic in setup.nics.concat() {
            setup.world.set_link(nic.id(), true);
        }
        for client in 1..=self.clients {
            let lost = rng.index(self.rails);
            if self.common_rail.is_some_and(|common| common != lost) {
                let nic = setup.nics[client][lost].id();
                setup.world.set_link(nic, false);
            }
        }
    }
}

fn epochs(setup: &Setup) -> Vec<u16> {
    let server = setup.server.borrow();
    server.iter().map(|vqp| vqp.last_failover().map_or(0, |report| report.epoch)).collect()
}

/// Gives each client work for a time, in which the client also pauses. Returns the epochs after
/// each tenth of the time.
fn run_with_work(setup: &mut Setup, time: Duration) -> Vec<Vec<u16>> {
    let mut seen = vec![epochs(setup)];
    for _ in 0..10 {
        for client in &setup.clients {
            client.borrow_mut().target += 3;
        }
        setup.world.run_for(time / 10);
        seen.push(epochs(setup));
    }
    seen
}

/// Runs the world of a seed. Returns the number of faults and of moves, or an error.
fn run(seed: u64) -> Result<(usize, u64), String> {
    let rng = &mut Prng::stream(seed, "shared word");
    let storm = Storm::draw(rng);
    let mut setup = storm.set_up(seed, rng);
    let faults = storm.add_faults(&mut setup, rng);
    setup.run(Duration::from_millis(60));
    storm.end_faults(&mut setup, rng);
    if !setup.run(Duration::from_secs(20)) {
        return Err(format!("work is not done, rails {:?}, {:?}", setup.rails(), setup.close_reasons()));
    }
    let mut applies = true;
    for (n, (server, client)) in setup.server.borrow().iter().zip(&setup.clients).enumerate() {
        let client = client.borrow();
        applies &= check_liveness(&setup.world, [setup.hosts[0], setup.hosts[n + 1]], [server, &client.vqp])?;
    }
    if applies && storm.lost_nic.is_none() {
        let closed: Vec<CloseReason> = setup.close_reasons().into_iter().flatten().collect();
        let undecided: u64 = setup.clients.iter().map(|client| client.borrow().undecided).sum();
        if !closed.is_empty() || undecided > 0 {
            return Err(format!("{undecided} atomics are undecided, closed: {closed:?}"));
        }
    }
    setup.check()?;
    if applies {
        // The clients that lost a rail notice the loss, and the pauses between moves end.
        run_with_work(&mut setup, storm.peer_timeout * 10);
        let home = setup.rails()[0][0];
        let seen = run_with_work(&mut setup, storm.peer_timeout * 10);
        let rails = setup.rails();
        // The pause before a failback may be long if another move followed an earlier failback.
        let failbacks = u16::from(storm.preferred_rail.is_some_and(|rail| usize::from(rail) != home));
        if seen[0].iter().zip(&seen[10]).any(|(first, last)| last - first > failbacks) {
            return Err(format!("the home does not settle: epochs {seen:?}, rails {rails:?}"));
        }
        if rails.concat().iter().any(|&rail| rail != rails[0][0]) {
            return Err(format!("the vQPs are not together: {rails:?}"));
        }
        if !setup.run(storm.peer_timeout * 10) {
            return Err(format!("work is not done at last, rails {rails:?}"));
        }
        setup.check()?;
    }
    Ok((faults, epochs(&setup).into_iter().map(u64::from).sum()))
}

#[test]
fn many_clients_lose_no_update_and_settle() {
    let (mut faults, mut moves) = (0, 0);
    for seed in seeds(40) {
        match run(seed) {
            Ok((of_seed, epochs)) => (faults, moves) = (faults + of_seed, moves + epochs),
            Err(error) => panic!("seed {seed}: {error}\n{}", reproduce_command(seed)),
        }
    }
    println!("{faults} faults, {moves} moves of vQPs");
    assert!(faults > 0 && moves > 0);
}
