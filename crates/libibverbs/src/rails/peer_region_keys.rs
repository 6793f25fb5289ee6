//! What a queue pair knows of its peer: the keys of memory regions on all rails, the shared receive
//! queues, and the outstanding queries for both.

use std::collections::{HashMap, HashSet};
use std::task::Poll;

use mitra_failover::RemoteRegion;
use mitra_verbs::{Key, Qpn, SendWr, Srqn, WcStatus};

use super::rendezvous::{Query, Subject};

/// The number of outstanding queries at which prefetching stops. It is less than the number of
/// receives that queue pair 1 of the peer has posted.
const MAX_QUERIES: usize = 16;

/// An object of the peer that a request names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum PeerObject {
    /// The region with this rkey.
    Region(Key),
    /// The shared receive queue with this number.
    SharedReceiveQueue(Srqn),
}

impl PeerObject {
    /// `qpn` is the peer's queue pair, whose protection domain or XRC domain must contain the
    /// object.
    pub(super) fn subject(self, qpn: Qpn) -> Subject {
        match self {
            PeerObject::Region(key) => Subject::Region { qpn, key },
            PeerObject::SharedReceiveQueue(number) => Subject::SharedReceiveQueue { qpn, number },
        }
    }
}

pub(super) struct RegionKeys {
    /// Whether each request names a shared receive queue, because the queue pair sends by XRC.
    names_queues: bool,
    imported: HashSet<PeerObject>,
    /// The outstanding queries. Removing a query cancels it.
    pub(super) queries: HashMap<PeerObject, Query>,
}

/// The state of the query for an object that is not imported.
pub(super) enum Lookup {
    /// No query for the object is outstanding.
    NotQueried,
    /// The peer has not yet answered.
    Pending,
    /// The peer answered with the region's keys on all rails.
    Found(RemoteRegion),
    /// The peer answered that it has the shared receive queue.
    FoundQueue,
    /// The peer answered that it has no such object.
    NotFound,
    /// The query timed out, or its answer is malformed or about another region. A request that
    /// names the object fails with this status.
    Failed(WcStatus),
}

impl RegionKeys {
    pub(super) fn new(names_queues: bool) -> RegionKeys {
        RegionKeys { names_queues, imported: HashSet::new(), queries: HashMap::new() }
    }

    fn named(&self, wr: &SendWr) -> impl Iterator<Item = PeerObject> + use<> {
        let queue = self.names_queues.then_some(PeerObject::SharedReceiveQueue(wr.remote_srq));
        queue.into_iter().chain(wr.op.remote_key().map(PeerObject::Region))
    }

    /// Returns whether all objects that a request names are imported, so that it can be posted.
    pub(super) fn can_post(&self, wr: &SendWr) -> bool {
        self.named(wr).all(|object| self.imported.contains(&object))
    }

    /// Returns the first object that a request names and that is not imported.
    pub(super) fn missing(&self, wr: &SendWr) -> Option<PeerObject> {
        self.named(wr).find(|object| !self.imported.contains(object))
    }

    /// Returns the objects that a request names, that are not imported, and for which no query is
    /// outstanding.
    pub(super) fn unrequested(&self, wr: &SendWr) -> Vec<PeerObject> {
        self.named(wr)
            .filter(|object| !self.imported.contains(object) && !self.queries.contains_key(object))
            .collect()
    }

    /// Returns whether an object may be queried before it is needed.
    pub(super) fn may_prefetch(&self) -> bool {
        self.queries.len() < MAX_QUERIES
    }

    /// Returns the state of the query for an object that is not imported, and sends the query again
    /// if that is due. Never blocks.
    pub(super) fn lookup(&mut self, object: PeerObject) -> Lookup {
        let Some(query) = self.queries.get_mut(&object) else { return Lookup::NotQueried };
        match query.poll() {
            Poll::Pending => Lookup::Pending,
            Poll::Ready(Ok(None)) => Lookup::NotFound,
            Poll::Ready(Ok(Some(body))) => match (object, RemoteRegion::decode(&body)) {
                (PeerObject::Region(key), Ok(region)) if region.at(0).rkey == key => Lookup::Found(region),
                (PeerObject::SharedReceiveQueue(_), _) if body.is_empty() => Lookup::FoundQueue,
                _ => Lookup::Failed(WcStatus::BadResponse),
            },
            Poll::Ready(Err(_)) => Lookup::Failed(WcStatus::RetryExceeded),
        }
    }

    /// Records that a region is imported into the virtual queue pair or that the peer has a shared
    /// receive queue, and removes the query.
    pub(super) fn set_imported(&mut self, object: PeerObject) {
        self.queries.remove(&object);
        self.imported.insert(object);
    }
}
