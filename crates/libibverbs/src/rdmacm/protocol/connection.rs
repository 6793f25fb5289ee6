//! The state machine of one end of a reliable connection. The caller owns the stream, the clock and
//! the queue pair.
//!
//! ```text
//! active   ── REQ ──▶ ReqSent ◀─ REP ─ RepReceived ── RTU ──▶ Established
//! passive  AwaitingReq ◀─ REQ ─ ReqReceived ── REP ──▶ RepSent ◀─ RTU ─ Established
//! ```
//!
//! A REJ leads to `Closed`. Before `Established`, a timeout or the end of the stream also leads to
//! `Closed`. A connection that is closed in `ReqReceived` gives the program no event: the
//! identifier still has the listener's context, so a program would take the event for an event of
//! the listener. As with the kernel (`ucma_event_handler`), the program's `rdma_accept` fails
//! later.
//!
//! From `Established`, a DREQ or the end of the stream leads to `PeerEnded`, and the program's
//! disconnect then leads to `TimeWait`. The receiver of a DREQ answers with a DREP, which leads the
//! sender of the DREQ to `TimeWait`. `TimeWait` ends with an event. The stream stays open while the
//! connection is established, because the end of the stream reports a peer that was killed.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::message::{ConnectionParams, Message, Rejection, reject_reason};
use super::timeouts::{REFUSED_RETRY_PERIOD, RESPONSE_TIMEOUT};

/// How long an accepted stream may be open without a REQ.
const REQ_TIMEOUT: Duration = Duration::from_secs(10);
const REFUSED_RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// The time between two repetitions of a REQ. A listener with a full backlog drops a REQ.
const REQ_REPEAT_INTERVAL: Duration = Duration::from_millis(500);
const DREP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long packets may arrive after the end of their connection: about twice the packet lifetime,
/// as with the kernel (`CMA_IBOE_PACKET_LIFETIME`).
const TIME_WAIT: Duration = Duration::from_millis(540);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    Requested(ConnectionParams),
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
    /// Active: the REQ is sent or in the outbox.
    ReqSent,
    /// Active: the REP is received; the program has not confirmed it.
    RepReceived,
    /// Passive: the stream is open and no REQ has arrived.
    AwaitingReq,
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
    Closed,
}

/// While no program listens at the peer's port, the stream is connected again: at `next`, and no
/// later than `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ConnectRetry {
    until: Instant,
    next: Option<Instant>,
}

#[derive(Debug)]
pub struct Connection {
    state: State,
    deadline: Option<Instant>,
    connect_retry: ConnectRetry,
    /// The REQ and the time of its next repetition. `None` after the peer's answer.
    repetition: Option<(Message, Instant)>,
    /// [`notify`](Self::notify) established the connection, and the RTU has not arrived.
    rtu_outstanding: bool,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    events: VecDeque<ConnectionEvent>,
}

impl Connection {
    /// Creates the active end with its REQ in the outbox, before the stream is connected.
    pub fn active(request: ConnectionParams, now: Instant) -> Self {
        let mut connection = Self::new(State::ReqSent, now, RESPONSE_TIMEOUT);
        let request = Message::Req(request);
        connection.send(&request);
        connection.repetition = Some((request, now + REQ_REPEAT_INTERVAL));
        connection
    }

    pub fn passive(now: Instant) -> Self {
        Self::new(State::AwaitingReq, now, REQ_TIMEOUT)
    }

    fn new(state: State, now: Instant, timeout: Duration) -> Self {
        Self {
            state,
            deadline: Some(now + timeout),
            connect_retry: ConnectRetry { until: now + REFUSED_RETRY_PERIOD, next: None },
            repetition: None,
            rtu_outstanding: false,
            inbox: Vec::new(),
            outbox: Vec::new(),
            events: VecDeque::new(),
        }
    }

    pub fn next_event(&mut self) -> Option<ConnectionEvent> {
        self.events.pop_front()
    }

    /// Returns the bytes to send. The caller removes the bytes that it has sent.
    pub fn outbox(&mut self) -> &mut Vec<u8> {
        &mut self.outbox
    }

    /// Returns when [`on_timeout`](Self::on_timeout) or
    /// [`take_connect_retry`](Self::take_connect_retry) is due.
    pub fn deadline(&self) -> Option<Instant> {
        let repetition = self.repetition.as_ref().map(|(_, due)| *due);
        self.deadline.into_iter().chain(self.connect_retry.next).chain(repetition).min()
    }

    /// Whether the stream may be closed once the outbox is sent.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::PeerEnded | State::TimeWait | State::Closed)
    }

    /// Whether no message, timer or call changes the connection any more.
    pub fn is_over(&self) -> bool {
        self.state == State::Closed
    }

    /// Whether a [`ConnectionEvent::Disconnected`] will follow the DREQ that is sent.
    pub fn awaits_drep(&self) -> bool {
        self.state == State::DreqSent
    }

    pub fn receive(&mut self, bytes: &[u8], now: Instant) {
        self.inbox.extend(bytes);
        while !self.is_closed() {
            match Message::decode(&self.inbox) {
                Ok(Some((message, length))) => {
                    self.inbox.drain(..length);
                    self.handle_message(message, now);
                }
                Ok(None) => return,
                Err(_) => self.on_stream_end(Errno::EPROTO, now),
            }
        }
        self.inbox.clear();
    }

    fn handle_message(&mut self, message: Message, now: Instant) {
        match (self.state, message) {
            (State::AwaitingReq, Message::Req(params)) => {
                self.enter(State::ReqReceived, None);
                self.events.push_back(ConnectionEvent::Requested(params));
            }
            // The peer repeated the REQ before the answer arrived.
            (State::ReqReceived | State::RepSent, Message::Req(_)) => {}
            (State::Established | State::DreqSent, Message::Req(_)) if self.rtu_outstanding => {}
            (State::ReqSent, Message::Rep(params)) => {
                self.enter(State::RepReceived, None);
                self.events.push_back(ConnectionEvent::Replied(params));
            }
            (State::ReqReceived, Message::Rej(_)) => self.enter(State::Closed, None),
            (State::RepSent, Message::Rtu) => {
                self.enter(State::Established, None);
                self.events.push_back(ConnectionEvent::Established);
            }
            (State::Established | State::DreqSent, Message::Rtu) if self.rtu_outstanding => {
                self.rtu_outstanding = false;
            }
            (
                State::ReqSent | State::RepReceived | State::RepSent | State::Established,
                Message::Rej(rejection),
            ) => self.close(ConnectionEvent::Rejected(rejection)),
            (State::Established | State::DreqSent, Message::Dreq) => {
                self.send(&Message::Drep);
                self.end(now);
            }
            (State::DreqSent, Message::Drep) => self.end(now),
            _ => self.on_stream_end(Errno::EPROTO, now),
        }
    }

    /// Closes the connection after the stream failed with `errno` or the peer closed it
    /// (`ECONNRESET`).
    pub fn on_stream_end(&mut self, errno: Errno, now: Instant) {
        self.outbox.clear();
        match self.state {
            State::AwaitingReq | State::ReqReceived => self.enter(State::Closed, None),
            State::ReqSent | State::RepReceived => self.close(ConnectionEvent::Unreachable(errno)),
            State::RepSent => self.close(rejected(reject_reason::TIMEOUT)),
            State::Established | State::DreqSent => self.end(now),
            State::PeerEnded | State::TimeWait | State::Closed => {}
        }
    }

    pub fn on_connection_refused(&mut self, now: Instant) {
        if now < self.connect_retry.until {
            self.connect_retry.next = Some(now + REFUSED_RETRY_INTERVAL);
        } else {
            self.close(rejected(reject_reason::INVALID_SERVICE_ID));
        }
    }

    /// Returns true once for each attempt to connect that is due.
    pub fn take_connect_retry(&mut self, now: Instant) -> bool {
        self.connect_retry.next.take_if(|next| *next <= now).is_some()
    }

    pub fn on_timeout(&mut self, now: Instant) {
        if let Some((request, due)) = &mut self.repetition
            && *due <= now
        {
            *due = now + REQ_REPEAT_INTERVAL;
            if self.outbox.is_empty() {
                request.encode(&mut self.outbox);
            }
        }
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        match self.state {
            State::DreqSent => self.end(now),
            State::TimeWait => self.close(ConnectionEvent::TimeWaitExit),
            State::AwaitingReq => self.enter(State::Closed, None),
            _ => {
                self.send(&Message::Rej(Rejection::without_data(reject_reason::TIMEOUT)));
                self.close(ConnectionEvent::Unreachable(Errno::ETIMEDOUT));
            }
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
        self.send(&Message::Rep(reply));
        self.enter(State::RepSent, Some(now + RESPONSE_TIMEOUT));
        Ok(())
    }

    /// # Errors
    /// `EINVAL` unless a request or a reply waits for an answer.
    pub fn reject(&mut self, rejection: Rejection) -> Result<(), Errno> {
        if !matches!(self.state, State::ReqReceived | State::RepReceived) {
            return Err(Errno::EINVAL);
        }
        self.send(&Message::Rej(rejection));
        self.enter(State::Closed, None);
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
        self.send(&Message::Rtu);
        self.enter(State::Established, None);
        Ok(())
    }

    /// Establishes the connection before the RTU arrives, because the program has received data.
    ///
    /// # Errors
    /// `EISCONN` if the connection is established, `EINVAL` in any state but `RepSent`.
    pub fn notify(&mut self) -> Result<(), Errno> {
        match self.state {
            State::RepSent => {
                self.enter(State::Established, None);
                self.rtu_outstanding = true;
                self.events.push_back(ConnectionEvent::Established);
                Ok(())
            }
            State::Established => Err(Errno::EISCONN),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Ends the connection for the program. The call succeeds even if the peer or an earlier call
    /// has ended the connection.
    ///
    /// # Errors
    /// `EINVAL` before the connection was accepted.
    pub fn disconnect(&mut self, now: Instant) -> Result<(), Errno> {
        match self.state {
            State::Established => {
                self.send(&Message::Dreq);
                self.enter(State::DreqSent, Some(now + DREP_TIMEOUT));
            }
            State::RepSent => {
                self.abandon();
                self.events.push_back(ConnectionEvent::Disconnected);
                self.enter(State::TimeWait, Some(now + TIME_WAIT));
            }
            State::PeerEnded => self.enter(State::TimeWait, Some(now + TIME_WAIT)),
            State::DreqSent | State::TimeWait | State::Closed => {}
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    /// Informs the peer that the program destroys the identifier, and drops all events.
    pub fn abandon(&mut self) {
        match self.state {
            State::ReqSent | State::RepReceived | State::ReqReceived | State::RepSent => {
                self.send(&Message::Rej(Rejection::without_data(reject_reason::CONSUMER_DEFINED)));
            }
            State::Established => self.send(&Message::Dreq),
            State::AwaitingReq | State::DreqSent | State::PeerEnded | State::TimeWait | State::Closed => {}
        }
        self.enter(State::Closed, None);
        self.events.clear();
    }

    /// Drops the request because the listener's backlog is full. The peer repeats it.
    pub fn drop_request(&mut self, now: Instant) {
        if self.state == State::ReqReceived {
            self.enter(State::AwaitingReq, Some(now + REQ_TIMEOUT));
        }
    }

    fn send(&mut self, message: &Message) {
        message.encode(&mut self.outbox);
    }

    fn enter(&mut self, state: State, deadline: Option<Instant>) {
        self.state = state;
        self.deadline = deadline;
        (self.connect_retry.next, self.repetition) = (None, None);
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

fn rejected(reason: u16) -> ConnectionEvent {
    ConnectionEvent::Rejected(Rejection::without_data(reason))
}
