//! Periodic work: control messages, device events, heartbeats, probes of the rails that the vQP
//! left, and retries.

use core::time::Duration;

use mitra_verbs::Time;

use crate::control_message::{Body, Message};
use crate::domain::Domain;
use crate::negotiation::RailNegotiation;
use crate::vqp::address_changes::AddressChanges;
use crate::vqp::datapath::Datapath;
use crate::vqp::durability::Durability;
use crate::vqp::heartbeats::Heartbeats;
use crate::vqp::maintenance_schedule::MaintenanceSchedule;
use crate::vqp::rail_rejoin::RailRejoin;
use crate::vqp::recovery::Recovery;

/// At least one run in this many is a full run, which reads the events of all rails and queries
/// each NIC. Other runs read the events of the active rail only, because the query costs a system
/// call on a software NIC. Every run reads the control messages of all rails, because a peer whose
/// active rail has failed sends its proposal on another rail.
const RUNS_PER_FULL_RUN: u32 = 4;
/// A run is also full if this time has passed since the last run.
const FULL_RUN_INTERVAL: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct Maintenance {
    pub(super) schedule: MaintenanceSchedule,
    heartbeats: Heartbeats,
    rail_rejoin: RailRejoin,
    durability: Durability,
    addresses: AddressChanges,
    runs: u32,
}

impl Maintenance {
    pub(super) fn new(domain: &Domain) -> Maintenance {
        Maintenance {
            schedule: MaintenanceSchedule::default(),
            heartbeats: Heartbeats::new(domain.nics().len()),
            rail_rejoin: RailRejoin::default(),
            durability: Durability::default(),
            addresses: AddressChanges::new(domain),
            runs: 0,
        }
    }

    pub(super) fn start(&mut self, now: Time) {
        self.schedule.begin_maintenance(now);
        self.heartbeats.start(now);
    }

    /// The heartbeats of this end and its peer do not become rare. Both ends must make this call.
    pub(super) fn keep_heartbeats_frequent(&mut self) {
        self.heartbeats.are_frequent = true;
    }

    /// The time at which a run is due even if nothing is posted and nothing completes.
    pub(super) fn poll_timeout(&self, recovery: &Recovery, dp: &Datapath) -> Option<Time> {
        [self.timers(recovery, dp), self.next_question(recovery, dp)].into_iter().flatten().min()
    }

    /// The time of the next question about a rail on which operations or heartbeats are awaited.
    pub(super) fn next_question(&self, recovery: &Recovery, dp: &Datapath) -> Option<Time> {
        let last_run = self.schedule.last_maintenance.max(dp.domain.last_poll());
        self.heartbeats.next_question(recovery, dp, last_run)
    }

    /// Records the progress of operations at an end that runs maintenance only when it is due.
    #[inline]
    pub(super) fn note_progress(&mut self, recovery: &Recovery, dp: &Datapath) {
        self.heartbeats.note_wait(dp.domain.last_poll(), recovery, dp);
    }

    /// The time of the first timer that a post or a completion does not change. A closed vQP runs
    /// no timer: it only answers messages.
    pub(super) fn timers(&self, recovery: &Recovery, dp: &Datapath) -> Option<Time> {
        if dp.termination.is_closed() {
            return None;
        }
        let negotiation = recovery.negotiation().and_then(RailNegotiation::poll_timeout);
        let heartbeat = self.heartbeats.next(recovery, dp);
        let probe = self.rail_rejoin.next_probe(recovery, dp);
        let failback = recovery.negotiation().and_then(RailNegotiation::failback_at);
        let (fence, ask, addresses) =
            (recovery.fence_timeout(), self.durability.ask_at, self.addresses.timeout());
        let timers = [negotiation, fence, heartbeat, probe, failback, ask, addresses];
        timers.into_iter().flatten().min()
    }

    /// Handles control messages and device events, and runs expired timers. With `all_rails`, the
    /// run is a full run (see `RUNS_PER_FULL_RUN`).
    pub(super) fn run(&mut self, recovery: &mut Recovery, dp: &mut Datapath, all_rails: bool) {
        let now = dp.now();
        let since_last_run = self.schedule.begin_maintenance(now);
        if recovery.control.is_none() {
            return;
        }
        if dp.termination.is_closed() {
            // The negotiation answers a peer that missed the Closed message.
            (0..dp.rails.len()).for_each(|rail| self.poll_control(rail, now, recovery, dp));
            return self.heartbeats.answer(recovery, dp);
        }
        self.runs = self.runs.wrapping_add(1);
        let is_full = all_rails
            || !recovery.is_move_confirmed()
            || since_last_run >= FULL_RUN_INTERVAL
            || self.runs.is_multiple_of(RUNS_PER_FULL_RUN);
        let active = recovery.active_rail();
        for rail in 0..dp.rails.len() {
            if is_full || rail == active {
                recovery.check_device(dp, rail, is_full);
            }
            self.poll_control(rail, now, recovery, dp);
        }
        self.heartbeats.answer(recovery, dp);
        self.addresses.run(now, recovery, dp);
        self.rail_rejoin.probe(now, recovery, dp);
        self.heartbeats.run(now, since_last_run, recovery, dp);
        self.durability.run(now, recovery, dp);
        recovery.handle_timeout(dp, now);
    }

    fn poll_control(&mut self, rail: usize, now: Time, recovery: &mut Recovery, dp: &mut Datapath) {
        // An error means that the NIC is dead, which `Recovery::check_device` detects.
        let datagrams = dp.rails.get(rail).receive_control().unwrap_or_default();
        if !datagrams.is_empty() {
            recovery.read_home(dp);
        }
        let Some(control) = &mut recovery.control else { return };
        let messages: Vec<Message> = datagrams.iter().filter_map(|bytes| control.decode(bytes)).collect();
        for message in &messages {
            // An end that has slept may have an unread event of the proposed rail, and must not
            // accept a rail that it cannot use.
            if let Body::Propose { rail, .. } = message.body
                && usize::from(rail) < dp.rails.len()
                && !dp.termination.is_closed()
            {
                recovery.check_device(dp, rail.into(), true);
            }
        }
        let Some(control) = &mut recovery.control else { return };
        let (heard, mut new_qp) = (!messages.is_empty(), None);
        let (mut of_durability, mut addresses) = (Vec::new(), Vec::new());
        for message in messages {
            match message.body {
                Body::NewQp(qp) => new_qp = Some((message.ballot, qp)),
                Body::Address(_) | Body::AddressKnown { .. } => addresses.push(message.body.clone()),
                Body::AskPlaced | Body::Placed(_) => of_durability.push(message.clone()),
                _ => self.heartbeats.on_message(now, rail, &message.body),
            }
            control.negotiation.handle(now, message);
        }
        if heard {
            let is_first = dp.rails.note_message(rail, now);
            self.heartbeats.on_peer_heard();
            if is_first {
                // The peer may have connected after the last heartbeat. The peer of an unreliable
                // connection sends only after it has heard this end on this rail.
                self.heartbeats.start(now);
            }
        }
        // These messages come before the actions, because an action may close the vQP.
        of_durability.iter().for_each(|message| self.durability.on_message(message, recovery, dp));
        recovery.settle(dp);
        // Addresses come before new queue pairs, which are connected to the new address.
        addresses.iter().for_each(|body| self.addresses.on_message(now, body, recovery, dp));
        // A message about a new queue pair supersedes earlier messages, so only the last is
        // handled. If a dropped message was a question, the peer asks again.
        if let Some((ballot, qp)) = new_qp {
            self.rail_rejoin.on_new_qp(now, rail, ballot, qp, recovery, dp);
        }
    }
}
