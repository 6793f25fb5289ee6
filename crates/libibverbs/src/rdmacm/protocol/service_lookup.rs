//! The lookup of a datagram service (IBTA 12.11, service ID resolution) as two state machines.
//! Inputs are datagrams and the time; outputs are datagrams.
//!
//! The requester sends one SIDR_REQ and the responder one SIDR_REP. Either may be lost: the
//! requester repeats its request, and the responder stores its reply and sends it again for a
//! repeated request.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::message::{Message, SidrReply, SidrRequest};
use super::timeouts::{REFUSED_RETRY_PERIOD, RESPONSE_TIMEOUT};

/// The interval between repetitions of a request.
const REPEAT_INTERVAL: Duration = Duration::from_millis(200);
/// How long the responder stores a request and its reply.
const STORE_PERIOD: Duration = Duration::from_secs(90);
/// The number of requests that the responder stores. It ignores further requests until one expires.
const MAX_REQUESTS: usize = 4096;

/// The requester's next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupAction {
    /// Send the request.
    Send,
    /// End the lookup: no reply arrived in time.
    TimedOut,
    /// Wait for a reply or until [`ServiceLookup::deadline`].
    Wait,
}

/// The requester.
#[derive(Debug)]
pub struct ServiceLookup {
    request_id: u64,
    request: Vec<u8>,
    repeat_at: Instant,
    retry_refused_until: Instant,
    timeout_at: Instant,
}

impl ServiceLookup {
    /// Starts a lookup. The first [`on_timer`](Self::on_timer) returns [`LookupAction::Send`].
    pub fn new(request: SidrRequest, now: Instant) -> Self {
        let (request_id, mut datagram) = (request.request_id, Vec::new());
        Message::SidrReq(request).encode(&mut datagram);
        Self {
            request_id,
            request: datagram,
            repeat_at: now,
            retry_refused_until: now + REFUSED_RETRY_PERIOD,
            timeout_at: now + RESPONSE_TIMEOUT,
        }
    }

    /// Returns the encoded request.
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// Returns when [`on_timer`](Self::on_timer) is due.
    pub fn deadline(&self) -> Instant {
        self.repeat_at.min(self.timeout_at)
    }

    /// Returns the action that is due at `now`.
    pub fn on_timer(&mut self, now: Instant) -> LookupAction {
        if now >= self.timeout_at {
            LookupAction::TimedOut
        } else if now >= self.repeat_at {
            self.repeat_at = now + REPEAT_INTERVAL;
            LookupAction::Send
        } else {
            LookupAction::Wait
        }
    }

    /// Whether an ICMP "port unreachable" ends the lookup. The requester ignores it during the
    /// retry period.
    pub fn is_refusal_final(&self, now: Instant) -> bool {
        now >= self.retry_refused_until
    }

    /// Returns the reply in `datagram`, if the datagram is a reply to this request.
    pub fn receive(&self, datagram: &[u8]) -> Option<SidrReply> {
        match decode_datagram(datagram)? {
            Message::SidrRep(reply) if reply.request_id == self.request_id => Some(reply),
            _ => None,
        }
    }
}

/// The requester's address and the request id: the identity of a request at the responder.
pub type RequestKey = (SocketAddr, u64);

/// The responder's classification of a datagram.
#[derive(Debug, PartialEq, Eq)]
pub enum ReceivedDatagram<'a> {
    /// A new request.
    New(RequestKey, SidrRequest),
    /// A repetition of a request that was answered: the stored reply, to be sent again.
    Duplicate(&'a [u8]),
    /// A repetition of a request that waits for the program, a request beyond [`MAX_REQUESTS`], or
    /// no request.
    Ignored,
}

/// The responder: the requests of the last [`STORE_PERIOD`].
#[derive(Debug, Default)]
pub struct ServiceRequests {
    /// For each request, the encoded reply once there is one, and when the entry expires.
    replies: HashMap<RequestKey, (Option<Vec<u8>>, Instant)>,
}

impl ServiceRequests {
    /// Classifies a datagram and stores it if it is a new request.
    pub fn receive(&mut self, from: SocketAddr, datagram: &[u8], now: Instant) -> ReceivedDatagram<'_> {
        let Some(Message::SidrReq(request)) = decode_datagram(datagram) else {
            return ReceivedDatagram::Ignored;
        };
        let key = (from, request.request_id);
        if !self.replies.contains_key(&key) {
            self.replies.retain(|_, (_, expiry)| now < *expiry);
            if self.replies.len() >= MAX_REQUESTS {
                return ReceivedDatagram::Ignored;
            }
            self.replies.insert(key, (None, now + STORE_PERIOD));
            return ReceivedDatagram::New(key, request);
        }
        match &self.replies[&key].0 {
            Some(reply) => ReceivedDatagram::Duplicate(reply),
            None => ReceivedDatagram::Ignored,
        }
    }

    /// Removes a request, so that its next repetition is a new request.
    pub fn remove(&mut self, key: RequestKey) {
        self.replies.remove(&key);
    }

    /// Stores the reply to a request and returns the datagram to send.
    pub fn reply(&mut self, key: RequestKey, reply: SidrReply, now: Instant) -> Vec<u8> {
        let mut datagram = Vec::new();
        Message::SidrRep(reply).encode(&mut datagram);
        self.replies.insert(key, (Some(datagram.clone()), now + STORE_PERIOD));
        datagram
    }
}

/// Decodes a datagram that consists of exactly one message.
fn decode_datagram(datagram: &[u8]) -> Option<Message> {
    match Message::decode(datagram) {
        Ok(Some((message, length))) if length == datagram.len() => Some(message),
        _ => None,
    }
}
