//! The peer's memory regions whose keys on all rails a queue pair knows, and the queries for the keys of others.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::task::Poll;

use mitra_failover::RemoteRegion;
use mitra_verbs::{Gid, Key, Qpn, SendWr, WcStatus};

use super::rendezvous::{Query, Rendezvous, Subject};

/// The number of outstanding queries from which on no key is queried before it is needed. It is less than the number of receives that
/// queue pair 1 of the peer has posted.
const MAX_QUERIES: usize = 16;

/// The rkeys of the regions that are imported into the virtual queue pair, and the outstanding queries by rkey.
#[derive(Default)]
pub(super) struct RegionKeys {
    imported: HashSet<Key>,
    queries: HashMap<Key, Query>,
}

/// The state of the query for a key that is not imported.
pub(super) enum Lookup {
    /// No query for the key is outstanding.
    NotQueried,
    /// The peer has not yet answered.
    Pending,
    /// The peer answered with the region's keys on all rails.
    Found(RemoteRegion),
    /// The peer answered that it has no region with this key.
    NotFound,
    /// The query timed out, or its answer is malformed or about another region. A request that uses the key fails with this status.
    Failed(WcStatus),
}

impl RegionKeys {
    /// Returns whether a request can be posted, because it has no remote key or its remote key is imported.
    pub(super) fn can_post(&self, wr: &SendWr) -> bool {
        wr.op.remote_key().is_none_or(|key| self.imported.contains(&key))
    }

    /// Returns whether a query for the key is outstanding or the key is imported.
    pub(super) fn is_requested(&self, key: Key) -> bool {
        self.imported.contains(&key) || self.queries.contains_key(&key)
    }

    /// Returns whether so few queries are outstanding that a key may be queried before it is needed.
    pub(super) fn may_prefetch(&self) -> bool {
        self.queries.len() < MAX_QUERIES
    }

    /// Queries the peer for the region of a key, without waiting for the answer. `qpn` is the peer's queue pair, whose protection domain must
    /// contain the region. `id` must be unpredictable (see [`Query::new`]).
    pub(super) fn request(
        &mut self,
        rendezvous: &Arc<Rendezvous>,
        id: u64,
        peer: &[Gid],
        qpn: Qpn,
        key: Key,
    ) {
        let query = Query::new(rendezvous, id, peer.to_vec(), Subject::Region { qpn, key });
        self.queries.insert(key, query);
    }

    /// Sends those outstanding queries again that are due. Never blocks.
    pub(super) fn resend_due(&mut self) {
        self.queries.values_mut().for_each(Query::resend_if_due);
    }

    /// Returns the state of the query for a key that is not imported, and sends the query again if that is due. Never blocks.
    pub(super) fn lookup(&mut self, key: Key) -> Lookup {
        let Some(query) = self.queries.get_mut(&key) else { return Lookup::NotQueried };
        match query.poll() {
            Poll::Pending => Lookup::Pending,
            Poll::Ready(Ok(None)) => Lookup::NotFound,
            Poll::Ready(Ok(Some(body))) => match RemoteRegion::decode(&body) {
                Ok(region) if region.at(0).rkey == key => Lookup::Found(region),
                Ok(_) | Err(_) => Lookup::Failed(WcStatus::BadResponse),
            },
            Poll::Ready(Err(_)) => Lookup::Failed(WcStatus::RetryExceeded),
        }
    }

    /// Records that the region of a key is imported into the virtual queue pair, and removes the query.
    pub(super) fn set_imported(&mut self, key: Key) {
        self.queries.remove(&key);
        self.imported.insert(key);
    }

    /// Removes the query for a key and its answer, so that the next request that uses the key queries the peer again.
    pub(super) fn forget(&mut self, key: Key) {
        self.queries.remove(&key);
    }

    /// Cancels all queries.
    pub(super) fn cancel_queries(&mut self) {
        self.queries.clear();
    }
}
