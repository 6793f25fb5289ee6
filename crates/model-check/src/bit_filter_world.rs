//! An endpoint filter with one bit per node, and an ordered connection to each sender.

use std::collections::{BTreeMap, VecDeque};

use mitra_filter::{Action, BitFilter, BitSender, FilterCore, Message, Rules, SenderCore, Submit};
use mitra_verbs::Time;

use crate::Exhaustive;
use crate::call_log::{Body, CallLog};

/// The maximum number of messages in one direction of a connection. Further messages are lost.
const MAX_IN_TRANSIT: usize = 2;

/// The size of a world, and the bounds on its faults.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BitFilterLimits {
    /// The number of senders.
    pub senders: u8,
    /// The number of calls of each sender.
    pub calls: u8,
    /// The number of times that senders send again.
    pub timeouts: u8,
    /// The number of restarts of one end of a connection. Each restart makes the connection again.
    pub restarts: u8,
    /// Whether the connection keeps order, as the filter requires.
    pub ordered: bool,
}

/// A step of a world.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BitFilterStep {
    /// A sender makes its next call.
    Submit(u8),
    /// A message of a sender's connection is delivered. The fields are the sender, whether the
    /// message goes to the filter, the index of the message, and whether a copy stays in transit.
    Deliver(u8, bool, usize, bool),
    /// The first message of a sender's connection is lost. The flag is set for the direction to the
    /// filter.
    Lose(u8, bool),
    /// A sender's retry interval has passed.
    Timeout(u8),
    /// A sender restarts, or its connection ends and is made again.
    RestartSender(u8),
    /// The filter restarts, and with it all connections.
    RestartFilter,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Connection<R: Rules> {
    sender: BitSender<Body, R>,
    made: u8,
    outstanding: BTreeMap<u64, Body>,
    to_filter: VecDeque<Message<Body>>,
    to_sender: VecDeque<Message<Body>>,
}

/// A filter, its senders and the messages of their connections.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct BitFilterWorld<R: Rules> {
    left: BitFilterLimits,
    connections: Vec<Connection<R>>,
    filter: BitFilter<Body, R>,
    log: CallLog,
}

impl<R: Rules> BitFilterWorld<R> {
    fn new(limits: BitFilterLimits) -> BitFilterWorld<R> {
        let connection = |_| Connection {
            sender: BitSender::new(limits.calls.into()),
            made: 0,
            outstanding: BTreeMap::new(),
            to_filter: VecDeque::new(),
            to_sender: VecDeque::new(),
        };
        BitFilterWorld {
            left: limits,
            connections: (0..limits.senders).map(connection).collect(),
            filter: BitFilter::new(limits.senders.into()),
            log: CallLog::default(),
        }
    }

    fn steps(&self) -> Vec<BitFilterStep> {
        let mut steps = Vec::new();
        for (n, connection) in (0..).zip(&self.connections) {
            if connection.made < self.left.calls {
                steps.push(BitFilterStep::Submit(n));
            }
            for to_filter in [true, false] {
                let in_transit = if to_filter { &connection.to_filter } else { &connection.to_sender };
                if in_transit.is_empty() {
                    continue;
                }
                steps.push(BitFilterStep::Lose(n, to_filter));
                let indices = if self.left.ordered { 1 } else { in_transit.len() };
                for index in 0..indices {
                    steps.push(BitFilterStep::Deliver(n, to_filter, index, false));
                    steps.push(BitFilterStep::Deliver(n, to_filter, index, true));
                }
            }
            if self.left.timeouts > 0 && connection.sender.outstanding() > 0 {
                steps.push(BitFilterStep::Timeout(n));
            }
            if self.left.restarts > 0 {
                steps.push(BitFilterStep::RestartSender(n));
            }
        }
        if self.left.restarts > 0 {
            steps.push(BitFilterStep::RestartFilter);
        }
        steps
    }

    fn apply(&mut self, step: &BitFilterStep) {
        match *step {
            BitFilterStep::Submit(n) => self.submit(n),
            BitFilterStep::Deliver(n, to_filter, index, copy) => self.deliver(n, to_filter, index, copy),
            BitFilterStep::Lose(n, to_filter) => {
                self.in_transit(n, to_filter).pop_front();
            }
            BitFilterStep::Timeout(n) => {
                self.left.timeouts -= 1;
                self.drive(n, |sender, out| sender.timeout(out));
            }
            BitFilterStep::RestartSender(n) => {
                self.left.restarts -= 1;
                self.reconnect(n);
                self.filter.connect(n.into());
            }
            BitFilterStep::RestartFilter => {
                self.left.restarts -= 1;
                self.filter = BitFilter::new(self.connections.len());
                (0..self.left.senders).for_each(|n| self.reconnect(n));
            }
        }
    }

    /// Ends a connection and makes a new connection. Messages of the old connection are not
    /// delivered.
    fn reconnect(&mut self, n: u8) {
        self.drive(n, |sender, out| sender.abandon(out));
        let calls = self.left.calls.into();
        let connection = &mut self.connections[usize::from(n)];
        connection.sender = BitSender::new(calls);
        connection.to_filter.clear();
        connection.to_sender.clear();
    }

    fn submit(&mut self, n: u8) {
        let connection = &mut self.connections[usize::from(n)];
        let body = (n, connection.made);
        connection.made += 1;
        let mut out = Vec::new();
        if let Submit::Accepted(call) = connection.sender.submit(body, &mut out) {
            connection.outstanding.insert(call, body);
        }
        self.perform(n, out);
    }

    fn in_transit(&mut self, n: u8, to_filter: bool) -> &mut VecDeque<Message<Body>> {
        let connection = &mut self.connections[usize::from(n)];
        if to_filter { &mut connection.to_filter } else { &mut connection.to_sender }
    }

    fn drive(&mut self, n: u8, f: impl FnOnce(&mut BitSender<Body, R>, &mut Vec<Action<Body>>)) {
        let mut out = Vec::new();
        f(&mut self.connections[usize::from(n)].sender, &mut out);
        self.perform(n, out);
    }

    fn perform(&mut self, n: u8, actions: Vec<Action<Body>>) {
        for action in actions {
            match action {
                Action::Send(message) => self.send(n, true, message),
                Action::Done { call, outcome } => {
                    let body = self.connections[usize::from(n)].outstanding.remove(&call);
                    if let Some(body) = body {
                        // A call becomes unknown only when its connection ends.
                        self.log.end(body, &outcome, true);
                    }
                }
                Action::SetTimer { .. } | Action::StopTimer => {}
            }
        }
    }

    fn send(&mut self, n: u8, to_filter: bool, message: Message<Body>) {
        let in_transit = self.in_transit(n, to_filter);
        if in_transit.len() < MAX_IN_TRANSIT {
            in_transit.push_back(message);
        }
    }

    fn deliver(&mut self, n: u8, to_filter: bool, index: usize, copy: bool) {
        let in_transit = self.in_transit(n, to_filter);
        let message = if copy { in_transit.get(index).cloned() } else { in_transit.remove(index) };
        let Some(message) = message else { return };
        if !to_filter {
            return self.drive(n, |sender, out| sender.receive(message, out));
        }
        let mut actions = Vec::new();
        self.filter.receive(Time::ZERO, n.into(), message, &mut actions);
        for (node, message) in self.log.perform(&mut self.filter, actions) {
            self.send(node as u8, false, message);
        }
    }

    /// Returns whether all outstanding calls end if the messages in transit are lost and no more
    /// faults occur.
    fn calls_end(&self) -> bool {
        let mut world = self.clone();
        for connection in &mut world.connections {
            connection.to_filter.clear();
            connection.to_sender.clear();
        }
        for _ in 0..10 + 4 * u32::from(self.left.calls) {
            for n in 0..world.left.senders {
                world.drive(n, |sender, out| sender.timeout(out));
                while !world.in_transit(n, true).is_empty() {
                    world.deliver(n, true, 0, false);
                }
                while !world.in_transit(n, false).is_empty() {
                    world.deliver(n, false, 0, false);
                }
            }
        }
        world.connections.iter().all(|connection| connection.outstanding.is_empty())
    }
}

/// Explores every order of steps that the limits permit, in a world with a one-bit filter.
pub fn exhaustive_bit_filter<R: Rules + Send + Sync + 'static>(
    limits: BitFilterLimits,
) -> Exhaustive<BitFilterWorld<R>, BitFilterStep> {
    Exhaustive::new(BitFilterWorld::new(limits), BitFilterWorld::steps, |world, step| world.apply(&step))
        .always("at most once", |world| world.log.at_most_once())
        .always("right reply", |world| world.log.replies_are_right())
        .always("order", |world| world.log.is_in_order())
        .always("calls end", BitFilterWorld::calls_end)
}
