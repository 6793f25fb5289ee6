//! One connection of reliable QPs as a state machine: what is said and heard, what the program did and how time passes go
//! in; bytes to send and what to report come out. Sockets, clocks and QPs are the caller's.
//!
//! ```text
//! active   ── REQ ──▶ AwaitRep ◀─ REP ─ GotRep ── RTU ──▶ Established
//! passive  AwaitReq ◀─ REQ ─ GotReq ── REP ──▶ AwaitRtu ◀─ RTU ─ Established
//! ```
//!
//! REJ, silence or the end of the stream leads from any of them to `Closed`; from `Established`, DREQ does, answered by
//! DREP. The stream stays open while connected, so that its end tells of a peer that was killed.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::message::{Message, Offer, Rejection, reason};

/// How long a stream may be open without a REQ.
const REQ_WITHIN: Duration = Duration::from_secs(10);
/// How long the other program may take to accept, and to become ready; the kernel's connection manager gives up after about as
/// long (`CMA_MAX_CM_RETRIES` times `CMA_CM_RESPONSE_TIMEOUT`).
pub const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// How long to knock where nobody listens. A real request takes a while to arrive, and programs whose server listens anew for
/// each connection count on that (perftest); ours would be there first.
pub const KNOCK_FOR: Duration = Duration::from_secs(5);
/// How long between two knocks.
const KNOCK_EVERY: Duration = Duration::from_millis(20);
/// How long a DREP is waited for.
const DREP_WITHIN: Duration = Duration::from_secs(5);

/// What the program is to hear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happening {
    /// A REQ came.
    Requested(Offer),
    /// A REP came.
    Replied(Offer),
    /// The passive side may use the connection.
    Established,
    /// The other side declined, or nobody listens.
    Rejected(Rejection),
    /// The other side is not there or does not answer.
    Unreachable(Errno),
    /// The connection ended.
    Disconnected,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    AwaitRep,
    GotRep,
    AwaitReq,
    GotReq,
    AwaitRtu,
    Established,
    AwaitDrep,
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Knock {
    until: Instant,
    next: Option<Instant>,
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    state: State,
    deadline: Option<Instant>,
    /// Until when, and when next, to knock.
    knock: Knock,
    /// [`notify`](Self::notify) was quicker.
    rtu_is_late: bool,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    happenings: VecDeque<Happening>,
}

impl Connection {
    /// Asks for a connection; the stream may still be in the making.
    pub fn active(request: Offer, now: Instant) -> Self {
        let mut connection = Self::new(State::AwaitRep, now, ANSWER_WITHIN);
        connection.say(&Message::Req(request));
        connection
    }

    /// Waits for a REQ on a stream that somebody opened.
    pub fn passive(now: Instant) -> Self {
        Self::new(State::AwaitReq, now, REQ_WITHIN)
    }

    fn new(state: State, now: Instant, within: Duration) -> Self {
        let (inbox, outbox, happenings) = Default::default();
        let knock = Knock { until: now + KNOCK_FOR, next: None };
        Self { state, deadline: Some(now + within), knock, rtu_is_late: false, inbox, outbox, happenings }
    }

    /// What to report next.
    pub fn next_happening(&mut self) -> Option<Happening> {
        self.happenings.pop_front()
    }

    /// What to send; the caller removes what it has sent.
    pub fn outbox(&mut self) -> &mut Vec<u8> {
        &mut self.outbox
    }

    /// When [`tick`](Self::tick) has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline.into_iter().chain(self.knock.next).min()
    }

    /// Whether nothing more is to be heard, and nothing sent beyond what is in the outbox.
    pub fn is_finished(&self) -> bool {
        self.state == State::Closed
    }

    /// Whether a [`Happening::Disconnected`] is to come.
    pub fn awaits_the_end(&self) -> bool {
        self.state == State::AwaitDrep
    }

    /// Takes bytes of the stream.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.inbox.extend(bytes);
        while self.state != State::Closed {
            match Message::decode(&self.inbox) {
                Ok(Some((message, length))) => {
                    self.inbox.drain(..length);
                    self.hear(message);
                }
                Ok(None) => return,
                Err(_) => self.lose(Errno::EPROTO),
            }
        }
        self.inbox.clear();
    }

    fn hear(&mut self, message: Message) {
        match (self.state, message) {
            (State::AwaitReq, Message::Req(offer)) => {
                self.enter(State::GotReq, None);
                self.happenings.push_back(Happening::Requested(offer));
            }
            (State::AwaitRep, Message::Rep(offer)) => {
                self.enter(State::GotRep, None);
                self.happenings.push_back(Happening::Replied(offer));
            }
            (State::AwaitRtu, Message::Rtu) => {
                self.enter(State::Established, None);
                self.happenings.push_back(Happening::Established);
            }
            (State::Established | State::AwaitDrep, Message::Rtu) if self.rtu_is_late => {
                self.rtu_is_late = false;
            }
            (
                State::AwaitRep | State::GotRep | State::GotReq | State::AwaitRtu | State::Established,
                Message::Rej(rejection),
            ) => self.close(Happening::Rejected(rejection)),
            (State::Established | State::AwaitDrep, Message::Dreq) => {
                self.say(&Message::Drep);
                self.close(Happening::Disconnected);
            }
            (State::AwaitDrep, Message::Drep) => self.close(Happening::Disconnected),
            _ => self.lose(Errno::EPROTO),
        }
    }

    /// The stream ended: it broke, or the peer closed it (`ECONNRESET`).
    pub fn lose(&mut self, why: Errno) {
        self.outbox.clear();
        match self.state {
            State::AwaitReq => self.enter(State::Closed, None),
            State::AwaitRep | State::GotRep => self.close(Happening::Unreachable(why)),
            State::GotReq | State::AwaitRtu => self.close(rejected(reason::TIMEOUT)),
            State::Established | State::AwaitDrep => self.close(Happening::Disconnected),
            State::Closed => {}
        }
    }

    /// No stream could be opened, since nobody listens.
    pub fn refused(&mut self, now: Instant) {
        if now < self.knock.until {
            self.knock.next = Some(now + KNOCK_EVERY);
        } else {
            self.close(rejected(reason::INVALID_SERVICE_ID));
        }
    }

    /// Whether the stream is to be opened once more.
    pub fn knocks(&mut self, now: Instant) -> bool {
        self.knock.next.take_if(|next| *next <= now).is_some()
    }

    /// Time passed.
    pub fn tick(&mut self, now: Instant) {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        match self.state {
            State::AwaitDrep => self.close(Happening::Disconnected),
            State::AwaitReq => self.enter(State::Closed, None),
            _ => {
                self.say(&Message::Rej(Rejection { reason: reason::TIMEOUT, private_data: Vec::new() }));
                self.close(Happening::Unreachable(Errno::ETIMEDOUT));
            }
        }
    }

    /// The passive program agrees.
    pub fn accept(&mut self, reply: Offer, now: Instant) -> Result<(), Errno> {
        if self.state != State::GotReq {
            return Err(Errno::EINVAL);
        }
        self.say(&Message::Rep(reply));
        self.enter(State::AwaitRtu, Some(now + ANSWER_WITHIN));
        Ok(())
    }

    /// The program declines: a request, or a reply.
    pub fn reject(&mut self, rejection: Rejection) -> Result<(), Errno> {
        if !matches!(self.state, State::GotReq | State::GotRep) {
            return Err(Errno::EINVAL);
        }
        self.say(&Message::Rej(rejection));
        self.enter(State::Closed, None);
        Ok(())
    }

    /// The active program is ready.
    pub fn establish(&mut self) -> Result<(), Errno> {
        if self.state != State::GotRep {
            return Err(Errno::EINVAL);
        }
        self.say(&Message::Rtu);
        self.enter(State::Established, None);
        Ok(())
    }

    /// The passive program received data before the RTU.
    pub fn notify(&mut self) -> Result<(), Errno> {
        match self.state {
            State::AwaitRtu => {
                self.enter(State::Established, None);
                self.rtu_is_late = true;
                self.happenings.push_back(Happening::Established);
                Ok(())
            }
            State::Established => Err(Errno::EISCONN),
            _ => Err(Errno::EINVAL),
        }
    }

    /// The program ends the connection; ending it twice is no mistake, since the peer may have been quicker.
    pub fn disconnect(&mut self, now: Instant) -> Result<(), Errno> {
        match self.state {
            State::Established => {
                self.say(&Message::Dreq);
                self.enter(State::AwaitDrep, Some(now + DREP_WITHIN));
            }
            State::AwaitRtu => {
                self.abandon();
                self.happenings.push_back(Happening::Disconnected);
            }
            State::AwaitDrep | State::Closed => {}
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    /// The program destroys the identifier: says what the peer waits for, and reports nothing more.
    pub fn abandon(&mut self) {
        match self.state {
            State::AwaitRep | State::GotRep | State::GotReq | State::AwaitRtu => {
                let (reason, private_data) = (reason::CONSUMER_DEFINED, Vec::new());
                self.say(&Message::Rej(Rejection { reason, private_data }));
            }
            State::Established => self.say(&Message::Dreq),
            State::AwaitReq | State::AwaitDrep | State::Closed => {}
        }
        self.enter(State::Closed, None);
        self.happenings.clear();
    }

    /// Turns a stream away that came when there was no room.
    pub fn refuse(&mut self) {
        let (reason, private_data) = (reason::NO_RESOURCES, Vec::new());
        self.say(&Message::Rej(Rejection { reason, private_data }));
        self.enter(State::Closed, None);
    }

    fn say(&mut self, message: &Message) {
        message.encode(&mut self.outbox);
    }

    fn enter(&mut self, state: State, deadline: Option<Instant>) {
        self.state = state;
        self.deadline = deadline;
        self.knock.next = None;
    }

    fn close(&mut self, happening: Happening) {
        self.enter(State::Closed, None);
        self.happenings.push_back(happening);
    }
}

fn rejected(reason: u16) -> Happening {
    Happening::Rejected(Rejection { reason, private_data: Vec::new() })
}
