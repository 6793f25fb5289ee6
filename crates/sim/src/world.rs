use core::cell::Cell;
use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use mitra_transport::fault::{Failure, Faults, Stage, Trigger};
use mitra_verbs::{Capabilities, Time};

use crate::app::Wish;
use crate::fabric::{AppState, Core, Event, HostState, Shared, lock};
use crate::nic::{Probe, Strike};
use crate::pcap::Pcap;
use crate::{App, Config, Ctx, NicStats, Prng, SimNic, Trace, harness};

/// Names a host of a world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostId(pub(crate) usize);

/// Names a NIC of a world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NicId(pub(crate) usize);

type Script = Box<dyn FnOnce(&mut World)>;

/// A simulated world: hosts, NICs and cables in virtual time, all from one seed.
///
/// If a test panics while it holds one, the world prints how to repeat the run, its configuration and the end of
/// its trace.
pub struct World {
    pub(crate) shared: Shared,
    apps: Vec<Option<Box<dyn App>>>,
    app_rngs: Vec<Prng>,
    scripts: BTreeMap<u64, Script>,
    next_script: u64,
    pub(crate) quiet: Cell<bool>,
}

/// A run did not reach what it was run for.
#[derive(Clone, Debug)]
pub struct Stuck {
    /// Why it ended, and how everything stood.
    pub state: String,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.state)
    }
}

impl core::error::Error for Stuck {}

/// Records that a trace keeps unless `MITRA_SIM_TRACE` says how many.
const TRACE: usize = 200;

impl World {
    /// A world whose faults the seed chooses.
    pub fn new(seed: u64) -> World {
        World::with(seed, Config::swarm(seed))
    }

    /// A world that behaves like this; the seed chooses within it.
    ///
    /// `MITRA_SIM_TRACE=n` keeps the last `n` records of the trace, `MITRA_SIM_TRACE=live` prints each as it comes;
    /// `MITRA_SIM_PCAP=file` captures all packets.
    pub fn with(seed: u64, config: Config) -> World {
        let wish = std::env::var("MITRA_SIM_TRACE").unwrap_or_default();
        let trace = Trace::new(wish.parse().unwrap_or(TRACE), wish == "live");
        World::with_trace(seed, config, trace)
    }

    /// The same, keeping the last `keep` records of its trace.
    pub fn keeping(seed: u64, config: Config, keep: usize) -> World {
        World::with_trace(seed, config, Trace::new(keep, false))
    }

    fn with_trace(seed: u64, config: Config, trace: Trace) -> World {
        let core = Core::new(seed, config, trace, Pcap::from_env(seed));
        World {
            shared: Arc::new(Mutex::new(core)),
            apps: Vec::new(),
            app_rngs: Vec::new(),
            scripts: BTreeMap::new(),
            next_script: 0,
            quiet: Cell::new(false),
        }
    }

    /// A panic shall print nothing of this world: the test expects it.
    pub fn quiet(&self) {
        self.quiet.set(true);
    }

    /// The run's seed.
    pub fn seed(&self) -> u64 {
        lock(&self.shared).seed
    }

    /// How the world behaves.
    pub fn config(&self) -> Config {
        lock(&self.shared).config.clone()
    }

    /// A stream of chance for the test itself.
    pub fn rng(&self, name: &str) -> Prng {
        Prng::stream(self.seed(), &format!("test {name}"))
    }

    /// The time, from zero.
    pub fn now(&self) -> Time {
        lock(&self.shared).now
    }

    /// Adds a host.
    pub fn add_host(&mut self, name: &str) -> HostId {
        let mut core = lock(&self.shared);
        let number = core.hosts.len();
        core.hosts.push(HostState::new(name, number));
        HostId(number)
    }

    /// Adds a host's NIC on a rail, with the configuration's capabilities. A NIC reaches the others of its rail. In
    /// the place of one that died or was reset, this is the new card with the old address.
    pub fn add_nic(&mut self, host: HostId, rail: u8) -> Arc<SimNic> {
        let capabilities = lock(&self.shared).config.capabilities;
        self.add_nic_with(host, rail, capabilities)
    }

    /// The same with other capabilities.
    pub fn add_nic_with(&mut self, host: HostId, rail: u8, capabilities: Capabilities) -> Arc<SimNic> {
        let number = lock(&self.shared).add_nic(host.0, rail, capabilities);
        Arc::new(SimNic::new(Arc::clone(&self.shared), number))
    }

    /// Starts an application on a host.
    pub fn add_app(&mut self, host: HostId, app: impl App + 'static) {
        let mut core = lock(&self.shared);
        let number = self.apps.len();
        self.apps.push(Some(Box::new(app)));
        self.app_rngs.push(Prng::stream(core.seed, &format!("app {number}")));
        core.apps.push(AppState {
            host: host.0,
            turn: 0,
            next_at: Time::ZERO,
            patience: Duration::ZERO,
            exited: false,
        });
        let at = core.now + core.host_rng_step();
        core.plan(number, at);
    }

    /// Does something at a time, or now if that has passed.
    pub fn at(&mut self, at: Time, script: impl FnOnce(&mut World) + 'static) {
        self.next_script += 1;
        self.scripts.insert(self.next_script, Box::new(script));
        let mut core = lock(&self.shared);
        let at = at.max(core.now);
        core.queue.push(at, Event::Script(self.next_script));
    }

    /// Does something after so long.
    pub fn after(&mut self, time: Duration, script: impl FnOnce(&mut World) + 'static) {
        self.at(self.now() + time, script);
    }

    /// Lets the next thing happen; false if nothing is left to happen.
    pub fn step(&mut self) -> bool {
        let mut core = lock(&self.shared);
        let Some((at, event)) = core.queue.pop() else { return false };
        core.now = at;
        core.events += 1;
        match event {
            Event::Step(app, turn) => {
                if core.apps[app].turn == turn && !core.apps[app].exited {
                    drop(core);
                    self.turn(app);
                }
            }
            Event::Script(id) => {
                drop(core);
                if let Some(script) = self.scripts.remove(&id) {
                    script(self);
                }
            }
            event => core.handle(event),
        }
        true
    }

    fn turn(&mut self, number: usize) {
        let (host, before) = {
            let core = lock(&self.shared);
            let host = core.apps[number].host;
            if core.hosts[host].paused {
                return; // its waking plans the next turn
            }
            (host, core.hosts[host].activity)
        };
        let Some(mut app) = self.apps[number].take() else { return };
        let rng = &mut self.app_rngs[number];
        let mut ctx = Ctx { shared: &self.shared, host: HostId(host), rng, wish: Wish::Soon };
        app.step(&mut ctx);
        let wish = ctx.wish;
        self.apps[number] = Some(app);
        lock(&self.shared).after_turn(number, wish, before);
    }

    /// Runs until the condition holds, for at most so long.
    ///
    /// # Errors
    /// If time runs out, or nothing is left to happen before.
    pub fn run_until(&mut self, mut done: impl FnMut(&World) -> bool, most: Duration) -> Result<(), Stuck> {
        let deadline = self.now() + most;
        loop {
            if done(self) {
                return Ok(());
            }
            let next = lock(&self.shared).queue.next_at();
            match next {
                None => return Err(self.stuck("nothing is left to happen")),
                Some(at) if at > deadline => {
                    lock(&self.shared).now = deadline;
                    return Err(self.stuck(&format!("not done within {most:?}")));
                }
                Some(_) => self.step(),
            };
        }
    }

    /// Whether no packet is in flight and nothing is on its way to memory.
    pub fn is_still(&self) -> bool {
        let core = lock(&self.shared);
        core.in_flight == 0 && core.nics.iter().all(|n| n.pipeline.len() == 0)
    }

    /// Runs until the last straggler has arrived. [`World::calm`] sees to it that no new ones come.
    ///
    /// # Errors
    /// If packets keep coming without a pause, or something is held back for good.
    pub fn settle(&mut self) -> Result<(), Stuck> {
        let most = lock(&self.shared).config.wire.straggle.max * 4 + Duration::from_millis(10);
        self.run_until(World::is_still, most)
    }

    /// Runs for so long.
    pub fn run_for(&mut self, time: Duration) {
        let deadline = self.now() + time;
        while lock(&self.shared).queue.next_at().is_some_and(|at| at <= deadline) {
            self.step();
        }
        lock(&self.shared).now = deadline;
    }

    fn stuck(&self, why: &str) -> Stuck {
        let core = lock(&self.shared);
        Stuck {
            state: format!("seed {}: {why}; {}\n{}", core.seed, core.state(), harness::reproduce(core.seed)),
        }
    }

    /// Ends what the seed does to packets and hosts. What has failed stays failed, what is late is still coming.
    pub fn calm(&mut self) {
        let mut core = lock(&self.shared);
        core.config = core.config.healed();
        let noise = core.config.wire.noise;
        for nic in &mut core.nics {
            nic.faults.set_noise_tx(noise);
            nic.faults.set_noise_rx(noise);
        }
    }

    /// The same; moreover puts all cables in and wakes all hosts. Dead and hung NICs stay so. What was waiting for luck
    /// must now end.
    pub fn heal(&mut self) {
        self.calm();
        let mut core = lock(&self.shared);
        for n in 0..core.nics.len() {
            core.set_link(n, true);
        }
        for host in 0..core.hosts.len() {
            core.resume(host);
        }
    }

    /// Fails a NIC or its link now.
    pub fn fail(&mut self, nic: NicId, failure: Failure) {
        let strike = Strike { nic: nic.0, failure: Some(failure), let_go: false };
        lock(&self.shared).strike(vec![strike]);
    }

    /// After so many more readings of this NIC's clock its host sleeps, wherever in its code that is: the next reading is so
    /// much later.
    pub fn sleep_at_reading(&mut self, nic: NicId, readings: u32, duration: Duration) {
        lock(&self.shared).nics[nic.0].sleep = Some((readings, duration));
    }

    /// Takes a NIC's cable out, or puts it in.
    pub fn set_link(&mut self, nic: NicId, up: bool) {
        lock(&self.shared).set_link(nic.0, up);
    }

    /// A NIC's own faults: to arm triggers, or to set noise in one direction. What fails this way is noticed when
    /// the next packet passes; [`World::fail`] acts at once.
    pub fn faults<T>(&mut self, nic: NicId, f: impl FnOnce(&mut Faults) -> T) -> T {
        f(&mut lock(&self.shared).nics[nic.0].faults)
    }

    /// When the `nth` packet reaches this stage at `at`, fails `targets`. With `hold`, a packet that would pass at that
    /// moment, or be lost on the wire, arrives so much later instead.
    pub fn on_stage(
        &mut self,
        at: NicId,
        stage: Stage,
        nth: u32,
        targets: &[(NicId, Failure)],
        hold: Option<Duration>,
    ) {
        let mut strikes: Vec<Strike> =
            targets.iter().map(|&(n, f)| Strike { nic: n.0, failure: Some(f), let_go: false }).collect();
        if stage == Stage::NotPlaced {
            strikes.push(Strike { nic: at.0, failure: None, let_go: true });
        }
        // A packet is taken by a failure of the NIC that it is at, or of its link; a hung one lets it pass.
        let taken = targets.iter().any(|&(n, f)| n == at && f != Failure::NicHung)
            || targets.iter().any(|&(_, f)| f == Failure::LinkDown);
        let failure = if taken { Failure::NicDead } else { Failure::NicHung };
        let hold = hold.filter(|_| match stage {
            Stage::RequestOnWire | Stage::AckOnWire => true,
            Stage::NotPlaced => false,
            _ => !taken,
        });
        let probe = Probe::new(Trigger { stage, nth, failure }, strikes, hold);
        lock(&self.shared).nics[at.0].probes.push(probe);
    }

    /// Whether everything that [`World::on_stage`] waits for at this NIC has happened.
    pub fn struck(&self, nic: NicId) -> bool {
        lock(&self.shared).nics[nic.0].probes.is_empty()
    }

    /// Stops a host's applications; its NICs go on. Until a time, or until [`World::resume`].
    pub fn pause(&mut self, host: HostId, until: Option<Time>) {
        lock(&self.shared).pause(host.0, until);
    }

    /// Wakes a host.
    pub fn resume(&mut self, host: HostId) {
        lock(&self.shared).resume(host.0);
    }

    /// What became of a NIC's packets.
    pub fn stats(&self, nic: NicId) -> NicStats {
        lock(&self.shared).nics[nic.0].stats
    }

    /// Bytes that a NIC has placed in memory so that the host sees them.
    pub fn placed(&self, nic: NicId) -> u64 {
        lock(&self.shared).nics[nic.0].pipeline.placed()
    }

    /// Writes a line into the trace.
    pub fn note(&mut self, text: impl fmt::Display) {
        let mut core = lock(&self.shared);
        let now = core.now;
        core.trace.note(now, text.to_string());
    }

    /// A hash of all that has happened: equal in two runs of the same seed.
    pub fn trace_hash(&self) -> u64 {
        lock(&self.shared).trace.hash()
    }

    /// The last `n` lines of the trace, as far as it is kept.
    pub fn trace(&self, n: usize) -> Vec<String> {
        lock(&self.shared).trace.tail(n).collect()
    }

    /// How many events have happened.
    pub fn events(&self) -> u64 {
        lock(&self.shared).events
    }
}

impl Core {
    fn host_rng_step(&mut self) -> Duration {
        self.config.host.step.sample(&mut self.host_rng)
    }

    fn set_link(&mut self, n: usize, up: bool) {
        if up {
            self.nics[n].faults.heal_link();
            self.follow(n);
        } else {
            self.strike(vec![Strike { nic: n, failure: Some(Failure::LinkDown), let_go: false }]);
        }
    }

    fn after_turn(&mut self, app: usize, wish: Wish, before: u64) {
        let host = self.apps[app].host;
        let active = self.hosts[host].activity != before;
        if self.host_rng.chance(self.config.host.pause_ppm) {
            let until = self.now + self.config.host.pause.sample(&mut self.host_rng);
            self.pause(host, Some(until));
        }
        let step = self.host_rng_step();
        let state = &mut self.apps[app];
        state.patience = match active {
            true => step,
            false => (state.patience * 4).min(self.config.host.idle_step).max(step),
        };
        let at = match wish {
            Wish::Soon => self.now + state.patience,
            Wish::At(at) => at.max(self.now + step),
            Wish::Never => {
                state.exited = true;
                return;
            }
        };
        if !self.hosts[host].paused {
            self.plan(app, at);
        }
    }
}
