//! Looking a datagram service up, both sides, as state machines: datagrams and the time go in, datagrams come out.
//!
//! One SIDR_REQ, one SIDR_REP, and either may be lost: the asking side repeats its request, the answering side remembers
//! what it answered and gives the same again.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::connection::{ANSWER_WITHIN, KNOCK_FOR};
use super::message::{Answer, Inquiry, Message};

const REPEAT_AFTER: Duration = Duration::from_millis(200);
/// How long an answer is remembered for repeated requests.
const REMEMBER: Duration = Duration::from_secs(90);
/// How many requests a service remembers at once; further ones go unanswered until one is forgotten.
const MAX_REQUESTS: usize = 4096;

/// What the asking side is to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send the request.
    Send,
    /// Nobody answered.
    GiveUp,
    /// Wait for an answer or until [`Lookup::deadline`].
    Wait,
}

/// The asking side.
#[derive(Debug)]
pub struct Lookup {
    request_id: u64,
    request: Vec<u8>,
    repeat: Instant,
    knock_until: Instant,
    give_up: Instant,
}

impl Lookup {
    /// Asks; the first [`tick`](Self::tick) says so.
    pub fn new(inquiry: Inquiry, now: Instant) -> Self {
        let (request_id, mut request) = (inquiry.request_id, Vec::new());
        Message::SidrReq(inquiry).encode(&mut request);
        Self { request_id, request, repeat: now, knock_until: now + KNOCK_FOR, give_up: now + ANSWER_WITHIN }
    }

    /// The datagram to send.
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// When [`tick`](Self::tick) has something to do.
    pub fn deadline(&self) -> Instant {
        self.repeat.min(self.give_up)
    }

    /// Time passed.
    pub fn tick(&mut self, now: Instant) -> Step {
        if now >= self.give_up {
            Step::GiveUp
        } else if now >= self.repeat {
            self.repeat = now + REPEAT_AFTER;
            Step::Send
        } else {
            Step::Wait
        }
    }

    /// Nobody listens. Whether to give up.
    pub fn is_refused(&self, now: Instant) -> bool {
        now >= self.knock_until
    }

    /// The answer, if the datagram is one to this request.
    pub fn receive(&self, datagram: &[u8]) -> Option<Answer> {
        match whole(datagram)? {
            Message::SidrRep(answer) if answer.request_id == self.request_id => Some(answer),
            _ => None,
        }
    }
}

/// Who asked, and the number of the request.
pub type RequestKey = (SocketAddr, u64);

/// What a datagram means to a service.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival<'a> {
    /// Somebody asks.
    New(RequestKey, Inquiry),
    /// Somebody asks again: here is what was answered.
    Again(&'a [u8]),
    /// Nothing to do.
    Nothing,
}

/// The answering side: the requests that a service received of late.
#[derive(Debug, Default)]
pub struct Requests {
    answers: HashMap<RequestKey, (Option<Vec<u8>>, Instant)>,
}

impl Requests {
    /// Takes a datagram.
    pub fn receive(&mut self, from: SocketAddr, datagram: &[u8], now: Instant) -> Arrival<'_> {
        let Some(Message::SidrReq(inquiry)) = whole(datagram) else { return Arrival::Nothing };
        let key = (from, inquiry.request_id);
        if !self.answers.contains_key(&key) {
            self.answers.retain(|_, (_, forget)| now < *forget);
            if self.answers.len() >= MAX_REQUESTS {
                return Arrival::Nothing;
            }
            self.answers.insert(key, (None, now + REMEMBER));
            return Arrival::New(key, inquiry);
        }
        match &self.answers[&key].0 {
            Some(answer) => Arrival::Again(answer),
            None => Arrival::Nothing,
        }
    }

    /// Forgets a request, so that its repetition counts as new.
    pub fn forget(&mut self, key: RequestKey) {
        self.answers.remove(&key);
    }

    /// Remembers an answer and gives the datagram to send.
    pub fn answer(&mut self, key: RequestKey, answer: Answer, now: Instant) -> Vec<u8> {
        let mut datagram = Vec::new();
        Message::SidrRep(answer).encode(&mut datagram);
        self.answers.insert(key, (Some(datagram.clone()), now + REMEMBER));
        datagram
    }
}

/// The message that a datagram is, from its first byte to its last.
fn whole(datagram: &[u8]) -> Option<Message> {
    match Message::decode(datagram) {
        Ok(Some((message, length))) if length == datagram.len() => Some(message),
        _ => None,
    }
}
