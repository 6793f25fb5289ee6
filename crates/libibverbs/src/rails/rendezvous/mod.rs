//! How the Mitra libraries of two programs exchange what their virtual queue pairs need.
//!
//! The programs exchange a GID, a queue pair number and rkeys among themselves, all of rail 0. The libraries use these to query
//! each other for the rest, in datagrams between the queue pairs 1 (general services interface) of their NICs: the data to connect
//! a queue pair on all rails, and the keys of a memory region on the other rails. A query is sent again until an answer
//! arrives.
//!
//! RoCE does not authenticate, and neither does the rendezvous: any sender of datagrams can obtain the secret of a queue pair
//! that is not connected yet (docs/security.md). A connected queue pair answers its peer's addresses only.

mod gsi_qp;
mod message;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use mitra_failover::{ConnectInfo, LocalNic};
use mitra_verbs::{Error, Gid, Qpn, Result};

use self::gsi_qp::GsiQp;
pub(super) use self::message::Subject;
use self::message::{Answer, Message, decode, encode};
use crate::common::lock::lock;

/// Time until a query is sent again.
const RESEND_INTERVAL: Duration = Duration::from_millis(20);
/// Time until a query without an answer fails.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// Queries of peers that wait to be answered. A query beyond that is dropped, and its sender sends it again.
const MAX_RECEIVED: usize = 256;

/// The queue pairs 1 of all rails, and the queries in both directions.
pub(super) struct Rendezvous {
    gsi_qps: Vec<Mutex<GsiQp>>,
    received: Mutex<VecDeque<ReceivedQuery>>,
    /// This end's queries by their id.
    outstanding: Mutex<HashMap<u64, OutstandingQuery>>,
    timeout: Duration,
}

/// The answer slot of a query of this end.
struct OutstandingQuery {
    /// The peer's GIDs. Answers from elsewhere are dropped.
    peer: Vec<Gid>,
    answer: Option<Answer>,
}

/// A query of a peer.
pub(super) struct ReceivedQuery {
    rail: usize,
    pub(super) from: Gid,
    id: u64,
    pub(super) subject: Subject,
}

impl Rendezvous {
    /// Opens queue pair 1 of each NIC.
    ///
    /// # Errors
    /// The error of the first NIC that refuses.
    pub(super) fn new(nics: &[LocalNic]) -> Result<Arc<Rendezvous>> {
        Rendezvous::with_timeout(nics, QUERY_TIMEOUT)
    }

    pub(super) fn with_timeout(nics: &[LocalNic], timeout: Duration) -> Result<Arc<Rendezvous>> {
        let gsi_qps = nics.iter().map(|nic| GsiQp::new(nic).map(Mutex::new)).collect::<Result<_>>()?;
        Ok(Arc::new(Rendezvous {
            gsi_qps,
            received: Mutex::default(),
            outstanding: Mutex::default(),
            timeout,
        }))
    }

    /// Queries a peer's queue pair for its connection data, and waits for the answer.
    ///
    /// # Errors
    /// `Invalid` if the peer does not answer within 5 s, or has no such queue pair.
    pub(super) fn query_connection(self: &Arc<Self>, id: u64, gid: Gid, qpn: Qpn) -> Result<ConnectInfo> {
        let mut query = Query::new(self, id, vec![gid], Subject::Connection(qpn));
        let answer = loop {
            self.poll();
            match query.poll() {
                Poll::Ready(answer) => break answer?,
                Poll::Pending => thread::sleep(Duration::from_micros(20)),
            }
        };
        ConnectInfo::decode(&answer.ok_or(Error::Invalid(
            "the peer has no such queue pair, or it does not span rails: run both ends with the same --rails",
        ))?)
    }

    /// Takes the queries of peers that have arrived.
    pub(super) fn take_received(&self) -> VecDeque<ReceivedQuery> {
        self.poll();
        std::mem::take(&mut lock(&self.received))
    }

    /// Answers a query of a peer.
    pub(super) fn answer(&self, query: &ReceivedQuery, answer: Answer) {
        lock(&self.gsi_qps[query.rail]).send(query.from, &encode(query.id, &Message::Answer(answer)));
    }

    /// Returns the time after which a query without an answer fails.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Takes the datagrams that have arrived on all rails. Never blocks.
    pub(super) fn poll(&self) {
        for (rail, gsi_qp) in self.gsi_qps.iter().enumerate() {
            lock(gsi_qp).poll(|from, bytes| match decode(bytes) {
                Some((id, Message::Query(subject))) => {
                    let mut received = lock(&self.received);
                    if received.len() < MAX_RECEIVED {
                        received.push_back(ReceivedQuery { rail, from, id, subject });
                    }
                }
                Some((id, Message::Answer(answer))) => {
                    if let Some(query) = lock(&self.outstanding).get_mut(&id)
                        && query.peer.contains(&from)
                    {
                        query.answer.get_or_insert(answer);
                    }
                }
                None => {}
            });
        }
    }
}

/// A query of this end. Dropping it cancels it.
pub(super) struct Query {
    rendezvous: Arc<Rendezvous>,
    id: u64,
    peer: Vec<Gid>,
    subject: Subject,
    started: Instant,
    /// How often the query was sent.
    transmissions: u32,
    next_transmission: Instant,
}

impl Query {
    /// Sends a query to the peer's GID on rail 0, and returns without waiting for the answer. `id` must be unpredictable: it is what
    /// an attacker who forges answers would have to guess. `peer` is the peer's GID on each rail, as far as known.
    pub(super) fn new(rendezvous: &Arc<Rendezvous>, id: u64, peer: Vec<Gid>, subject: Subject) -> Query {
        lock(&rendezvous.outstanding).insert(id, OutstandingQuery { peer: peer.clone(), answer: None });
        let rendezvous = Arc::clone(rendezvous);
        let now = Instant::now();
        let (started, next_transmission) = (now, now);
        let mut query = Query { rendezvous, id, peer, subject, started, transmissions: 0, next_transmission };
        query.transmit_if_due();
        query
    }

    /// Sends the query, on the rails in turn, if [`RESEND_INTERVAL`] has passed since the last time.
    fn transmit_if_due(&mut self) {
        let now = Instant::now();
        if now < self.next_transmission {
            return;
        }
        let rail = self.transmissions as usize % self.peer.len().max(1);
        if let (Some(gid), Some(gsi_qp)) = (self.peer.get(rail), self.rendezvous.gsi_qps.get(rail)) {
            lock(gsi_qp).send(*gid, &encode(self.id, &Message::Query(self.subject)));
        }
        self.transmissions += 1;
        self.next_transmission = now + RESEND_INTERVAL;
    }

    /// Sends the query again if that is due and no answer has arrived. Never blocks.
    pub(super) fn resend_if_due(&mut self) {
        let _ = self.poll();
    }

    /// Returns the answer that the last [`Rendezvous::poll`] found, or sends the query again if that is due. Never blocks.
    ///
    /// # Errors
    /// `Invalid` if there is no answer within the time-out.
    pub(super) fn poll(&mut self) -> Poll<Result<Answer>> {
        let answer = lock(&self.rendezvous.outstanding).get(&self.id).and_then(|query| query.answer.clone());
        if let Some(answer) = answer {
            return Poll::Ready(Ok(answer));
        }
        if self.started.elapsed() > self.rendezvous.timeout {
            return Poll::Ready(Err(Error::Invalid(
                "the peer does not answer; it must run under `mitra run` with the same --rails",
            )));
        }
        self.transmit_if_due();
        Poll::Pending
    }
}

impl Drop for Query {
    fn drop(&mut self) {
        lock(&self.rendezvous.outstanding).remove(&self.id);
    }
}
