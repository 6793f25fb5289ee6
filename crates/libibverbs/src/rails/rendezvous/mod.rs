//! The exchange by which the Mitra libraries of two programs obtain the connection data and the
//! keys of all rails.
//!
//! The programs exchange GIDs, queue pair numbers and rkeys by their own means. All of these belong
//! to rail 0. With them, each library queries the other for the data to connect a queue pair on all
//! rails, and for the keys of a memory region on all rails. Queries and answers are datagrams
//! between the queue pairs 1 (general services interface) of the NICs. A query is sent again until
//! its answer arrives or it times out.
//!
//! A device with one rail answers that it has no such queue pair ([`answer_of_one_rail`]).
//!
//! If rail 0 of either end is down, the other rails carry the query for connection data
//! ([`owner_search`]). Each query contains the GID of its sender's device, because the receiver may
//! be connecting to that GID and not yet know the sender's other addresses.
//!
//! Like RoCE, the rendezvous does not authenticate. Any sender of datagrams can therefore obtain
//! the secret of a queue pair that is not yet connected (docs/security.md). Once a queue pair is
//! connected, only queries from its peer's addresses are answered.

mod answer_of_one_rail;
mod device_gid;
mod gsi_qp;
mod message;
mod owner_search;
mod reach_message;
mod terms;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use mitra_failover::{ConnectInfo, LocalNic};
use mitra_verbs::{Codec, CqId, Error, Gid, Limits, Qpn, Result};

pub(super) use self::answer_of_one_rail::{OneRail, limits_of_nic, limits_of_program};
pub(super) use self::device_gid::DeviceGid;
use self::gsi_qp::GsiQp;
use self::message::{Answer, Message, decode, encode, is_of_other_version};
pub(super) use self::message::{ConnectionData, Subject};
pub(crate) use self::owner_search::{OwnerSearch, is_due as is_search_due};
pub(super) use self::reach_message::{DeviceAddress, QpNumbers, RailMask, Reach, ReachKind};
pub(super) use self::terms::Terms;
use crate::common::lock::lock;
use crate::common::refusal;
use crate::rails::cm_receiver::{CmConnection, RailAddress, SharedReceiver};

const RESEND_INTERVAL: Duration = Duration::from_millis(20);
pub(super) const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of received queries that wait for an answer. Further queries are dropped, and
/// their senders send them again.
const MAX_RECEIVED: usize = 256;

/// The queue pairs 1 of all rails, the queries that peers have sent, and the queries of this end.
pub(super) struct Rendezvous {
    gsi_qps: Vec<Mutex<GsiQp>>,
    /// The present and former GIDs of this device's rail 0.
    device: Mutex<DeviceGid>,
    /// The queries of peers that wait for an answer.
    received: Mutex<VecDeque<ReceivedQuery>>,
    /// The queries of this end, by id.
    outstanding: Mutex<HashMap<u64, OutstandingQuery>>,
    /// The messages about UD queue pairs that were not yet taken, each with the rail and the
    /// address from which it came.
    reach: Mutex<VecDeque<(usize, Gid, Reach)>>,
    pub(super) cm_receiver: SharedReceiver,
    timeout: Duration,
}

/// The part of a [`Query`] that receives the answer.
struct OutstandingQuery {
    /// The peer's GIDs by rail, as far as they are known. Answers from other addresses are dropped.
    peer: Vec<Gid>,
    /// The search for more addresses of the peer.
    search: Option<OwnerSearch>,
    /// The first answer that has arrived.
    answer: Option<Answer>,
    /// The time of the peer's last `Message::Ended`.
    ended: Option<Instant>,
    /// Whether a message of another version has arrived from the peer.
    other_version: bool,
}

impl OutstandingQuery {
    /// Returns whether an answer comes from an address of the peer. `data` are the connection data
    /// in the answer.
    fn accepts(&self, rail: usize, from: Gid, data: Option<&[u8]>) -> bool {
        self.peer.contains(&from)
            || self.search.as_ref().is_some_and(|search| search.accepts(rail, from, data))
    }
}

pub(super) enum PeerConnection {
    Data(ConnectInfo),
    /// The peer has not reset its queue pair since the last connection ended. The query continues,
    /// and is answered once the peer has reset the queue pair.
    AwaitsReset(Query),
}

/// A query that a peer has sent, and that waits for an answer.
pub(super) struct ReceivedQuery {
    /// The rail on which the query arrived, and on which it is answered.
    rail: usize,
    pub(super) from: Gid,
    /// The GID of the sender's device, as the sender states it.
    pub(super) device: DeviceGid,
    id: u64,
    pub(super) subject: Subject,
}

impl Rendezvous {
    /// Opens queue pair 1 of each NIC.
    ///
    /// # Errors
    /// The error of the first NIC that refuses.
    pub(super) fn new(nics: &[LocalNic], timeout: Duration) -> Result<Arc<Rendezvous>> {
        let device = nics[0].provider.query_port()?.gid;
        let gsi_qps: Vec<_> =
            nics.iter().map(|nic| GsiQp::new(nic, None).map(Mutex::new)).collect::<Result<_>>()?;
        for (rail, gsi_qp) in gsi_qps.iter().enumerate().skip(1) {
            // Without the group, peers reach this device only by the GID of rail 0.
            if let Err(error) = lock(gsi_qp).join_group() {
                tracing::debug!("rail {rail} cannot be searched for the device's GID: {error}");
            }
        }
        Ok(Arc::new(Rendezvous {
            gsi_qps,
            device: Mutex::new(DeviceGid::new(device)),
            received: Mutex::default(),
            outstanding: Mutex::default(),
            reach: Mutex::default(),
            cm_receiver: OnceLock::new(),
            timeout,
        }))
    }

    /// Requests an event on the completion channel of the NIC of each rail when a datagram arrives.
    /// The caller must then call [`Rendezvous::poll`].
    pub(super) fn arm(&self) {
        for gsi_qp in &self.gsi_qps {
            // A dead NIC receives nothing.
            let _ = lock(gsi_qp).arm();
        }
    }

    /// Handles an event of a completion queue on a rail. If the event reports a datagram, requests
    /// the next event. The caller must then call [`Rendezvous::poll`].
    pub(super) fn on_event(&self, rail: usize, cq: CqId) {
        let Some(gsi_qp) = self.gsi_qps.get(rail).map(lock) else { return };
        if gsi_qp.receives_in(cq) {
            // A dead NIC receives nothing.
            let _ = gsi_qp.arm();
        }
    }

    /// Records the present GID of this device. Queries for former GIDs are still answered.
    pub(super) fn set_device_gid(&self, gid: Gid) {
        lock(&self.device).set(gid);
    }

    /// Queries a peer for the connection data of its queue pair, and waits for the answer. Does not
    /// wait for the peer to reset the queue pair. Both ids must be unpredictable (see
    /// [`Query::new`]).
    ///
    /// # Errors
    /// `Invalid` if the peer does not answer within [`Rendezvous::timeout`]. Also the errors of
    /// [`connection_info`].
    pub(super) fn query_connection(
        self: &Arc<Self>,
        [id, search]: [u64; 2],
        gid: Gid,
        qpn: Qpn,
        terms: Terms,
    ) -> Result<PeerConnection> {
        let search = Some(OwnerSearch::new(search, gid));
        let mut query = Query::new(self, id, vec![gid], Subject::Connection { qpn, terms }, search);
        loop {
            self.poll();
            match query.poll() {
                Poll::Ready(answer) => return connection_info(answer?, &terms).map(PeerConnection::Data),
                Poll::Pending if query.awaits_reset() => return Ok(PeerConnection::AwaitsReset(query)),
                Poll::Pending => thread::sleep(Duration::from_micros(20)),
            }
        }
    }

    pub(super) fn take_received(&self) -> VecDeque<ReceivedQuery> {
        self.poll();
        std::mem::take(&mut lock(&self.received))
    }

    pub(super) fn answer(&self, query: &ReceivedQuery, answer: Answer) {
        lock(&self.gsi_qps[query.rail]).send(query.from, &encode(query.id, &Message::Answer(answer)));
    }

    /// Answers a query about a queue pair that the program has not reset since its connection
    /// ended. `info` are the data of the ended connection, by which the peer recognizes this
    /// device.
    pub(super) fn answer_ended(&self, query: &ReceivedQuery, info: &ConnectInfo) {
        let message = Message::Ended(info.encode());
        lock(&self.gsi_qps[query.rail]).send(query.from, &encode(query.id, &message));
    }

    pub(super) fn take_reach(&self) -> VecDeque<(usize, Gid, Reach)> {
        self.poll();
        std::mem::take(&mut lock(&self.reach))
    }

    /// Sends a message about a UD queue pair on a rail. `to` is the destination, or `None` for the
    /// multicast group of the rendezvous.
    pub(super) fn send_reach(&self, rail: usize, to: Option<Gid>, reach: Reach) {
        let Some(gsi_qp) = self.gsi_qps.get(rail) else { return };
        let bytes = encode(0, &Message::Reach(reach));
        match to {
            Some(to) => lock(gsi_qp).send(to, &bytes),
            None => lock(gsi_qp).send_to_group(&bytes),
        }
    }

    /// Sends a datagram to queue pair 1 at `to`.
    pub(super) fn send(&self, rail: usize, to: Gid, bytes: &[u8]) {
        if let Some(gsi_qp) = self.gsi_qps.get(rail) {
            lock(gsi_qp).send(to, bytes);
        }
    }

    /// Asks the group on all rails but the first which device has the GID of the search.
    pub(super) fn ask_group(&self, search: &OwnerSearch) {
        let question = encode(search.id, &Message::WhoHas(search.gid));
        self.gsi_qps[1..].iter().for_each(|gsi_qp| lock(gsi_qp).send_to_group(&question));
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Receives the datagrams that have arrived on all rails, stores the queries and answers, and
    /// answers searches for this device. Never waits for a datagram.
    pub(super) fn poll(&self) {
        for (rail, gsi_qp) in self.gsi_qps.iter().enumerate() {
            let (mut searchers, mut unknown) = (Vec::new(), Vec::new());
            let mut gsi_qp = lock(gsi_qp);
            gsi_qp.poll(|from, bytes| match decode(bytes) {
                Some((id, Message::Query(subject, device))) => {
                    let mut received = lock(&self.received);
                    if received.len() < MAX_RECEIVED {
                        received.push_back(ReceivedQuery { rail, from, device, id, subject });
                    }
                }
                Some((id, Message::Answer(answer))) => self.accept_answer(rail, from, id, answer),
                Some((id, Message::Ended(info))) => {
                    if let Some(query) = lock(&self.outstanding).get_mut(&id)
                        && query.accepts(rail, from, Some(&info))
                    {
                        query.ended = Some(Instant::now());
                    }
                }
                Some((id, Message::WhoHas(gid))) if lock(&self.device).includes(gid) => {
                    searchers.push((from, id));
                }
                Some((id, Message::Owner(current))) => {
                    let mut outstanding = lock(&self.outstanding);
                    let mut searches = outstanding.values_mut().filter_map(|query| query.search.as_mut());
                    match (searches.find(|search| search.id == id), self.cm_receiver.get()) {
                        (Some(search), _) => search.add_owner(rail, from, current),
                        (None, Some(receiver)) => {
                            receiver.on_owner(id, RailAddress { rail, gid: from }, current);
                        }
                        (None, None) => {}
                    }
                }
                Some((_, Message::Reach(message))) => {
                    let mut reach = lock(&self.reach);
                    if reach.len() < MAX_RECEIVED {
                        reach.push_back((rail, from, message));
                    }
                }
                Some((_, Message::CmConnections(connections))) => match self.cm_receiver.get() {
                    Some(receiver) if receiver.has_connections() => {
                        receiver.on_connections(RailAddress { rail, gid: from }, connections);
                    }
                    _ => unknown.push((from, connections)),
                },
                Some((_, Message::UnknownCmConnections(connections))) => {
                    if let Some(receiver) = self.cm_receiver.get() {
                        receiver.on_unknown_connections(RailAddress { rail, gid: from }, connections);
                    }
                }
                Some((_, Message::WhoHas(_))) => {}
                None if is_of_other_version(bytes) => {
                    let mut outstanding = lock(&self.outstanding);
                    let queries = outstanding.values_mut().filter(|query| query.peer.contains(&from));
                    queries.for_each(|query| query.other_version = true);
                }
                None => {
                    if let Some(receiver) = self.cm_receiver.get() {
                        receiver.on_datagram(RailAddress { rail, gid: from }, bytes);
                    }
                }
            });
            for (from, id) in searchers {
                gsi_qp.send(from, &encode(id, &Message::Owner(lock(&self.device).current)));
            }
            for (from, connections) in unknown {
                gsi_qp.send(from, &encode_unknown_cm_connections(connections));
            }
        }
    }

    /// Stores the first answer to a query of this end, if it comes from an address of the peer.
    fn accept_answer(&self, rail: usize, from: Gid, id: u64, answer: Answer) {
        if let Some(query) = lock(&self.outstanding).get_mut(&id)
            && query.accepts(rail, from, answer.as_deref().and_then(info_part))
        {
            query.answer.get_or_insert(answer);
        }
    }
}

/// If the terms of the peer are others, explains that the peer does not connect. The program at
/// this end may wait for its peer without an error.
pub(super) fn explain_refusal(own: &Terms, peer: &Terms) {
    if let Err(mismatch) = own.check(peer) {
        refusal::explain("the peer's ibv_modify_qp", &mismatch);
    }
}

/// Returns the datagram that states connections of `rdma_cm`.
pub(crate) fn encode_cm_connections(connections: Vec<CmConnection>) -> Vec<u8> {
    encode(0, &Message::CmConnections(connections))
}

/// Returns the datagram that answers such a datagram.
pub(crate) fn encode_unknown_cm_connections(connections: Vec<CmConnection>) -> Vec<u8> {
    encode(0, &Message::UnknownCmConnections(connections))
}

/// Returns the encoded [`ConnectInfo`] in an encoded [`ConnectionData`].
fn info_part(answer: &[u8]) -> Option<&[u8]> {
    let (_, info): (Terms, &[u8]) = Codec::from_bytes(answer).ok()?;
    Some(info)
}

/// Returns the connection data in the answer to a query with the terms `own`.
///
/// # Errors
/// `Invalid` if the peer has no such queue pair, `Mismatch` if it has other terms, or the errors of
/// [`ConnectInfo::decode`].
pub(super) fn connection_info(answer: Answer, own: &Terms) -> Result<ConnectInfo> {
    let answer = answer.ok_or(Error::Invalid(
        "the peer has no such queue pair, or connects it to another device; if its program has ended, its output tells why",
    ))?;
    let data = ConnectionData::from_bytes(&answer).map_err(|_| {
        Error::Invalid(
            "malformed connection data, or of another version of Mitra; run the same version at both ends",
        )
    })?;
    own.check(&data.terms)?;
    ConnectInfo::decode(&data.info)
}

/// Returns the limits of the NIC of a rail other than rail 0. UD queue pairs can be attached to as
/// many multicast groups as `limits` permits, in addition to the group of the rendezvous.
pub(super) fn limits_of_further_rail(limits: Limits) -> Limits {
    let Limits { mcast_groups, mcast_attached, .. } = limits;
    Limits { mcast_groups: mcast_groups + 1, mcast_attached: mcast_attached + 1, ..limits }
}

/// A query of this end. Dropping the value cancels the query.
pub(super) struct Query {
    rendezvous: Arc<Rendezvous>,
    id: u64,
    subject: Subject,
    started: Instant,
    /// The number of transmissions so far, including turns of rails without a known GID. Determines
    /// the rail of the next transmission.
    transmissions: u32,
    next_transmission: Instant,
}

impl Query {
    /// Sends a query to the peer's GID on rail 0, and returns without waiting for the answer. `id`
    /// must be unpredictable, because an attacker who forges an answer has to guess it. `peer`
    /// contains the peer's GIDs by rail, as far as they are known. If the peer does not answer at
    /// these GIDs, `search` finds its other addresses.
    pub(super) fn new(
        rendezvous: &Arc<Rendezvous>,
        id: u64,
        peer: Vec<Gid>,
        subject: Subject,
        search: Option<OwnerSearch>,
    ) -> Query {
        let outstanding = OutstandingQuery { peer, search, answer: None, ended: None, other_version: false };
        lock(&rendezvous.outstanding).insert(id, outstanding);
        let now = Instant::now();
        let mut query = Query {
            rendezvous: Arc::clone(rendezvous),
            id,
            subject,
            started: now,
            transmissions: 0,
            next_transmission: now,
        };
        query.transmit_if_due();
        query
    }

    fn read<T>(&self, field: impl FnOnce(&OutstandingQuery) -> Option<T>) -> Option<T> {
        lock(&self.rendezvous.outstanding).get(&self.id).and_then(field)
    }

    /// Sends the query if it was not yet sent, or if [`RESEND_INTERVAL`] has passed since the last
    /// transmission. Successive transmissions use the rails in turn. Each transmission also goes to
    /// all addresses that the search has found.
    fn transmit_if_due(&mut self) {
        let now = Instant::now();
        if now < self.next_transmission {
            return;
        }
        // The fields are copied, so that the queries are not locked while this function locks a
        // queue pair. `Rendezvous::poll` takes the two locks in the opposite order.
        let Some((peer, search)) = self.read(|query| Some((query.peer.clone(), query.search.clone()))) else {
            return;
        };
        let gsi_qps = &self.rendezvous.gsi_qps;
        let device = lock(&self.rendezvous.device).clone();
        let query = encode(self.id, &Message::Query(self.subject, device));
        let rail = self.transmissions as usize % peer.len().max(1);
        let mut to: Vec<_> = peer.get(rail).map(|&gid| RailAddress { rail, gid }).into_iter().collect();
        if let Some(search) = search {
            to.extend(search.owners());
            if !self.awaits_reset() && owner_search::is_due(self.transmissions, || lock(&gsi_qps[0]).is_up())
            {
                self.rendezvous.ask_group(&search);
            }
        }
        for RailAddress { rail, gid } in to {
            if let Some(gsi_qp) = gsi_qps.get(rail) {
                lock(gsi_qp).send(gid, &query);
            }
        }
        self.transmissions += 1;
        self.next_transmission = now + RESEND_INTERVAL;
    }

    /// Returns whether the peer has said that it must reset its queue pair before it can answer.
    pub(super) fn awaits_reset(&self) -> bool {
        self.read(|query| query.ended).is_some()
    }

    /// Sends the query again at the next poll.
    pub(super) fn resend_soon(&mut self) {
        self.next_transmission = Instant::now();
    }

    /// Returns the answer if a [`Rendezvous::poll`] has received it. Otherwise sends the query
    /// again if that is due. Never blocks.
    ///
    /// # Errors
    /// `Invalid` if neither an answer nor a `Message::Ended` has arrived within
    /// [`Rendezvous::timeout`].
    pub(super) fn poll(&mut self) -> Poll<Result<Answer>> {
        if let Some(answer) = self.read(|query| query.answer.clone()) {
            return Poll::Ready(Ok(answer));
        }
        if self.read(|query| query.ended).unwrap_or(self.started).elapsed() > self.rendezvous.timeout {
            if self.read(|query| Some(query.other_version)) == Some(true) {
                return Poll::Ready(Err(Error::Invalid(
                    "the peer runs another version of Mitra; run the same version at both ends",
                )));
            }
            return Poll::Ready(Err(Error::Invalid(
                "this end has several rails and the peer does not answer for its own; run both ends under `mitra run`, of the same version and with the same number of --rails. \
                 Without addresses, the rails are on loopback addresses, which reach no other machine: on two machines, give both ends \
                 --rails ADDRESS,ADDRESS",
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
