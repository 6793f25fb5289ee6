mod faults;
mod rc_analysis;

use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use mitra_verbs::{Buffer, Capabilities, Mtu, Time};

use crate::app::NextTurn;
use crate::nic::NicState;
use crate::packet_capture::Pcap;
use crate::timeline::{NoteKind, Subject, Timeline, TimelineNic};
use crate::trace::Trace;
use crate::world_state::host::{AppState, HostState};
use crate::world_state::{Event, Shared, WorldState, lock};
use crate::{App, AppContext, Config, Coverage, HostId, LinkConfig, NicId, NicStats, Prng, SimNic};

type Script = Box<dyn FnOnce(&mut World)>;

/// A simulated world: hosts, NICs and cables in virtual time. The seed determines everything that
/// happens.
///
/// If a test panics while it owns a world, the world prints its state, its configuration, the kept
/// records of its trace, and the command that repeats the run.
pub struct World {
    pub(crate) shared: Shared,
    apps: Vec<(Box<dyn App>, Prng)>,
    scripts: BTreeMap<u64, Script>,
    next_script: u64,
    turns: u64,
}

/// The error of a run whose condition did not become true. Its text has several lines: the reason,
/// the state of every program, host and NIC, and the command that repeats the run.
/// [`Debug`](fmt::Debug) prints the same text, so that `unwrap` and a test that returns the error
/// show the text.
#[derive(Clone)]
pub struct Stalled {
    /// The text.
    pub state: String,
}

impl fmt::Debug for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.state)
    }
}

impl core::error::Error for Stalled {}

fn trace_setting() -> String {
    std::env::var("MITRA_SIM_TRACE").unwrap_or_default()
}

const DEFAULT_TRACE_LEN: usize = 200;

impl World {
    /// Creates a world with the configuration that [`Config::swarm`] draws from the seed.
    pub fn new(seed: u64) -> World {
        World::with_config(seed, Config::swarm(seed))
    }

    /// Creates a world with this configuration. All random choices are drawn from the seed.
    ///
    /// The environment variable `MITRA_SIM_TRACE=n` makes the trace keep its last `n` records.
    /// `MITRA_SIM_TRACE=live` makes it print each record immediately. `MITRA_SIM_PCAP=file`
    /// captures all packets, in every world.
    pub fn with_config(seed: u64, config: Config) -> World {
        let setting = trace_setting();
        let trace = Trace::new(setting.parse().unwrap_or(DEFAULT_TRACE_LEN), setting == "live");
        World::with_trace(seed, config, trace)
    }

    /// Creates a world with this configuration that keeps the last `kept_records` records of its
    /// trace. If `kept_records` is not 0, `MITRA_SIM_TRACE=live` makes it print each record
    /// immediately.
    pub fn with_trace_len(seed: u64, config: Config, kept_records: usize) -> World {
        let is_live = kept_records > 0 && trace_setting() == "live";
        World::with_trace(seed, config, Trace::new(kept_records, is_live))
    }

    fn with_trace(seed: u64, config: Config, trace: Trace) -> World {
        let world = WorldState::new(seed, config, trace, Pcap::from_env(seed));
        World {
            shared: Arc::new(Mutex::new(world)),
            apps: Vec::new(),
            scripts: BTreeMap::new(),
            next_script: 0,
            turns: 0,
        }
    }

    /// Returns the seed of the run.
    pub fn seed(&self) -> u64 {
        lock(&self.shared).seed
    }

    /// Returns the configuration.
    pub fn config(&self) -> Config {
        lock(&self.shared).config.clone()
    }

    /// Returns a random number generator for the test, independent of the world's generators.
    pub fn test_rng(&self, name: &str) -> Prng {
        Prng::stream(self.seed(), &format!("test {name}"))
    }

    /// Returns the virtual time.
    pub fn now(&self) -> Time {
        lock(&self.shared).now
    }

    /// Adds a host.
    pub fn add_host(&mut self, name: &str) -> HostId {
        let mut world = lock(&self.shared);
        let number = world.hosts.len();
        world.trace.add_host(name);
        world.hosts.push(HostState::new(name, number));
        HostId(number)
    }

    /// Adds a NIC of a host on a rail, connected to all NICs of the rail, with the configuration's
    /// capabilities. If the host already has a NIC on the rail, the new NIC replaces the old NIC
    /// and has the same address.
    pub fn add_nic(&mut self, host: HostId, rail: u8) -> Arc<SimNic> {
        let capabilities = lock(&self.shared).config.capabilities;
        self.add_nic_with(host, rail, capabilities)
    }

    /// Adds a NIC like [`World::add_nic`], with these capabilities.
    pub fn add_nic_with(&mut self, host: HostId, rail: u8, capabilities: Capabilities) -> Arc<SimNic> {
        let number = lock(&self.shared).add_nic(host.0, rail, capabilities, None);
        Arc::new(SimNic::new(Arc::clone(&self.shared), number))
    }

    /// Adds a NIC like [`World::add_nic_with`], whose port has this largest MTU.
    pub fn add_nic_with_mtu(
        &mut self,
        host: HostId,
        rail: u8,
        capabilities: Capabilities,
        max_mtu: Mtu,
    ) -> Arc<SimNic> {
        let number = lock(&self.shared).add_nic(host.0, rail, capabilities, Some(max_mtu));
        Arc::new(SimNic::new(Arc::clone(&self.shared), number))
    }

    /// Sets the behaviour of the cables of one rail, instead of [`Config::link`]. The noise affects
    /// only NICs that are added later.
    pub fn set_rail_link(&mut self, rail: u8, link: LinkConfig) {
        lock(&self.shared).rail_links.insert(rail, link);
    }

    /// Returns the NIC of a host on a rail that [`World::add_nic`] added last.
    ///
    /// # Panics
    /// Panics if the host has none.
    pub fn nic(&self, host: HostId, rail: u8) -> NicId {
        let world = lock(&self.shared);
        let found = world.nics.iter().rposition(|nic| nic.host == host.0 && nic.rail == rail);
        NicId(found.unwrap_or_else(|| panic!("{} has no NIC on rail {rail}", world.hosts[host.0].name)))
    }

    /// Starts an application on a host.
    pub fn add_app(&mut self, host: HostId, app: impl App + 'static) {
        let mut world = lock(&self.shared);
        let number = self.apps.len();
        self.apps.push((Box::new(app), Prng::stream(world.seed, &format!("app {number}"))));
        world.apps.push(AppState {
            host: host.0,
            turn: 0,
            next_at: Time::ZERO,
            idle_interval: Duration::ZERO,
            exited: false,
            last_trace: String::new(),
        });
        let at = world.now + world.sample_step_interval();
        world.schedule_turn(number, at);
    }

    /// Schedules a function at a time, or at the current time if that time has passed.
    pub fn at(&mut self, at: Time, script: impl FnOnce(&mut World) + 'static) {
        self.next_script += 1;
        self.scripts.insert(self.next_script, Box::new(script));
        let mut world = lock(&self.shared);
        let at = at.max(world.now);
        world.queue.push(at, Event::Script(self.next_script));
    }

    /// Schedules a function after a delay.
    pub fn after(&mut self, time: Duration, script: impl FnOnce(&mut World) + 'static) {
        self.at(self.now() + time, script);
    }

    /// Handles the next event. Returns false if there is none.
    pub fn step(&mut self) -> bool {
        self.step_until(Time::from_nanos(u64::MAX)).is_ok()
    }

    /// Handles the next event if it is not after `deadline`. Otherwise the error is the time of
    /// that event, or `None` if there is no event.
    fn step_until(&mut self, deadline: Time) -> Result<(), Option<Time>> {
        let mut world = lock(&self.shared);
        let at = world.queue.next_at().filter(|at| *at <= deadline).ok_or(world.queue.next_at())?;
        let Some((_, event)) = world.queue.pop() else { return Err(None) };
        world.now = at;
        world.events += 1;
        match event {
            Event::AppTurn(app, turn) => {
                let state = &world.apps[app];
                let host = state.host;
                // Resuming a paused host schedules the next turn.
                if state.turn == turn && !state.exited && !world.hosts[host].paused {
                    let activity_before = world.hosts[host].activity;
                    drop(world);
                    self.run_turn(app, host, activity_before);
                }
            }
            Event::Script(id) => {
                drop(world);
                if let Some(script) = self.scripts.remove(&id) {
                    self.turns += 1;
                    script(self);
                }
            }
            event => world.handle(event),
        }
        Ok(())
    }

    fn run_turn(&mut self, number: usize, host: usize, activity_before: u64) {
        self.turns += 1;
        let (app, rng) = &mut self.apps[number];
        let (host, next_turn) = (HostId(host), NextTurn::Soon);
        let mut ctx = AppContext { shared: &self.shared, host, app: number, rng, next_turn };
        app.step(&mut ctx);
        let next_turn = ctx.next_turn;
        lock(&self.shared).after_turn(number, next_turn, activity_before);
    }

    /// Runs until `done` returns true. The world calls `done` before each event.
    ///
    /// # Errors
    /// Returns [`Stalled`] if `done` is not true within `timeout` of virtual time, or if no event
    /// is left.
    pub fn run_until(
        &mut self,
        mut done: impl FnMut(&World) -> bool,
        timeout: Duration,
    ) -> Result<(), Stalled> {
        let deadline = self.now() + timeout;
        while !done(self) {
            match self.step_until(deadline) {
                Ok(()) => {}
                Err(None) => return Err(self.stalled("no event is left")),
                Err(Some(_)) => {
                    lock(&self.shared).now = deadline;
                    return Err(self.stalled(&format!("not done within {timeout:?}")));
                }
            }
        }
        Ok(())
    }

    /// Returns whether no packet is in flight and no placement, completion or ACK is pending in a
    /// DMA pipeline.
    pub fn is_quiet(&self) -> bool {
        let world = lock(&self.shared);
        world.in_flight == 0 && world.nics.iter().all(|n| n.pipeline.len() == 0)
    }

    /// Runs until [`World::is_quiet`]. If the configuration has stragglers, call
    /// [`World::stop_noise`] first, so that no more packets are delayed.
    ///
    /// # Errors
    /// Returns [`Stalled`] if the world is not quiet within 10 ms plus four times the longest
    /// straggler delay.
    pub fn run_until_quiet(&mut self) -> Result<(), Stalled> {
        let longest = {
            let world = lock(&self.shared);
            let links = world.rail_links.values().chain([&world.config.link]);
            links.map(|link| link.straggler_delay.max).max().unwrap_or_default()
        };
        let timeout = longest * 4 + Duration::from_millis(10);
        self.run_until(World::is_quiet, timeout)
    }

    /// Runs for `time` of virtual time.
    pub fn run_for(&mut self, time: Duration) {
        let deadline = self.now() + time;
        while self.step_until(deadline).is_ok() {}
        lock(&self.shared).now = deadline;
    }

    fn stalled(&self, reason: &str) -> Stalled {
        let world = lock(&self.shared);
        Stalled {
            state: format!(
                "seed {}: {reason}\n{}\n{}",
                world.seed,
                world.describe_state(),
                mitra_prng::reproduce_command(world.seed)
            ),
        }
    }

    /// Returns the host of a NIC.
    pub fn host_of(&self, nic: NicId) -> HostId {
        HostId(lock(&self.shared).nics[nic.0].host)
    }

    /// Returns the counters of a NIC's packets.
    pub fn stats(&self, nic: NicId) -> NicStats {
        lock(&self.shared).nics[nic.0].stats
    }

    /// Returns the number of bytes that a NIC has placed in host memory so far.
    pub fn placed_bytes(&self, nic: NicId) -> u64 {
        lock(&self.shared).nics[nic.0].pipeline.placed
    }

    /// Writes a line into the trace.
    pub fn trace_text(&mut self, text: impl fmt::Display) {
        let mut world = lock(&self.shared);
        let now = world.now;
        world.trace.note(now, Subject::World, NoteKind::Event, text.to_string());
    }

    /// Returns a hash of all events so far. Two runs of one seed have the same hash.
    pub fn trace_hash(&self) -> u64 {
        lock(&self.shared).trace.hash()
    }

    /// Returns the last `n` of the kept records of the trace, formatted.
    pub fn trace_tail(&self, n: usize) -> Vec<String> {
        lock(&self.shared).trace.tail(n).collect()
    }

    /// Returns the coverage so far: which failures happened at which stages of operations, and how
    /// often.
    pub fn coverage(&self) -> Coverage {
        lock(&self.shared).observer.coverage.clone()
    }

    /// Returns the kept records of the trace, prepared for a drawing.
    pub fn timeline(&self) -> Timeline {
        let world = lock(&self.shared);
        let hosts = world.hosts.iter().map(|host| host.name.clone()).collect();
        let nic = |nic: &NicState| TimelineNic { name: nic.name.clone(), host: nic.host, rail: nic.rail };
        Timeline::new(hosts, world.nics.iter().map(nic).collect(), &world.trace)
    }

    /// Returns the number of times at which NICs have written a registered buffer of a host.
    pub fn memory_changes(&self, host: HostId, buffer: &Arc<Buffer>) -> Arc<AtomicU64> {
        Arc::clone(&lock(&self.shared).hosts[host.0].registered(buffer).changes)
    }

    /// Returns a condition for [`World::run_until`]. `done` must depend only on the state of
    /// programs, because the world calls `done` again only after a turn of a program, or after a
    /// scheduled function.
    pub fn programs_are(done: impl Fn() -> bool) -> impl FnMut(&World) -> bool {
        let mut last = (None, false);
        move |world| {
            if last.0 != Some(world.turns) {
                last = (Some(world.turns), done());
            }
            last.1
        }
    }

    /// Returns the number of events so far.
    pub fn events(&self) -> u64 {
        lock(&self.shared).events
    }
}

impl WorldState {
    pub(crate) fn sample_step_interval(&mut self) -> Duration {
        self.config.host.step_interval.sample(&mut self.host_rng)
    }

    fn after_turn(&mut self, app: usize, next_turn: NextTurn, activity_before: u64) {
        let host = self.apps[app].host;
        let active = self.hosts[host].activity != activity_before;
        if self.host_rng.chance(self.config.host.pause_ppm) {
            let until = self.now + self.config.host.pause_length.sample(&mut self.host_rng);
            self.pause(host, Some(until));
        }
        let step = self.sample_step_interval();
        let state = &mut self.apps[app];
        state.idle_interval = match active {
            true => step,
            false => (state.idle_interval * 4).min(self.config.host.max_idle_step).max(step),
        };
        let at = match next_turn {
            NextTurn::Soon => self.now + state.idle_interval,
            NextTurn::At(at) => at.max(self.now + step),
            NextTurn::Never => {
                state.exited = true;
                return;
            }
        };
        if !self.hosts[host].paused {
            self.schedule_turn(app, at);
        }
    }
}
