//! The filter with one bit per node, for ordered connections with one message outstanding: the
//! alternating bit protocol.
//!
//! A connection delivers messages in order, perhaps several times in a row. With one message
//! outstanding, a request that arrives is either a copy of the request before or the next request.
//! One bit distinguishes the two. The connection replaces the arbitration: a node that restarts
//! makes another connection, which delivers no message of the earlier connection.

use core::marker::PhantomData;
use core::time::Duration;
use std::collections::VecDeque;

use mitra_mutants::Mutant;
use mitra_verbs::Time;

use crate::calls::{Action, Calls, Outcome, RetryTimer, SenderCore, Submit};
use crate::filter::{FilterAction, FilterCore, Ticket, Verdict};
use crate::message::Message;
use crate::rules::{AllRules, Rules};

/// The sender's side of a [`BitFilter`]: a state machine without I/O. One sender serves one
/// connection.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct BitSender<B, R = AllRules> {
    /// The bit of the first call.
    bit: bool,
    /// The outstanding calls with their numbers. Only the first call is sent.
    queue: VecDeque<(u64, B)>,
    calls: Calls<B>,
    timer: RetryTimer,
    rules: PhantomData<R>,
}

impl<B: Clone, R: Rules> BitSender<B, R> {
    /// Creates the sender of a new connection, with room for `max_calls` outstanding calls.
    pub fn new(max_calls: usize) -> BitSender<B, R> {
        BitSender {
            bit: false,
            queue: VecDeque::new(),
            calls: Calls::new(max_calls),
            timer: RetryTimer::default(),
            rules: PhantomData,
        }
    }

    /// Sends the requests from position `from`. By the rules, only the first queued request is
    /// sent.
    fn send(&self, from: usize, out: &mut Vec<Action<B>>) {
        let window = if R::ONE_OUTSTANDING { 1 } else { 2 };
        for (i, (_, body)) in self.queue.iter().enumerate().take(window).skip(from) {
            out.push(Action::Send(Message::BitRequest { bit: self.bit ^ (i == 1), body: body.clone() }));
        }
    }

    fn take_reply(&mut self, bit: bool, body: B, out: &mut Vec<Action<B>>) -> bool {
        if bit != self.bit {
            return false;
        }
        let Some((call, _)) = self.queue.pop_front() else { return false };
        self.bit = !self.bit;
        out.push(Action::Done { call, outcome: Outcome::Answered(body) });
        self.send(usize::from(!R::ONE_OUTSTANDING), out);
        true
    }
}

impl<B: Clone, R: Rules> SenderCore<B> for BitSender<B, R> {
    fn submit(&mut self, body: B, out: &mut Vec<Action<B>>) -> Submit {
        let Some(id) = self.calls.next_id(self.queue.len()) else { return Submit::Full };
        self.queue.push_back((id, body));
        self.send(self.queue.len() - 1, out);
        self.timer.start(out);
        Submit::Accepted(id)
    }

    fn submit_idempotent(&mut self, body: B, out: &mut Vec<Action<B>>) -> Submit {
        // A connection serves one incarnation, so the incarnation may be 0.
        let Some(id) = self.calls.submit(self.queue.len(), 0, body, out) else { return Submit::Full };
        self.timer.start(out);
        Submit::Accepted(id)
    }

    fn receive(&mut self, message: Message<B>, out: &mut Vec<Action<B>>) {
        let progress = match message {
            Message::BitReply { bit, body } => self.take_reply(bit, body, out),
            Message::CallReply { incarnation, id, body } => self.calls.take_reply(incarnation, id, body, out),
            _ => false,
        };
        if progress {
            self.timer.restart(self.outstanding() > 0, out);
        }
    }

    fn timeout(&mut self, out: &mut Vec<Action<B>>) {
        self.send(0, out);
        self.calls.resend(out);
        self.timer.expired(self.outstanding() > 0, out);
    }

    fn abandon(&mut self, out: &mut Vec<Action<B>>) {
        for (call, _) in self.queue.drain(..) {
            out.push(Action::Done { call, outcome: Outcome::Unknown });
        }
        self.calls.abandon(out);
        self.timer.restart(false, out);
    }

    fn outstanding(&self) -> usize {
        self.queue.len() + self.calls.len()
    }

    fn lease(&self) -> Option<Duration> {
        None
    }

    fn expire_grant(&mut self) {}
}

/// A filter with one bit per node: a state machine without I/O. Nodes are numbered from 0; a bit
/// vector holds the bit of each node's last request.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct BitFilter<B, R = AllRules> {
    /// The bit of the last request of node n is bit n % 64 of word n / 64.
    bits: Vec<u64>,
    /// The reply to the last request of each node. `None` before the first request, and while a
    /// request is being executed.
    replies: Vec<Option<B>>,
    /// The number of connections so far of each node.
    connections: Vec<u64>,
    rules: PhantomData<R>,
}

impl<B: Clone, R: Rules> BitFilter<B, R> {
    /// Creates a filter for nodes 0 to `nodes` − 1. Each node begins with the state of a new
    /// connection.
    pub fn new(nodes: usize) -> BitFilter<B, R> {
        BitFilter {
            bits: vec![u64::MAX; nodes.div_ceil(64)],
            replies: vec![None; nodes],
            connections: vec![0; nodes],
            rules: PhantomData,
        }
    }

    /// Begins a new connection of a node. The carrier must deliver no message of the node's earlier
    /// connection after this call.
    pub fn connect(&mut self, node: usize) {
        if let (Some(connections), true) = (self.connections.get_mut(node), R::RESETS_BIT) {
            *connections += 1;
            self.replies[node] = None;
            // The first request of a connection has bit 0.
            self.set_last_bit(node, true);
        }
    }

    fn last_bit(&self, node: usize) -> bool {
        self.bits[node / 64] >> (node % 64) & 1 == 1
    }

    fn set_last_bit(&mut self, node: usize, bit: bool) {
        let (word, mask) = (&mut self.bits[node / 64], 1 << (node % 64));
        *word = if bit { *word | mask } else { *word & !mask };
    }
}

impl<B: Clone, R: Rules> FilterCore<usize, B> for BitFilter<B, R> {
    fn receive(
        &mut self,
        _now: Time,
        node: usize,
        message: Message<B>,
        out: &mut Vec<FilterAction<usize, B>>,
    ) -> Verdict {
        if node >= self.replies.len() {
            return Verdict::Ignored;
        }
        match message {
            Message::BitRequest { bit, .. }
                if bit == self.last_bit(node) && R::COMPARES_BIT && !Mutant::BitIgnored.is_on() =>
            {
                if let (Some(reply), true) = (&self.replies[node], R::KEEPS_REPLIES) {
                    out.push(FilterAction::Send(node, Message::BitReply { bit, body: reply.clone() }));
                }
                Verdict::Copy
            }
            Message::BitRequest { bit, body } => {
                self.set_last_bit(node, bit);
                self.replies[node] = None;
                let ticket = Ticket::Bit { node, connection: self.connections[node] };
                out.push(FilterAction::Execute(ticket, body));
                Verdict::Executed
            }
            Message::Call { incarnation, id, body } => {
                out.push(FilterAction::Execute(Ticket::Call { node, incarnation, id }, body));
                Verdict::Executed
            }
            _ => Verdict::Ignored,
        }
    }

    fn complete(&mut self, ticket: Ticket<usize>, reply: B, out: &mut Vec<FilterAction<usize, B>>) {
        match ticket {
            Ticket::Bit { node, connection } if self.connections.get(node) == Some(&connection) => {
                self.replies[node] = Some(reply.clone());
                let bit = self.last_bit(node);
                out.push(FilterAction::Send(node, Message::BitReply { bit, body: reply }));
            }
            Ticket::Call { node, incarnation, id } => {
                let message = Message::CallReply { incarnation, id, body: reply };
                out.push(FilterAction::Send(node, message));
            }
            _ => {}
        }
    }
}
