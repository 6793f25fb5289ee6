//! Hosts and the scheduling of their applications.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use mitra_verbs::{Buffer, Time};

use crate::liveness::Part;
use crate::world_state::{Event, WorldState};

/// A host: its name, whether it is paused, and the addresses of its buffers.
pub(crate) struct HostState {
    pub(crate) name: String,
    pub(crate) paused: bool,
    /// The number of pauses so far. It identifies the current pause, so that the scheduled end of an earlier
    /// pause is ignored.
    pub(crate) pauses: u64,
    /// The number of calls that changed state or returned a completion or event. A turn that does not
    /// increase it is idle.
    pub(crate) activity: u64,
    /// The simulated address of each registered buffer, by the buffer's real address. The weak pointer keeps
    /// the allocation, so that no other buffer gets the same real address.
    addresses: BTreeMap<usize, (Weak<Buffer>, u64)>,
    next_address: u64,
}

impl HostState {
    pub(crate) fn new(name: &str, number: usize) -> HostState {
        HostState {
            name: name.to_owned(),
            paused: false,
            pauses: 0,
            activity: 0,
            addresses: BTreeMap::new(),
            next_address: 0x7000_0000_0000 + ((number as u64) << 36),
        }
    }

    /// Returns the simulated address of a buffer, and assigns one to a new buffer. Simulated addresses do not
    /// depend on real addresses, so that runs of one seed are identical.
    pub(crate) fn address_of(&mut self, buffer: &Arc<Buffer>) -> u64 {
        let next = &mut self.next_address;
        let entry = self.addresses.entry(Arc::as_ptr(buffer).addr()).or_insert_with(|| {
            let address = *next;
            *next += (buffer.len() as u64).next_multiple_of(4096) + 4096;
            (Arc::downgrade(buffer), address)
        });
        entry.1
    }
}

/// The schedule of an application.
pub(crate) struct AppState {
    pub(crate) host: usize,
    /// The number of the scheduled turn. Events for other turns are stale.
    pub(crate) turn: u64,
    /// The time of the scheduled turn.
    pub(crate) next_at: Time,
    /// The interval to the next turn. It grows while the application is idle.
    pub(crate) idle_interval: core::time::Duration,
    pub(crate) exited: bool,
}

impl WorldState {
    /// Schedules earlier turns for the applications of a host. Called when something happens at the host's
    /// NICs.
    pub(crate) fn wake_apps(&mut self, host: usize) {
        for app in 0..self.apps.len() {
            if self.apps[app].host != host || self.apps[app].exited || self.hosts[host].paused {
                continue;
            }
            let at = self.now + self.config.host.step_interval.sample(&mut self.host_rng);
            if at < self.apps[app].next_at {
                self.schedule_turn(app, at);
            }
        }
    }

    /// Schedules the next turn of an application, and invalidates the turn that was scheduled before.
    pub(crate) fn schedule_turn(&mut self, app: usize, at: Time) {
        let state = &mut self.apps[app];
        state.turn += 1;
        state.next_at = at;
        self.queue.push(at, Event::AppTurn(app, state.turn));
    }

    /// Pauses the applications of a host. The host's NICs continue.
    pub(crate) fn pause(&mut self, host: usize, until: Option<Time>) {
        let state = &mut self.hosts[host];
        state.paused = true;
        state.pauses += 1;
        self.absences.set(self.now, Part::Host(host), true);
        self.trace.text(self.now, format!("{} pauses", state.name));
        if let Some(until) = until {
            self.queue.push(until, Event::HostResume(host, state.pauses));
        }
    }

    pub(crate) fn resume(&mut self, host: usize) {
        if !core::mem::take(&mut self.hosts[host].paused) {
            return;
        }
        self.absences.set(self.now, Part::Host(host), false);
        self.trace.text(self.now, format!("{} wakes", self.hosts[host].name));
        for app in 0..self.apps.len() {
            if self.apps[app].host == host && !self.apps[app].exited {
                let at = self.now + self.config.host.step_interval.sample(&mut self.host_rng);
                self.schedule_turn(app, at);
            }
        }
    }
}
