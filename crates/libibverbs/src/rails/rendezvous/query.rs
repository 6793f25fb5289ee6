//! The queries of this end.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use mitra_verbs::{Error, Gid, Result};

use super::Rendezvous;
use super::message::{Answer, Message, Subject, encode};
use super::owner_search::{self, OwnerSearch};
use crate::common::lock::lock;
use crate::rails::rail_address::{Endpoint, Endpoints, RailAddress};

const RESEND_INTERVAL: Duration = Duration::from_millis(20);

/// The part of a [`Query`] that receives the answer.
pub(super) struct OutstandingQuery {
    /// The peer's GIDs by rail, as far as they are known. Answers from other addresses are dropped.
    pub(super) peer: Vec<Gid>,
    /// How the peer is reached at these GIDs.
    pub(super) endpoint: Endpoint,
    /// The search for more addresses of the peer.
    pub(super) search: Option<OwnerSearch>,
    /// The first answer that has arrived, and the endpoint from which it came.
    answer: Option<(Answer, Endpoint)>,
    /// Whether a process at the peer's address has answered that it has no such object. Another
    /// process there may have it.
    is_denied: bool,
    /// The time of the peer's last `Message::Ended`.
    pub(super) ended: Option<Instant>,
    /// Whether a message of another version has arrived from the peer.
    pub(super) other_version: bool,
}

impl OutstandingQuery {
    /// Returns whether an answer comes from an address of the peer. `data` are the connection data
    /// in the answer.
    pub(super) fn accepts(&self, from: RailAddress, data: Option<&[u8]>) -> bool {
        self.peer.contains(&from.gid) || self.search.as_ref().is_some_and(|search| search.accepts(from, data))
    }

    /// Stores the first answer, unless it denies the object for one process of several.
    pub(super) fn store(&mut self, answer: Answer, from: Endpoint) {
        let speaks_for_address = from == Endpoint::QueuePair1 || from == self.endpoint;
        if answer.is_none() && !speaks_for_address {
            self.is_denied = true;
        } else {
            self.answer.get_or_insert((answer, from));
        }
    }
}

/// A query of this end. Dropping the value cancels the query.
pub(in crate::rails) struct Query {
    rendezvous: Arc<Rendezvous>,
    id: u64,
    subject: Subject,
    pub(super) started: Instant,
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
    pub(in crate::rails) fn new(
        rendezvous: &Arc<Rendezvous>,
        id: u64,
        (peer, endpoint): (Vec<Gid>, Endpoint),
        subject: Subject,
        search: Option<OwnerSearch>,
    ) -> Query {
        let outstanding = OutstandingQuery {
            peer,
            endpoint,
            search,
            answer: None,
            is_denied: false,
            ended: None,
            other_version: false,
        };
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
        let read = self.read(|query| Some((query.peer.clone(), query.endpoint, query.search.clone())));
        let Some((peer, endpoint, search)) = read else { return };
        let ports = &self.rendezvous.ports;
        let device = lock(&self.rendezvous.device).clone();
        let query = encode(self.id, &Message::Query(self.subject, device));
        let rail = self.transmissions as usize % peer.len().max(1);
        let mut to: Vec<_> =
            peer.get(rail).map(|&gid| RailAddress { rail, gid, endpoint }).into_iter().collect();
        if let Some(search) = search {
            to.extend(search.owners());
            if !self.awaits_reset() && owner_search::is_due(self.transmissions, || lock(&ports[0]).is_up()) {
                self.rendezvous.ask_group(&search);
            }
        }
        to.into_iter().for_each(|to| self.rendezvous.send(to, &query));
        self.transmissions += 1;
        self.next_transmission = now + RESEND_INTERVAL;
    }

    /// Returns whether the peer has said that it must reset its queue pair before it can answer.
    pub(in crate::rails) fn awaits_reset(&self) -> bool {
        self.read(|query| query.ended).is_some()
    }

    /// Returns the endpoint from which the answer came, or else that to which the query goes.
    pub(in crate::rails) fn endpoint(&self) -> Endpoint {
        let endpoint =
            self.read(|query| Some(query.answer.as_ref().map_or(query.endpoint, |(_, from)| *from)));
        endpoint.unwrap_or(Endpoint::Any)
    }

    /// Sends the query again at the next poll.
    pub(in crate::rails) fn resend_soon(&mut self) {
        self.next_transmission = Instant::now();
    }

    /// Returns the answer if a [`Rendezvous::poll`] has received it. Otherwise sends the query
    /// again if that is due. Never blocks.
    ///
    /// # Errors
    /// `Invalid` if neither an answer nor a `Message::Ended` has arrived within
    /// [`Rendezvous::timeout`].
    pub(in crate::rails) fn poll(&mut self) -> Poll<Result<Answer>> {
        if let Some((answer, _)) = self.read(|query| query.answer.clone()) {
            return Poll::Ready(Ok(answer));
        }
        if self.read(|query| query.ended).unwrap_or(self.started).elapsed() > self.rendezvous.timeout {
            if self.read(|query| Some(query.other_version)) == Some(true) {
                return Poll::Ready(Err(Error::Invalid(
                    "the peer runs another version of Mitra; run the same version at both ends",
                )));
            }
            if self.read(|query| Some(query.is_denied)) == Some(true) {
                return Poll::Ready(Ok(None));
            }
            let own = lock(&self.rendezvous.ports[0]).endpoints();
            return Poll::Ready(Err(Error::Invalid(why_unanswered(own))));
        }
        self.transmit_if_due();
        Poll::Pending
    }
}

/// Returns why a peer may not have answered a device with the endpoints `own`. NICs of the kernel
/// have no queue pair 1, and use the ports of [`super::control_socket`].
fn why_unanswered(own: Endpoints) -> &'static str {
    if own.has_queue_pair_1 {
        "this end has several rails and the peer does not answer for its own; run both ends under `mitra run`, of the same version and with the same number of --rails. \
         Without addresses, the rails are on loopback addresses, which reach no other machine: on two machines, give both ends \
         --rails ADDRESS,ADDRESS"
    } else {
        "not a Mitra peer: nothing at the peer's address answers for its queue pair on UDP ports 19796 to 20051; run both ends under `mitra run`, of the same version \
         and with the NICs of the same networks in the same order (--device), and let these ports pass"
    }
}

impl Drop for Query {
    fn drop(&mut self) {
        lock(&self.rendezvous.outstanding).remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_explained_by_what_the_device_asks_with() {
        let why = |has_queue_pair_1| why_unanswered(Endpoints { has_queue_pair_1, port: Some(19_796) });
        assert!(why(true).contains("--rails ADDRESS") && !why(true).contains("UDP"), "{}", why(true));
        assert!(why(false).starts_with("not a Mitra peer") && why(false).contains("UDP"), "{}", why(false));
    }
}
