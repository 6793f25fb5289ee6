//! The exchange by which the Mitra libraries of two programs obtain the connection data and the keys of all rails.
//!
//! The programs exchange GIDs, queue pair numbers and rkeys by their own means. All of these belong to rail 0. With them, each library
//! queries the other for the data to connect a queue pair on all rails, and for the keys of a memory region on all rails. Queries and
//! answers are datagrams between the queue pairs 1 (general services interface) of the NICs. A query is sent again until its answer
//! arrives or it times out.
//!
//! Like RoCE, the rendezvous does not authenticate. Any sender of datagrams can therefore obtain the secret of a queue pair that is not yet
//! connected (docs/security.md). Once a queue pair is connected, only queries from its peer's addresses are answered.

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

/// The time after which a query is sent again.
const RESEND_INTERVAL: Duration = Duration::from_millis(20);
/// The time after which a query without an answer fails.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of received queries that wait for an answer. Further queries are dropped, and their senders send them again.
const MAX_RECEIVED: usize = 256;

/// The queue pairs 1 of all rails, the queries that peers have sent, and the queries of this end.
pub(super) struct Rendezvous {
    gsi_qps: Vec<Mutex<GsiQp>>,
    /// The queries of peers that wait for an answer.
    received: Mutex<VecDeque<ReceivedQuery>>,
    /// The queries of this end, by id.
    outstanding: Mutex<HashMap<u64, OutstandingQuery>>,
    /// The time after which a query of this end fails without an answer.
    timeout: Duration,
}

/// The part of a [`Query`] that receives the answer.
struct OutstandingQuery {
    /// The peer's GIDs. Answers from other addresses are dropped.
    peer: Vec<Gid>,
    /// The first answer that has arrived.
    answer: Option<Answer>,
}

/// A query that a peer has sent, and that waits for an answer.
pub(super) struct ReceivedQuery {
    /// The rail on which the query arrived, and on which it is answered.
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

    /// Queries a peer for the connection data of its queue pair, and waits for the answer. `id` must be unpredictable (see [`Query::new`]).
    ///
    /// # Errors
    /// `Invalid` if the peer does not answer within [`Rendezvous::timeout`], or has no such queue pair. Also the errors of
    /// [`ConnectInfo::decode`].
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

    /// Takes the queries of peers that wait for an answer.
    pub(super) fn take_received(&self) -> VecDeque<ReceivedQuery> {
        self.poll();
        std::mem::take(&mut lock(&self.received))
    }

    /// Answers a query of a peer.
    pub(super) fn answer(&self, query: &ReceivedQuery, answer: Answer) {
        lock(&self.gsi_qps[query.rail]).send(query.from, &encode(query.id, &Message::Answer(answer)));
    }

    /// Returns the time after which a query of this end fails without an answer.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Receives the datagrams that have arrived on all rails, and stores the queries and answers. Never waits for a datagram.
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

/// A query of this end. Dropping the value cancels the query.
pub(super) struct Query {
    rendezvous: Arc<Rendezvous>,
    id: u64,
    /// The peer's GIDs by rail, as far as they are known.
    peer: Vec<Gid>,
    subject: Subject,
    started: Instant,
    /// The number of transmissions so far, including those on rails without a known GID. Determines the rail of the next transmission.
    transmissions: u32,
    next_transmission: Instant,
}

impl Query {
    /// Sends a query to the peer's GID on rail 0, and returns without waiting for the answer. `id` must be unpredictable, because an attacker
    /// who forges an answer has to guess it. `peer` contains the peer's GIDs by rail, as far as they are known.
    pub(super) fn new(rendezvous: &Arc<Rendezvous>, id: u64, peer: Vec<Gid>, subject: Subject) -> Query {
        lock(&rendezvous.outstanding).insert(id, OutstandingQuery { peer: peer.clone(), answer: None });
        let rendezvous = Arc::clone(rendezvous);
        let now = Instant::now();
        let (started, next_transmission) = (now, now);
        let mut query = Query { rendezvous, id, peer, subject, started, transmissions: 0, next_transmission };
        query.transmit_if_due();
        query
    }

    /// Sends the query if it was not yet sent, or if [`RESEND_INTERVAL`] has passed since the last transmission. Successive transmissions use
    /// the rails in turn.
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

    /// Returns the answer if a [`Rendezvous::poll`] has received it. Otherwise sends the query again if that is due. Never blocks.
    ///
    /// # Errors
    /// `Invalid` if no answer has arrived within [`Rendezvous::timeout`].
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
