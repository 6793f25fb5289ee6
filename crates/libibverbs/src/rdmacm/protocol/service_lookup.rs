//! The lookup of a datagram service (IBTA 12.11, service ID resolution) as two state machines.
//!
//! Datagrams may be lost. The requester therefore repeats its SIDR_REQ, and the responder stores
//! its SIDR_REP and sends the SIDR_REP again for a repeated request.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use mitra_verbs::Gid;

use super::connection::Outgoing;
use super::message::{Message, SidrReply, SidrRequest, Transaction, sidr_status};
use super::timeouts::{REFUSED_RETRY_PERIOD, RESPONSE_TIMEOUT, Repetition};

const STORE_PERIOD: Duration = Duration::from_secs(90);
/// The maximum number of stored requests. A responder that stores this many ignores new requests
/// until a stored request expires.
const MAX_REQUESTS: usize = 4096;

#[derive(Debug)]
pub struct ServiceLookup {
    transaction: u64,
    request_id: u32,
    /// `None` until the destination is known.
    request: Option<SidrRequest>,
    repetition: Repetition,
    started: Instant,
}

impl ServiceLookup {
    /// [`request`](Self::request) begins to send the request.
    pub fn new(request_id: u32, transaction: u64, now: Instant) -> Self {
        Self { transaction, request_id, request: None, repetition: Repetition::from(now), started: now }
    }

    pub fn request_id(&self) -> u32 {
        self.request_id
    }

    pub fn request(&mut self, request: SidrRequest, now: Instant) {
        self.request = Some(request);
        self.repetition = Repetition::from(now);
    }

    pub fn deadline(&self) -> Instant {
        let timeout = self.started + RESPONSE_TIMEOUT;
        if self.request.is_some() { timeout.min(self.repetition.due()) } else { timeout }
    }

    pub fn is_timed_out(&self, now: Instant) -> bool {
        now >= self.started + RESPONSE_TIMEOUT
    }

    /// Returns the request if a transmission is due.
    pub fn next_message(&mut self, now: Instant) -> Option<Outgoing> {
        let request = self.request.as_ref()?;
        let repetition = self.repetition.take_due(now)?;
        let message = Message::SidrReq(request.clone());
        Some(Outgoing { transaction: Transaction { id: self.transaction, message }, repetition })
    }

    /// Whether the request was repeated for so long that a refusal counts.
    pub fn is_refusal_final(&self, now: Instant) -> bool {
        now >= self.started + REFUSED_RETRY_PERIOD
    }

    /// Returns whether the reply ends the lookup.
    pub fn accepts(&self, reply: &SidrReply, now: Instant) -> bool {
        self.request.is_some() && (reply.status != sidr_status::UNSUPPORTED || self.is_refusal_final(now))
    }
}

/// The GID of the requester's device, and the request id.
pub type RequestKey = (Gid, u32);

#[derive(Debug, PartialEq, Eq)]
pub enum ReceivedRequest {
    New,
    /// A repetition of an answered request. The stored reply is sent again.
    Answered(SidrReply),
    /// A request that waits for the program, or exceeds [`MAX_REQUESTS`].
    Ignored,
}

/// The requests of the last [`STORE_PERIOD`] at a responder.
#[derive(Debug, Default)]
pub struct ServiceRequests {
    /// The reply (`None` until the program answers), and the time at which the entry expires.
    replies: HashMap<RequestKey, (Option<SidrReply>, Instant)>,
}

impl ServiceRequests {
    /// Classifies a request, and stores a new request.
    pub fn receive(&mut self, key: RequestKey, now: Instant) -> ReceivedRequest {
        if !self.replies.contains_key(&key) {
            self.replies.retain(|_, (_, expiry)| now < *expiry);
            if self.replies.len() >= MAX_REQUESTS {
                return ReceivedRequest::Ignored;
            }
            self.replies.insert(key, (None, now + STORE_PERIOD));
            return ReceivedRequest::New;
        }
        match &self.replies[&key].0 {
            Some(reply) => ReceivedRequest::Answered(reply.clone()),
            None => ReceivedRequest::Ignored,
        }
    }

    /// Removes a request. The next repetition then counts as a new request.
    pub fn remove(&mut self, key: RequestKey) {
        self.replies.remove(&key);
    }

    /// Stores the reply to a request.
    pub fn reply(&mut self, key: RequestKey, reply: SidrReply, now: Instant) {
        self.replies.insert(key, (Some(reply), now + STORE_PERIOD));
    }
}
