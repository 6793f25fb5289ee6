//! The exchange by which the Mitra libraries of two programs obtain the connection data and the
//! keys of all rails.
//!
//! The programs exchange GIDs, queue pair numbers and rkeys by their own means. All of these belong
//! to rail 0. With them, each library queries the other for the data to connect a queue pair on all
//! rails, and for the keys of a memory region on all rails. Queries and answers are datagrams
//! between the queue pairs 1 (general services interface) of the NICs, or between UDP sockets where
//! the kernel owns that queue pair ([`control_port`]). A query is sent again until its answer
//! arrives or it times out.
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
mod control_port;
mod control_socket;
mod device_gid;
mod gsi_qp;
mod message;
mod owner_search;
mod query;
mod reach_message;
mod socket_refusals;
mod terms;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::net::UdpSocket;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use mitra_failover::{ConnectInfo, LocalNic};
use mitra_verbs::{Codec, CqId, Error, Gid, Limits, Qpn, Result};

pub(super) use self::answer_of_one_rail::{OneRail, limits_of_nic, limits_of_program};
use self::control_port::ControlPort;
pub(super) use self::device_gid::DeviceGid;
use self::message::{Answer, Message, decode, encode, is_of_other_version};
pub(super) use self::message::{ConnectionData, Subject};
pub(crate) use self::owner_search::{OwnerSearch, is_due as is_search_due};
use self::query::OutstandingQuery;
pub(super) use self::query::Query;
pub(super) use self::reach_message::{DeviceAddress, QpNumbers, RailMask, Reach, ReachKind};
pub(super) use self::terms::Terms;
use crate::common::lock::lock;
use crate::common::refusal;
use crate::rails::cm_receiver::{CmConnection, SharedReceiver};
use crate::rails::rail_address::{Endpoint, Endpoints, RailAddress};

/// The maximum length of a datagram, in bytes.
const MAX_MESSAGE: usize = 512;
pub(super) const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of received queries that wait for an answer. Further queries are dropped, and
/// their senders send them again.
const MAX_RECEIVED: usize = 256;

/// The control ports of all rails, the queries that peers have sent, and the queries of this end.
pub(super) struct Rendezvous {
    ports: Vec<Mutex<ControlPort>>,
    /// The present and former GIDs of this device's rail 0.
    device: Mutex<DeviceGid>,
    /// The queries of peers that wait for an answer.
    received: Mutex<VecDeque<ReceivedQuery>>,
    /// The queries of this end, by id.
    outstanding: Mutex<HashMap<u64, OutstandingQuery>>,
    /// The messages about UD queue pairs that were not yet taken, each with the address from which
    /// it came.
    reach: Mutex<VecDeque<(RailAddress, Reach)>>,
    pub(super) cm_receiver: SharedReceiver,
    timeout: Duration,
}

pub(super) enum PeerConnection {
    /// The data, and how the peer's process is reached.
    Data(ConnectInfo, Endpoint),
    /// The peer has not reset its queue pair since the last connection ended. The query continues,
    /// and is answered once the peer has reset the queue pair.
    AwaitsReset(Query),
}

/// A query that a peer has sent, and that waits for an answer.
pub(super) struct ReceivedQuery {
    /// Where the query came from, and is answered.
    pub(super) from: RailAddress,
    /// The GID of the sender's device, as the sender states it.
    pub(super) device: DeviceGid,
    id: u64,
    pub(super) subject: Subject,
}

impl Rendezvous {
    /// Opens the control port of each rail.
    ///
    /// # Errors
    /// The error of the first NIC that refuses.
    pub(super) fn new(nics: &[LocalNic], timeout: Duration) -> Result<Arc<Rendezvous>> {
        let device = nics[0].provider.query_port()?.gid;
        let sockets = ControlPort::open_sockets(nics.iter());
        let open = |(nic, socket)| ControlPort::new(nic, None, socket).map(Mutex::new);
        let ports: Vec<_> = nics.iter().zip(sockets).map(open).collect::<Result<_>>()?;
        for (rail, port) in ports.iter().enumerate().skip(1) {
            // Without the group, peers reach this device only by the GID of rail 0.
            if let Err(error) = lock(port).join_group() {
                tracing::debug!("rail {rail} cannot be searched for the device's GID: {error}");
            }
        }
        Ok(Arc::new(Rendezvous {
            ports,
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
        for port in &self.ports {
            // A dead NIC receives nothing.
            let _ = lock(port).arm();
        }
    }

    /// Returns the sockets of all rails, for a thread that waits until one is readable.
    pub(super) fn sockets(&self) -> Vec<Arc<UdpSocket>> {
        self.ports.iter().flat_map(|port| lock(port).sockets().collect::<Vec<_>>()).collect()
    }

    /// Returns a number that changes when the host at an address says that no process has the port
    /// of the socket. `None` for queue pair 1.
    pub(super) fn refusals(&self, at: RailAddress) -> Option<u64> {
        self.ports.get(at.rail).and_then(|port| lock(port).refusals(at))
    }

    pub(super) fn endpoints(&self) -> Endpoints {
        lock(&self.ports[0]).endpoints()
    }

    /// Handles an event of a completion queue on a rail. If the event reports a datagram, requests
    /// the next event. The caller must then call [`Rendezvous::poll`].
    pub(super) fn on_event(&self, rail: usize, cq: CqId) {
        let Some(port) = self.ports.get(rail).map(lock) else { return };
        if port.receives_in(cq) {
            // A dead NIC receives nothing.
            let _ = port.arm();
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
        let mut query =
            Query::new(self, id, (vec![gid], Endpoint::Any), Subject::Connection { qpn, terms }, search);
        loop {
            self.poll();
            match query.poll() {
                Poll::Ready(answer) => {
                    let info = connection_info(answer?, &terms)?;
                    return Ok(PeerConnection::Data(info, query.endpoint()));
                }
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
        self.send(query.from, &encode(query.id, &Message::Answer(answer)));
    }

    /// Answers a query about a queue pair that the program has not reset since its connection
    /// ended. `info` are the data of the ended connection, by which the peer recognizes this
    /// device.
    pub(super) fn answer_ended(&self, query: &ReceivedQuery, info: &ConnectInfo) {
        self.send(query.from, &encode(query.id, &Message::Ended(info.encode())));
    }

    pub(super) fn take_reach(&self) -> VecDeque<(RailAddress, Reach)> {
        self.poll();
        std::mem::take(&mut lock(&self.reach))
    }

    /// Sends a message about a UD queue pair on a rail. `to` is the destination, or `None` for the
    /// multicast group of the rendezvous.
    pub(super) fn send_reach(&self, rail: usize, to: Option<Gid>, reach: Reach) {
        let Some(port) = self.ports.get(rail) else { return };
        let bytes = encode(0, &Message::Reach(reach));
        match to {
            Some(to) => lock(port).send(to, Endpoint::Any, &bytes),
            None => lock(port).send_to_group(&bytes),
        }
    }

    /// Answers a message about a UD queue pair where it came from.
    pub(super) fn reply_reach(&self, to: RailAddress, reach: Reach) {
        self.send(to, &encode(0, &Message::Reach(reach)));
    }

    /// Sends a datagram.
    pub(super) fn send(&self, to: RailAddress, bytes: &[u8]) {
        if let Some(port) = self.ports.get(to.rail) {
            lock(port).send(to.gid, to.endpoint, bytes);
        }
    }

    /// Asks the group on all rails but the first which device has the GID of the search.
    pub(super) fn ask_group(&self, search: &OwnerSearch) {
        let question = encode(search.id, &Message::WhoHas(search.gid));
        self.ports[1..].iter().for_each(|port| lock(port).send_to_group(&question));
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Receives the datagrams that have arrived on all rails, stores the queries and answers, and
    /// answers searches for this device. Never waits for a datagram.
    pub(super) fn poll(&self) {
        for (rail, port) in self.ports.iter().enumerate() {
            let mut replies = Vec::new();
            let mut port = lock(port);
            port.poll(|gid, endpoint, bytes| {
                let from = RailAddress { rail, gid, endpoint };
                replies.extend(self.receive(from, bytes).map(|reply| (from, reply)));
            });
            for (to, reply) in replies {
                port.send(to.gid, to.endpoint, &reply);
            }
        }
    }

    /// Handles a datagram. Returns the reply if there is one.
    fn receive(&self, from: RailAddress, bytes: &[u8]) -> Option<Vec<u8>> {
        let Some((id, message)) = decode(bytes) else {
            if is_of_other_version(bytes) {
                let mut outstanding = lock(&self.outstanding);
                let queries = outstanding.values_mut().filter(|query| query.peer.contains(&from.gid));
                queries.for_each(|query| query.other_version = true);
            } else if let Some(receiver) = self.cm_receiver.get() {
                receiver.on_datagram(from, bytes);
            }
            return None;
        };
        match message {
            Message::Query(subject, device) => {
                let mut received = lock(&self.received);
                if received.len() < MAX_RECEIVED {
                    received.push_back(ReceivedQuery { from, device, id, subject });
                }
            }
            Message::Answer(answer) => self.accept_answer(from, id, answer),
            Message::Ended(info) => {
                if let Some(query) = lock(&self.outstanding).get_mut(&id)
                    && query.accepts(from, Some(&info))
                {
                    query.ended = Some(Instant::now());
                    query.endpoint = from.endpoint;
                }
            }
            Message::WhoHas(gid) => {
                let device = lock(&self.device);
                return device.includes(gid).then(|| encode(id, &Message::Owner(device.current)));
            }
            Message::Owner(current) => {
                let mut outstanding = lock(&self.outstanding);
                let mut searches = outstanding.values_mut().filter_map(|query| query.search.as_mut());
                match (searches.find(|search| search.id == id), self.cm_receiver.get()) {
                    (Some(search), _) => search.add_owner(from, current),
                    (None, Some(receiver)) => receiver.on_owner(id, from, current),
                    (None, None) => {}
                }
            }
            Message::Reach(message) => {
                let mut reach = lock(&self.reach);
                if reach.len() < MAX_RECEIVED {
                    reach.push_back((from, message));
                }
            }
            Message::CmConnections(connections) => match self.cm_receiver.get() {
                Some(receiver) if receiver.has_connections() => receiver.on_connections(from, connections),
                _ => return Some(encode_unknown_cm_connections(connections)),
            },
            Message::UnknownCmConnections(connections) => {
                if let Some(receiver) = self.cm_receiver.get() {
                    receiver.on_unknown_connections(from, connections);
                }
            }
        }
        None
    }

    /// Stores the first answer to a query of this end, if it comes from an address of the peer.
    fn accept_answer(&self, from: RailAddress, id: u64, answer: Answer) {
        if let Some(query) = lock(&self.outstanding).get_mut(&id)
            && query.accepts(from, answer.as_deref().and_then(info_part))
        {
            query.store(answer, from.endpoint);
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
