//! The lookup of a datagram service (IBTA 12.11, service ID resolution) as two state machines.
//!
//! Datagrams may be lost. The requester therefore repeats its SIDR_REQ, and the responder stores
//! its SIDR_REP and sends the SIDR_REP again for a repeated request.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::message::{Message, SidrReply, SidrRequest};
use super::timeouts::{REFUSED_RETRY_PERIOD, RESPONSE_TIMEOUT};

const REPEAT_INTERVAL: Duration = Duration::from_millis(200);
const STORE_PERIOD: Duration = Duration::from_secs(90);
/// The maximum number of stored requests. A responder that stores this many ignores new requests
/// until a stored request expires.
const MAX_REQUESTS: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupAction {
    Send,
    TimedOut,
    /// Wait for a reply until [`ServiceLookup::deadline`].
    Wait,
}

#[derive(Debug)]
pub struct ServiceLookup {
    request_id: u64,
    request: Vec<u8>,
    repeat_at: Instant,
    retry_refused_until: Instant,
    timeout_at: Instant,
}

impl ServiceLookup {
    /// The first [`on_timer`](Self::on_timer) returns [`LookupAction::Send`].
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

    pub fn request(&self) -> &[u8] {
        &self.request
    }

    pub fn deadline(&self) -> Instant {
        self.repeat_at.min(self.timeout_at)
    }

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

    /// Whether the retry period is over, so that an ICMP "port unreachable" ends the lookup.
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

/// The requester's address and the request id.
pub type RequestKey = (SocketAddr, u64);

#[derive(Debug, PartialEq, Eq)]
pub enum ReceivedDatagram<'a> {
    New(RequestKey, SidrRequest),
    /// A repetition of an answered request. The stored reply is sent again.
    Duplicate(&'a [u8]),
    /// No request, or a request that waits for the program or exceeds [`MAX_REQUESTS`].
    Ignored,
}

/// The requests of the last [`STORE_PERIOD`] at a responder.
#[derive(Debug, Default)]
pub struct ServiceRequests {
    /// The encoded reply (`None` until the program answers), and the time at which the entry
    /// expires.
    replies: HashMap<RequestKey, (Option<Vec<u8>>, Instant)>,
}

impl ServiceRequests {
    /// Classifies a datagram, and stores a new request.
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

    /// Removes a request. The next repetition then counts as a new request.
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

/// Returns `None` unless the datagram is exactly one message.
fn decode_datagram(datagram: &[u8]) -> Option<Message> {
    match Message::decode(datagram) {
        Ok(Some((message, length))) if length == datagram.len() => Some(message),
        _ => None,
    }
}
