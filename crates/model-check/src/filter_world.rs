//! An endpoint filter with a table of rows, its senders, and a network that loses, repeats and
//! reorders messages.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mitra_filter::{
    Action, FilterCore, FilterTable, Message, Rules, Sender, SenderCore, Submit, TableConfig, Verdict,
};
use mitra_prng::Prng;
use mitra_verbs::Time;

use crate::call_log::{Body, CallLog};
use crate::{Exhaustive, SeedResult, Violation};

/// The lease of the filter. The clock of the world stands still except for
/// [`FilterStep::HalfLeasePasses`].
const LEASE: Duration = Duration::from_secs(1);

/// The size of a world, and the bounds on its faults.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FilterLimits {
    /// The number of senders.
    pub senders: u8,
    /// The number of calls of each sender.
    pub calls: u8,
    /// The number of rows of the table.
    pub rows: usize,
    /// The window of a grant.
    pub window: u16,
    /// The number of sequence numbers of a grant.
    pub requests_per_grant: u32,
    /// The number of restarts of the filter.
    pub filter_restarts: u8,
    /// The number of restarts of senders.
    pub sender_restarts: u8,
    /// The number of times that half of the lease passes.
    pub half_leases: u8,
    /// The number of times that a sender gives up its grant because of its age.
    pub expirations: u8,
    /// The maximum number of grants in an explored world.
    pub grants: u8,
}

/// A message in transit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Packet {
    /// The sender that the message comes from or goes to.
    pub node: u8,
    /// Whether the message is for the filter.
    pub to_filter: bool,
    /// The message.
    pub message: Message<Body>,
}

/// A step of a world.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FilterStep {
    /// A sender makes its next call.
    Submit(u8),
    /// A message is delivered and stays in transit, so copies and late deliveries are possible.
    Deliver(Packet),
    /// A message is lost, with all its copies.
    Lose(Packet),
    /// A sender's retry interval has passed.
    Timeout(u8),
    /// Half of the lease passes.
    HalfLeasePasses,
    /// A sender considers its grant too old.
    ExpireGrant(u8),
    /// The filter restarts without its state.
    RestartFilter,
    /// A sender restarts without its state.
    RestartSender(u8),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct SenderNode<R: Rules> {
    sender: Sender<Body, R>,
    incarnation: u64,
    /// The number of calls made.
    made: u8,
    /// The time at which the filter last granted the sender a row, or recognized one of its
    /// requests.
    heard: Option<Time>,
    outstanding: BTreeMap<u64, Body>,
}

/// A filter, its senders and the messages in transit.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FilterWorld<R: Rules> {
    left: FilterLimits,
    senders: Vec<SenderNode<R>>,
    filter: FilterTable<u8, Body, R>,
    filter_incarnation: u64,
    network: BTreeSet<Packet>,
    now: Time,
    log: CallLog,
    /// Whether the filter restarted, or possibly evicted the row of a sender that was silent for
    /// the lease.
    state_was_lost: bool,
}

impl<R: Rules> FilterWorld<R> {
    /// Creates a world in which nothing has happened.
    pub fn new(limits: FilterLimits) -> FilterWorld<R> {
        let node = |n| SenderNode {
            sender: Sender::new(n, limits.calls.into()),
            incarnation: n,
            made: 0,
            heard: None,
            outstanding: BTreeMap::new(),
        };
        FilterWorld {
            left: limits,
            senders: (0..limits.senders).map(|_| node(1)).collect(),
            filter: FilterTable::new(1, table_config(&limits)),
            filter_incarnation: 1,
            network: BTreeSet::new(),
            now: Time::ZERO,
            log: CallLog::default(),
            state_was_lost: false,
        }
    }

    /// Returns the possible steps except losses. A message that is never delivered is as good as
    /// lost.
    pub fn steps(&self) -> Vec<FilterStep> {
        let mut steps: Vec<FilterStep> =
            self.network.iter().map(|packet| FilterStep::Deliver(packet.clone())).collect();
        let left = &self.left;
        for (n, node) in (0..).zip(&self.senders) {
            if node.made < left.calls {
                steps.push(FilterStep::Submit(n));
            }
            if self.timeout_sends_more(n) {
                steps.push(FilterStep::Timeout(n));
            }
            if left.expirations > 0 {
                steps.push(FilterStep::ExpireGrant(n));
            }
            if left.sender_restarts > 0 && node.made > 0 {
                steps.push(FilterStep::RestartSender(n));
            }
        }
        if left.filter_restarts > 0 {
            steps.push(FilterStep::RestartFilter);
        }
        if left.half_leases > 0 {
            steps.push(FilterStep::HalfLeasePasses);
        }
        steps
    }

    /// Returns whether a timeout makes a sender send a message that is not in transit. Sending a
    /// message that is in transit again changes nothing.
    fn timeout_sends_more(&self, n: u8) -> bool {
        let mut out = Vec::new();
        self.senders[usize::from(n)].sender.clone().timeout(&mut out);
        out.into_iter().any(|action| match action {
            Action::Send(message) => !self.network.contains(&Packet { node: n, to_filter: true, message }),
            _ => false,
        })
    }

    /// Applies a step.
    pub fn apply(&mut self, step: &FilterStep) {
        match step {
            FilterStep::Submit(n) => self.submit(*n),
            FilterStep::Deliver(packet) => self.deliver(packet.clone()),
            FilterStep::Lose(packet) => {
                self.network.remove(packet);
            }
            FilterStep::Timeout(n) => self.drive(*n, |sender, out| sender.timeout(out)),
            FilterStep::HalfLeasePasses => {
                self.left.half_leases -= 1;
                self.now += LEASE / 2;
                let mut heard = self.senders.iter().filter_map(|node| node.heard);
                self.state_was_lost |= heard.any(|heard| self.now.saturating_since(heard) >= LEASE);
            }
            FilterStep::ExpireGrant(n) => {
                self.left.expirations -= 1;
                self.senders[usize::from(*n)].sender.expire_grant();
            }
            FilterStep::RestartFilter => {
                self.left.filter_restarts -= 1;
                self.filter_incarnation += 1;
                self.filter = FilterTable::new(self.filter_incarnation, table_config(&self.left));
                self.state_was_lost = true;
            }
            FilterStep::RestartSender(n) => {
                self.left.sender_restarts -= 1;
                let calls = self.left.calls.into();
                let node = &mut self.senders[usize::from(*n)];
                node.incarnation += 1;
                node.sender = Sender::new(node.incarnation, calls);
                node.outstanding.clear();
            }
        }
    }

    fn submit(&mut self, n: u8) {
        let node = &mut self.senders[usize::from(n)];
        let body = (n, node.made);
        node.made += 1;
        let mut out = Vec::new();
        if let Submit::Accepted(call) = node.sender.submit(body, &mut out) {
            node.outstanding.insert(call, body);
        }
        self.perform(n, out);
    }

    fn drive(&mut self, n: u8, f: impl FnOnce(&mut Sender<Body, R>, &mut Vec<Action<Body>>)) {
        let mut out = Vec::new();
        f(&mut self.senders[usize::from(n)].sender, &mut out);
        self.perform(n, out);
    }

    fn perform(&mut self, n: u8, actions: Vec<Action<Body>>) {
        for action in actions {
            match action {
                Action::Send(message) => {
                    self.network.insert(Packet { node: n, to_filter: true, message });
                }
                Action::Done { call, outcome } => {
                    let body = self.senders[usize::from(n)].outstanding.remove(&call);
                    if let Some(body) = body {
                        self.log.end(body, &outcome, self.state_was_lost);
                    }
                }
                Action::SetTimer { .. } | Action::StopTimer => {}
            }
        }
    }

    fn deliver(&mut self, packet: Packet) {
        if !packet.to_filter {
            return self.drive(packet.node, |sender, out| sender.receive(packet.message, out));
        }
        let is_request = matches!(packet.message, Message::Request { .. });
        let mut actions = Vec::new();
        let verdict = self.filter.receive(self.now, packet.node, packet.message, &mut actions);
        if verdict == Verdict::Granted || is_request && matches!(verdict, Verdict::Executed | Verdict::Copy) {
            self.senders[usize::from(packet.node)].heard = Some(self.now);
        }
        if verdict == Verdict::Granted {
            self.left.grants = self.left.grants.saturating_sub(1);
        }
        for (node, message) in self.log.perform(&mut self.filter, actions) {
            self.network.insert(Packet { node, to_filter: false, message });
        }
    }

    /// Returns whether all outstanding calls end if the messages in transit are lost and no more
    /// faults occur.
    pub fn calls_end(&self) -> bool {
        let mut world = self.clone();
        world.network.clear();
        // A few round trips for each call, and for the arbitrations between them.
        for _ in 0..20 + 8 * usize::from(self.left.senders) * usize::from(self.left.calls) {
            if world.senders.iter().all(|node| node.outstanding.is_empty()) {
                return true;
            }
            for n in 0..world.left.senders {
                world.drive(n, |sender, out| sender.timeout(out));
            }
            for packet in core::mem::take(&mut world.network) {
                world.deliver(packet);
            }
        }
        false
    }
}

fn table_config(limits: &FilterLimits) -> TableConfig {
    let FilterLimits { rows, window, requests_per_grant, .. } = *limits;
    TableConfig { rows, window, requests_per_grant, lease: LEASE }
}

/// Explores every order of steps that the limits permit, in a world with an endpoint filter.
pub fn exhaustive_filter<R: Rules + Send + Sync + 'static>(
    limits: FilterLimits,
) -> Exhaustive<FilterWorld<R>, FilterStep> {
    Exhaustive::new(FilterWorld::new(limits), FilterWorld::steps, |world, step| world.apply(&step))
        .within(|world| world.left.grants > 0)
        .always("at most once", |world| world.log.at_most_once())
        .always("right reply", |world| world.log.replies_are_right())
        .always("order", |world| world.log.is_in_order())
        .always("unknown only after lost state", |world| !world.log.groundless)
        .always("calls end", FilterWorld::calls_end)
}

/// Runs a world from a seed: random steps, some of which lose a message, then a check that all
/// calls end.
pub fn run_filter<R: Rules>(seed: u64, limits: FilterLimits, steps: u64) -> SeedResult {
    let mut rng = Prng::new(seed);
    let mut world = FilterWorld::<R>::new(limits);
    let mut result = SeedResult { steps: 0, faults: 0, violation: None };
    for _ in 0..rng.below(steps) {
        let possible = world.steps();
        if possible.is_empty() {
            break;
        }
        let mut step = rng.pick(&possible).clone();
        let is_rare = matches!(
            step,
            FilterStep::HalfLeasePasses
                | FilterStep::ExpireGrant(_)
                | FilterStep::RestartFilter
                | FilterStep::RestartSender(_)
        );
        if is_rare && rng.below(8) > 0 {
            continue;
        }
        if let FilterStep::Deliver(packet) = &step
            && rng.below(8) == 0
        {
            step = FilterStep::Lose(packet.clone());
        }
        let is_fault = is_rare || matches!(step, FilterStep::Lose(_));
        world.apply(&step);
        result.steps += 1;
        result.faults += u32::from(is_fault);
        if let Some(property) = world.log.violated() {
            result.violation = Some(Violation::Property(property));
            return result;
        }
    }
    if !world.calls_end() {
        result.violation = Some(Violation::Stuck);
    }
    result
}
