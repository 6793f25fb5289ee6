//! The state machine of one end of a reliable connection. The caller owns the network, the clock
//! and the queue pair.
//!
//! ```text
//! active   ── REQ ──▶ ReqSent ◀─ REP ─ RepReceived ── RTU ──▶ Established
//! passive  ◀─ REQ ─ ReqReceived ── REP ──▶ RepSent ◀─ RTU ─ Established
//! ```
//!
//! Datagrams may be lost, repeated and reordered. REQ, REP and DREQ are repeated until their answer
//! arrives. A repeated message gets the same answer again. The manager of a program that has not
//! yet answered sends an MRA, after which the peer repeats its message less often.
//!
//! A REJ or a timeout before `Established` leads to `Closed`. A connection that is closed in
//! `ReqReceived` gives the program no event: the identifier still has the listener's context, so a
//! program would take the event for an event of the listener. As with the kernel
//! (`ucma_event_handler`), the program's `rdma_accept` fails later.
//!
//! From `Established`, a DREQ or the end of the peer's process leads to `PeerEnded`, and the
//! program's disconnect then leads to `TimeWait`. The receiver of a DREQ answers with a DREP, which
//! leads the sender of the DREQ to `TimeWait`. `TimeWait` ends with an event.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::message::{
    Answered, ConnectionParams, Ids, Message, Rejection, Request, Transaction, reject_reason,
};
use super::timeouts::{REFUSED_RETRY_PERIOD, RESPONSE_TIMEOUT, Repetition};

const DREP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long packets may arrive after the end of their connection: about twice the packet lifetime,
/// as with the kernel (`CMA_IBOE_PACKET_LIFETIME`).
const TIME_WAIT: Duration = Duration::from_millis(540);
/// How long an end that has rejected a request answers repetitions of the request. The kernel's
/// connection manager repeats a request every 4.3 s.
const REJECTION_TIME: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    Replied(ConnectionParams),
    /// Passive side: an RTU arrived, or the program reported data before the RTU.
    Established,
    /// The peer sent a REJ, or no program listens at the peer's port.
    Rejected(Rejection),
    Unreachable(Errno),
    Disconnected,
    /// The queue pair may be used for another connection.
    TimeWaitExit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Active: the REQ is sent, or its destination is not yet known.
    ReqSent,
    /// Active: the REP is received; the program has not confirmed it.
    RepReceived,
    /// Passive: the REQ is received; the program has not accepted it.
    ReqReceived,
    /// Passive: the REP is sent.
    RepSent,
    Established,
    DreqSent,
    /// The peer ended the connection; the program has not disconnected.
    PeerEnded,
    /// Both ended the connection; packets of the connection may still arrive.
    TimeWait,
    /// Passive: the request is rejected or withdrawn, and its repetitions are answered or ignored.
    Rejecting,
    Closed,
}

/// A message to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    pub transaction: Transaction,
    /// How often the message was sent before.
    pub repetition: u32,
}

#[derive(Debug)]
pub struct Connection {
    state: State,
    ids: Ids,
    transaction: u64,
    /// The GUID of this end's device, once a REQ or a REP was sent.
    guid: u64,
    /// The number of the peer's queue pair.
    remote_qpn: u32,
    /// Active: the REQ, without which the destination is not known.
    request: Option<Request>,
    started: Instant,
    deadline: Option<Instant>,
    /// The last message that awaits an answer, or that answers a message which may be repeated.
    last: Option<Message>,
    /// The repetitions of `last`.
    repetition: Option<Repetition>,
    outbox: VecDeque<Outgoing>,
    events: VecDeque<ConnectionEvent>,
}

impl Connection {
    /// Creates the active end. [`request`](Self::request) sends the REQ.
    pub fn active(sender: u32, transaction: u64, now: Instant) -> Self {
        let ids = Ids { sender, receiver: 0 };
        Self::new(State::ReqSent, ids, transaction, now, Some(RESPONSE_TIMEOUT))
    }

    /// Creates the passive end of a received REQ. `sender` is the communication id of this end.
    pub fn passive(sender: u32, transaction: u64, request: &Request, now: Instant) -> Self {
        let ids = Ids { sender, receiver: request.sender };
        let mut connection = Self::new(State::ReqReceived, ids, transaction, now, None);
        connection.remote_qpn = request.params.qpn;
        connection
    }

    fn new(state: State, ids: Ids, transaction: u64, now: Instant, timeout: Option<Duration>) -> Self {
        Self {
            state,
            ids,
            transaction,
            guid: 0,
            remote_qpn: 0,
            request: None,
            started: now,
            deadline: timeout.map(|timeout| now + timeout),
            last: None,
            repetition: None,
            outbox: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    pub fn ids(&self) -> Ids {
        self.ids
    }

    pub fn next_event(&mut self) -> Option<ConnectionEvent> {
        self.events.pop_front()
    }

    pub fn next_message(&mut self) -> Option<Outgoing> {
        self.outbox.pop_front()
    }

    /// Returns when [`on_timeout`](Self::on_timeout) is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline.into_iter().chain(self.repetition.map(|repetition| repetition.due())).min()
    }

    /// Whether no message, timer or call changes the connection any more.
    pub fn is_over(&self) -> bool {
        self.state == State::Closed
    }

    /// Whether a [`ConnectionEvent::Disconnected`] will follow the DREQ that is sent.
    pub fn awaits_drep(&self) -> bool {
        self.state == State::DreqSent
    }

    /// Whether the connection waits for a message that may never come.
    pub fn awaits_message(&self) -> bool {
        matches!(self.state, State::ReqSent | State::RepSent | State::DreqSent)
    }

    /// Whether one of the ends has ended the connection.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, State::PeerEnded | State::TimeWait | State::Rejecting | State::Closed)
    }

    /// Whether the peer has learned the communication id of this end.
    pub fn was_established(&self) -> bool {
        matches!(self.state, State::Established | State::DreqSent | State::PeerEnded | State::TimeWait)
    }

    /// Whether the end of the peer's process would go unnoticed.
    pub fn depends_on_peer(&self) -> bool {
        self.state == State::Established
    }

    /// Sends the REQ, and repeats it until the peer answers.
    pub fn request(&mut self, request: Request, now: Instant) {
        if self.state == State::ReqSent {
            self.guid = request.params.guid;
            self.last = Some(Message::Req(Box::new(request.clone())));
            self.request = Some(request);
            self.repetition = Some(Repetition::from(now));
            self.transmit(now);
        }
    }

    /// Handles a message that names this connection. `gid` is that of the sender's device.
    pub fn receive(&mut self, Transaction { id, message }: Transaction, gid: [u8; 16], now: Instant) {
        match (self.state, message) {
            // The peer repeats a message, so an answer was lost, or the program has not yet
            // answered.
            (State::ReqReceived, Message::Req(_)) => {
                self.send(Message::Mra(self.ids, Answered::Req));
            }
            (State::RepReceived, Message::Rep(..)) => self.send(Message::Mra(self.ids, Answered::Rep)),
            (State::RepSent, Message::Req(_))
            | (State::Rejecting, Message::Req(_) | Message::Rtu(_))
            | (State::Established, Message::Rep(..)) => self.send_last(),
            (State::ReqSent, Message::Rep(ids, params)) if self.request.is_some() => {
                self.ids.receiver = ids.sender;
                self.on_reply(ConnectionParams { gid, ..params });
            }
            (State::ReqSent, Message::Mra(_, Answered::Req))
            | (State::RepSent, Message::Mra(_, Answered::Rep)) => {
                if let Some(repetition) = &mut self.repetition {
                    repetition.set_received(now);
                }
            }
            (State::RepSent, Message::Rtu(_)) => self.establish_passive(),
            // A late repetition of the REQ must not count as a new one.
            (State::ReqReceived, Message::Rej(..)) => {
                self.enter(State::Rejecting, Some(now + REJECTION_TIME));
            }
            (State::ReqSent, Message::Rej(_, rejection)) => self.on_rejected_request(rejection, now),
            (State::RepReceived | State::RepSent | State::Established, Message::Rej(_, rejection)) => {
                self.close(ConnectionEvent::Rejected(rejection));
            }
            (State::RepSent | State::Established | State::DreqSent, Message::Dreq(..)) => {
                // The peer was established, so its RTU was lost.
                if self.state == State::RepSent {
                    self.establish_passive();
                }
                self.answer_dreq(id);
                self.end(now);
            }
            (State::PeerEnded | State::TimeWait | State::Rejecting, Message::Dreq(..)) => {
                self.answer_dreq(id)
            }
            (State::DreqSent, Message::Drep(_)) => self.end(now),
            _ => {}
        }
    }

    fn on_reply(&mut self, reply: ConnectionParams) {
        self.remote_qpn = reply.qpn;
        let path_mtu = self.request.as_ref().map_or(reply.path_mtu, |request| request.params.path_mtu);
        self.enter(State::RepReceived, None);
        self.events.push_back(ConnectionEvent::Replied(ConnectionParams { path_mtu, ..reply }));
    }

    fn on_rejected_request(&mut self, rejection: Rejection, now: Instant) {
        match (&mut self.request, &rejection.info[..]) {
            (Some(_), _) if rejection.reason == reject_reason::INVALID_SERVICE_ID => {
                self.on_refused(now);
            }
            // The port of the peer has a smaller MTU, which the REJ contains. The answer to a
            // repetition of the REQ tells nothing new.
            (Some(request), [mtu, ..])
                if rejection.reason == reject_reason::INVALID_PATH_MTU
                    && (1..=request.params.path_mtu).contains(mtu) =>
            {
                if request.params.path_mtu == *mtu {
                    return;
                }
                request.params.path_mtu = *mtu;
                let request = request.clone();
                self.request(request, now);
            }
            _ => self.close(ConnectionEvent::Rejected(rejection)),
        }
    }

    /// No program listens at the destination. The request is repeated for a while.
    pub fn on_refused(&mut self, now: Instant) {
        if self.state == State::ReqSent && now >= self.started + REFUSED_RETRY_PERIOD {
            self.close(ConnectionEvent::Rejected(Rejection::new(
                Answered::Req,
                reject_reason::INVALID_SERVICE_ID,
            )));
        }
    }

    /// The peer's host refuses the messages, because its process has ended.
    pub fn on_peer_refuses(&mut self, now: Instant) {
        match self.state {
            State::ReqSent => self.on_refused(now),
            State::RepSent => {
                self.close(ConnectionEvent::Rejected(Rejection::new(Answered::Rep, reject_reason::TIMEOUT)))
            }
            State::DreqSent => self.end(now),
            _ => {}
        }
    }

    /// No packet of this end reaches the destination.
    pub fn on_unreachable(&mut self, errno: Errno) {
        if self.state == State::ReqSent {
            self.close(ConnectionEvent::Unreachable(errno));
        }
    }

    /// The peer's process has ended, or does not know the connection.
    pub fn on_peer_lost(&mut self, now: Instant) {
        if matches!(self.state, State::Established | State::DreqSent) {
            self.end(now);
        }
    }

    pub fn on_timeout(&mut self, now: Instant) {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return self.transmit(now);
        }
        match self.state {
            State::DreqSent => self.end(now),
            State::TimeWait => self.close(ConnectionEvent::TimeWaitExit),
            State::Rejecting => self.enter(State::Closed, None),
            State::ReqSent | State::RepSent => {
                self.send_timeout();
                self.close(ConnectionEvent::Unreachable(Errno::ETIMEDOUT));
            }
            _ => self.deadline = None,
        }
    }

    pub fn awaits_answer(&self) -> bool {
        self.state == State::ReqReceived
    }

    /// # Errors
    /// `EINVAL` unless a request waits for an answer.
    pub fn accept(&mut self, reply: ConnectionParams, now: Instant) -> Result<(), Errno> {
        if self.state != State::ReqReceived {
            return Err(Errno::EINVAL);
        }
        self.guid = reply.guid;
        self.enter(State::RepSent, Some(now + RESPONSE_TIMEOUT));
        self.start_repeating(Message::Rep(self.ids, reply), now);
        Ok(())
    }

    /// # Errors
    /// `EINVAL` unless a request or a reply waits for an answer.
    pub fn reject(&mut self, rejection: Rejection, now: Instant) -> Result<(), Errno> {
        match self.state {
            State::ReqReceived => {
                self.enter(State::Rejecting, Some(now + REJECTION_TIME));
                self.last = Some(Message::Rej(self.ids, rejection));
                self.send_last();
            }
            State::RepReceived => {
                self.send_rejection(Rejection { answered: Answered::Rep, ..rejection });
                self.enter(State::Closed, None);
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    /// Confirms the reply with an RTU.
    ///
    /// # Errors
    /// `EINVAL` unless a reply waits for confirmation.
    pub fn establish(&mut self) -> Result<(), Errno> {
        if self.state != State::RepReceived {
            return Err(Errno::EINVAL);
        }
        self.enter(State::Established, None);
        self.last = Some(Message::Rtu(self.ids));
        self.send_last();
        Ok(())
    }

    /// Establishes the connection before the RTU arrives, because the program has received data.
    ///
    /// # Errors
    /// `EISCONN` if the connection is established, `EINVAL` in any state but `RepSent`.
    pub fn notify(&mut self) -> Result<(), Errno> {
        match self.state {
            State::RepSent => {
                self.establish_passive();
                Ok(())
            }
            State::Established => Err(Errno::EISCONN),
            _ => Err(Errno::EINVAL),
        }
    }

    fn establish_passive(&mut self) {
        self.enter(State::Established, None);
        self.events.push_back(ConnectionEvent::Established);
    }

    /// Ends the connection for the program. The call succeeds even if the peer or an earlier call
    /// has ended the connection.
    ///
    /// # Errors
    /// `EINVAL` before the connection was accepted.
    pub fn disconnect(&mut self, now: Instant) -> Result<(), Errno> {
        match self.state {
            State::Established => self.send_dreq(now),
            State::RepSent => {
                self.send_rejection(Rejection::new(Answered::Other, reject_reason::CONSUMER_DEFINED));
                self.events.clear();
                self.events.push_back(ConnectionEvent::Disconnected);
                self.enter(State::TimeWait, Some(now + TIME_WAIT));
            }
            State::PeerEnded => self.enter(State::TimeWait, Some(now + TIME_WAIT)),
            State::DreqSent | State::TimeWait | State::Rejecting | State::Closed => {}
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    /// Informs the peer that the program destroys the identifier. The connection continues without
    /// its program until [`is_over`](Self::is_over), because messages may be lost.
    pub fn abandon(&mut self, now: Instant) {
        match self.state {
            State::ReqReceived => {
                // The state permits the call.
                let _ = self.reject(Rejection::new(Answered::Req, reject_reason::CONSUMER_DEFINED), now);
            }
            State::ReqSent => {
                self.send_timeout();
                self.enter(State::Closed, None);
            }
            State::RepReceived => {
                self.send_rejection(Rejection::new(Answered::Rep, reject_reason::CONSUMER_DEFINED));
                self.enter(State::Closed, None);
            }
            State::RepSent => {
                self.enter(State::Rejecting, Some(now + REJECTION_TIME));
                let rejection = Rejection::new(Answered::Other, reject_reason::CONSUMER_DEFINED);
                self.last = Some(Message::Rej(self.ids, rejection));
                self.send_last();
            }
            State::Established => self.send_dreq(now),
            State::PeerEnded => self.enter(State::TimeWait, Some(now + TIME_WAIT)),
            State::DreqSent | State::TimeWait | State::Rejecting | State::Closed => {}
        }
    }

    /// Ends the connection without an answer of the peer. Messages that are not yet sent stay.
    pub fn forget(&mut self) {
        self.enter(State::Closed, None);
    }

    fn send_dreq(&mut self, now: Instant) {
        self.enter(State::DreqSent, Some(now + DREP_TIMEOUT));
        // A DREQ begins a transaction of its own.
        self.transaction = self.transaction.wrapping_add(1);
        self.start_repeating(Message::Dreq(self.ids, self.remote_qpn), now);
    }

    fn answer_dreq(&mut self, transaction: u64) {
        let transaction = Transaction { id: transaction, message: Message::Drep(self.ids) };
        self.outbox.push_back(Outgoing { transaction, repetition: 0 });
    }

    /// Sends a REJ once. If it is lost, the peer learns from its own timeout, or from the answer to
    /// a later message.
    fn send_rejection(&mut self, rejection: Rejection) {
        // Nobody knows a request that was not sent.
        if self.state != State::ReqSent || self.request.is_some() {
            self.send(Message::Rej(self.ids, rejection));
        }
    }

    /// Tells the peer that this end has given up. A peer that does not know the id of this end
    /// finds the connection by the GUID.
    fn send_timeout(&mut self) {
        let info = self.guid.to_be_bytes().to_vec();
        self.send_rejection(Rejection { info, ..Rejection::new(Answered::Other, reject_reason::TIMEOUT) });
    }

    fn start_repeating(&mut self, message: Message, now: Instant) {
        self.last = Some(message);
        self.repetition = Some(Repetition::from(now));
        self.transmit(now);
    }

    /// Sends the last message if a transmission is due.
    fn transmit(&mut self, now: Instant) {
        if let (Some(repetition), Some(message)) = (&mut self.repetition, &self.last)
            && let Some(repetition) = repetition.take_due(now)
        {
            let transaction = Transaction { id: self.transaction, message: message.clone() };
            self.outbox.push_back(Outgoing { transaction, repetition });
        }
    }

    fn send_last(&mut self) {
        if let Some(message) = self.last.clone() {
            self.send(message);
        }
    }

    fn send(&mut self, message: Message) {
        let transaction = Transaction { id: self.transaction, message };
        self.outbox.push_back(Outgoing { transaction, repetition: 0 });
    }

    fn enter(&mut self, state: State, deadline: Option<Instant>) {
        self.state = state;
        self.deadline = deadline;
        (self.last, self.repetition) = (None, None);
    }

    /// Reports the end of an established connection, because the peer ended the connection or is
    /// gone.
    fn end(&mut self, now: Instant) {
        self.events.push_back(ConnectionEvent::Disconnected);
        match self.state {
            State::DreqSent => self.enter(State::TimeWait, Some(now + TIME_WAIT)),
            _ => self.enter(State::PeerEnded, None),
        }
    }

    fn close(&mut self, event: ConnectionEvent) {
        self.enter(State::Closed, None);
        self.events.push_back(event);
    }
}
