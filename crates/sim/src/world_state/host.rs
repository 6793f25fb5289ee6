//! Hosts and the scheduling of their applications.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};

use mitra_verbs::{Buffer, RegionId, Time};

use crate::absences::Part;
use crate::coverage::RecoveryPoint;
use crate::dma_pipeline::HostBuffer;
use crate::failure_injection::FailureInjection;
use crate::timeline::{NoteKind, Subject};
use crate::world_state::{Event, WorldState};

pub(crate) struct HostState {
    pub(crate) name: String,
    pub(crate) paused: bool,
    /// The number of pauses so far. It identifies the current pause, so that the scheduled end of
    /// an earlier pause is ignored.
    pub(crate) pauses: u64,
    /// The number of calls that changed state or returned a completion or event. A turn is idle if
    /// it does not increase this number.
    pub(crate) activity: u64,
    /// The number of calls until failures are injected, and the failures.
    pub(crate) call_probe: Option<(u64, Vec<FailureInjection>)>,
    pub(crate) point_probe: Option<PointProbe>,
    /// The registered buffers, by real address. The weak pointer keeps the allocation, so that no
    /// other buffer gets the same real address.
    buffers: BTreeMap<usize, RegisteredBuffer>,
    next_address: u64,
}

pub(crate) struct RegisteredBuffer {
    _buffer: Weak<Buffer>,
    pub(crate) address: u64,
    pub(crate) changes: Arc<AtomicU64>,
}

pub(crate) struct PointProbe {
    pub(crate) point: RecoveryPoint,
    /// The number of times that the host reaches the point until the probe fires, including the
    /// time at which it fires.
    pub(crate) left: u32,
    pub(crate) targets: Vec<FailureInjection>,
}

impl HostState {
    pub(crate) fn new(name: &str, number: usize) -> HostState {
        HostState {
            name: name.to_owned(),
            paused: false,
            pauses: 0,
            activity: 0,
            call_probe: None,
            point_probe: None,
            buffers: BTreeMap::new(),
            next_address: 0x7000_0000_0000 + ((number as u64) << 36),
        }
    }

    /// Assigns a simulated address to a new buffer. Simulated addresses do not depend on real
    /// addresses, so that runs of one seed are identical.
    pub(crate) fn registered(&mut self, buffer: &Arc<Buffer>) -> &RegisteredBuffer {
        let next = &mut self.next_address;
        self.buffers.entry(Arc::as_ptr(buffer).addr()).or_insert_with(|| {
            let address = *next;
            *next += (buffer.len() as u64).next_multiple_of(4096) + 4096;
            RegisteredBuffer { _buffer: Arc::downgrade(buffer), address, changes: Arc::default() }
        })
    }
}

pub(crate) struct AppState {
    pub(crate) host: usize,
    /// The number of the scheduled turn. Events for other turns are stale.
    pub(crate) turn: u64,
    pub(crate) next_at: Time,
    /// The interval to the next turn, which grows while the application is idle.
    pub(crate) idle_interval: core::time::Duration,
    pub(crate) exited: bool,
    /// The last line that the application added to the trace, for the report of a failure.
    pub(crate) last_trace: String,
}

impl WorldState {
    /// Returns the number and the simulated address of the region.
    pub(crate) fn add_region(&mut self, nic: usize, buffer: Arc<Buffer>) -> (RegionId, u64) {
        let nic = &mut self.nics[nic];
        let registered = self.hosts[nic.host].registered(&buffer);
        let changes = Arc::clone(&registered.changes);
        nic.regions.push(Some(Arc::new(HostBuffer { buffer, changes })));
        (RegionId(nic.regions.len() as u32 - 1), registered.address)
    }

    pub(crate) fn count_activity(&mut self, nic: usize) {
        self.hosts[self.nics[nic].host].activity += 1;
    }

    /// Schedules earlier turns for the applications of a host, because something has happened at
    /// its NICs.
    pub(crate) fn wake_apps(&mut self, host: usize) {
        for app in 0..self.apps.len() {
            if self.apps[app].host != host || self.apps[app].exited || self.hosts[host].paused {
                continue;
            }
            let at = self.now + self.sample_step_interval();
            if at < self.apps[app].next_at {
                self.schedule_turn(app, at);
            }
        }
    }

    /// Also invalidates the turn that an earlier call scheduled.
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
        self.trace.note(self.now, Subject::Host(host), NoteKind::Fault, "pauses".to_owned());
        if let Some(until) = until {
            self.queue.push(until, Event::HostResume(host, state.pauses));
        }
    }

    pub(crate) fn resume(&mut self, host: usize) {
        if !core::mem::take(&mut self.hosts[host].paused) {
            return;
        }
        self.absences.set(self.now, Part::Host(host), false);
        self.trace.note(self.now, Subject::Host(host), NoteKind::Recovery, "wakes".to_owned());
        for app in 0..self.apps.len() {
            if self.apps[app].host == host && !self.apps[app].exited {
                let at = self.now + self.sample_step_interval();
                self.schedule_turn(app, at);
            }
        }
    }
}
