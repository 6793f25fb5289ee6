//! The client: the driver of a sender.

use core::time::Duration;
use std::collections::BTreeMap;

use mitra_verbs::Time;

use super::RpcError;
use super::carrier::{Carrier, Event, OrderedCarrier};
use super::vqp::VqpCarrier;
use crate::calls::{Action, Outcome, SenderCore, Submit};
use crate::message::{MAX_HEADER, Message};
use crate::one_bit::BitSender;
use crate::sender::Sender;

/// The configuration of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientConfig {
    /// The maximum number of outstanding calls.
    pub max_calls: usize,
    /// The time after which the client repeats a call without an answer. The time doubles with
    /// every repetition, up to 1024-fold.
    pub retry_interval: Duration,
}

impl Default for ClientConfig {
    /// 64 outstanding calls and a retry interval of 2 ms.
    fn default() -> ClientConfig {
        ClientConfig { max_calls: 64, retry_interval: Duration::from_millis(2) }
    }
}

/// A client of one server. The client acts only inside its functions: the program polls the client
/// while calls are outstanding.
#[derive(Debug)]
pub struct RpcClient<C: Carrier, S> {
    carrier: C,
    server: C::Node,
    sender: S,
    config: ClientConfig,
    /// The time at which the client sends again, and the number of times that this time was set.
    /// The number seeds the random part of the time.
    timer: (Option<Time>, u64),
    /// The submission time of each outstanding call.
    submitted: BTreeMap<u64, Time>,
    /// The submission time of the last answered call. The server has received a message from this
    /// client after this time.
    heard: Time,
    is_closed: bool,
    actions: Vec<Action<Vec<u8>>>,
    buffer: Vec<u8>,
    corrupted: u64,
}

impl<C: Carrier> RpcClient<C, Sender<Vec<u8>>> {
    /// Creates a client of a server with a [`FilterTable`](crate::FilterTable). `incarnation` must
    /// be as [`Sender`] requires, for example
    /// [`incarnation_by_clock`](crate::rpc::incarnation_by_clock).
    pub fn new(carrier: C, server: C::Node, incarnation: u64, config: ClientConfig) -> Self {
        let sender = Sender::new(incarnation, config.max_calls);
        RpcClient::with_sender(carrier, server, sender, config)
    }
}

impl<C: OrderedCarrier> RpcClient<C, BitSender<Vec<u8>>> {
    /// Creates a client of a server with a [`BitFilter`](crate::BitFilter), over a carrier that
    /// keeps order.
    pub fn one_bit(carrier: C, server: C::Node, config: ClientConfig) -> Self {
        let sender = BitSender::new(config.max_calls);
        RpcClient::with_sender(carrier, server, sender, config)
    }
}

impl RpcClient<VqpCarrier, BitSender<Vec<u8>>> {
    /// Creates a client over a connected vQP. `max_message` is the maximum length of a message in
    /// bytes.
    ///
    /// # Errors
    /// The errors of [`VqpCarrier::connect`].
    pub fn over_vqp(
        vqp: mitra_failover::VirtualQp,
        max_message: usize,
        config: ClientConfig,
    ) -> Result<Self, RpcError> {
        let mut carrier = VqpCarrier::new(1, max_message);
        let server = carrier.connect(vqp)?.node();
        Ok(RpcClient::one_bit(carrier, server, config))
    }
}

impl<C: Carrier, S: SenderCore<Vec<u8>>> RpcClient<C, S> {
    fn with_sender(carrier: C, server: C::Node, sender: S, config: ClientConfig) -> Self {
        RpcClient {
            carrier,
            server,
            sender,
            config,
            timer: (None, 0),
            submitted: BTreeMap::new(),
            heard: Time::ZERO,
            is_closed: false,
            actions: Vec::new(),
            buffer: Vec::new(),
            corrupted: 0,
        }
    }

    /// Returns the carrier.
    pub fn carrier(&self) -> &C {
        &self.carrier
    }

    /// Returns the server's node.
    pub fn server(&self) -> C::Node {
        self.server
    }

    /// Ends the client and returns its carrier, for a client of another incarnation.
    pub fn into_carrier(self) -> C {
        self.carrier
    }

    /// Returns the maximum length of the body of a call, in bytes.
    pub fn max_body(&self) -> usize {
        self.carrier.max_message().saturating_sub(MAX_HEADER)
    }

    /// Returns the number of outstanding calls.
    pub fn outstanding(&self) -> usize {
        self.sender.outstanding()
    }

    /// Returns the number of corrupted or malformed messages, which were dropped.
    pub fn corrupted(&self) -> u64 {
        self.corrupted
    }

    /// Begins a call that the server executes exactly once, and returns its number. Calls are
    /// executed in the order of this function's calls.
    ///
    /// # Errors
    /// `TooLong`, `Full` or `Closed`. The server then executes nothing.
    pub fn call(&mut self, body: &[u8]) -> Result<u64, RpcError> {
        let now = self.carrier.now();
        // The filter evicts a silent node after the lease. Half of the lease leaves time for the
        // call to arrive.
        let expired = self.sender.lease().is_some_and(|lease| now.saturating_since(self.heard) >= lease / 2);
        if expired && self.sender.outstanding() == 0 {
            self.sender.expire_grant();
        }
        self.begin(now, body, S::submit)
    }

    /// Begins a call that may be executed several times and in any order with other calls, and
    /// returns its number. The server keeps no state for the call.
    ///
    /// # Errors
    /// As for [`RpcClient::call`].
    pub fn call_idempotent(&mut self, body: &[u8]) -> Result<u64, RpcError> {
        self.begin(self.carrier.now(), body, S::submit_idempotent)
    }

    fn begin(
        &mut self,
        now: Time,
        body: &[u8],
        submit: impl FnOnce(&mut S, Vec<u8>, &mut Vec<Action<Vec<u8>>>) -> Submit,
    ) -> Result<u64, RpcError> {
        let max = self.max_body();
        if body.len() > max {
            return Err(RpcError::TooLong { len: body.len(), max });
        }
        if self.is_closed {
            return Err(RpcError::Closed);
        }
        let mut actions = core::mem::take(&mut self.actions);
        let submit = submit(&mut self.sender, body.to_vec(), &mut actions);
        self.actions = actions;
        let Submit::Accepted(call) = submit else { return Err(RpcError::Full(self.sender.outstanding())) };
        self.submitted.insert(call, now);
        self.act(now, &mut Vec::new());
        Ok(call)
    }

    /// Handles the messages that have arrived, and repeats the calls that were not answered in
    /// time. Appends the calls that have ended to `out`.
    ///
    /// # Errors
    /// If the carrier's NIC failed.
    pub fn poll(&mut self, out: &mut Vec<(u64, Outcome<Vec<u8>>)>) -> Result<(), RpcError> {
        let (server, sender, actions) = (self.server, &mut self.sender, &mut self.actions);
        let (corrupted, is_closed) = (&mut self.corrupted, &mut self.is_closed);
        self.carrier.poll(&mut |from, event| match event {
            _ if from != server => {}
            Event::Closed => {
                *is_closed = true;
                sender.abandon(actions);
            }
            Event::Message(bytes) => match Message::parse(bytes) {
                Ok(message) => sender.receive(message.map(<[u8]>::to_vec), actions),
                Err(_) => *corrupted += 1,
            },
        })?;
        let now = self.carrier.now();
        self.act(now, out);
        if self.timer.0.is_some_and(|at| now >= at) {
            self.sender.timeout(&mut self.actions);
            self.act(now, out);
        }
        Ok(())
    }

    /// Returns the time at which the client must be polled although nothing arrives, or `None` if
    /// no call is outstanding.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timer.0
    }

    fn act(&mut self, now: Time, out: &mut Vec<(u64, Outcome<Vec<u8>>)>) {
        for action in self.actions.drain(..) {
            match action {
                Action::Send(message) => {
                    message.emit(&mut self.buffer);
                    self.carrier.send(self.server, &self.buffer);
                }
                Action::SetTimer { doublings } => {
                    let interval = self.config.retry_interval.saturating_mul(1 << doublings.min(31));
                    // The delay is 0.5 to 1.5 intervals, so that senders that were refused at the
                    // same time do not retry at the same time.
                    self.timer.1 = self.timer.1.wrapping_add(1);
                    let percent = 50 + mitra_prng::mix(self.timer.1 ^ now.as_nanos()) % 101;
                    self.timer.0 = Some(now + interval.saturating_mul(percent as u32) / 100);
                }
                Action::StopTimer => self.timer.0 = None,
                Action::Done { call, outcome } => {
                    let at = self.submitted.remove(&call);
                    if let (Outcome::Answered(_), Some(at)) = (&outcome, at) {
                        self.heard = self.heard.max(at);
                    }
                    out.push((call, outcome));
                }
            }
        }
    }
}
