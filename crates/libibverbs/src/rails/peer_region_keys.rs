//! The keys of the peer's memory regions on all rails, as far as a queue pair knows them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::task::Poll;

use mitra_failover::RemoteRegion;
use mitra_verbs::{Gid, Key, SendWr, WcStatus};

use super::rendezvous::{Query, Rendezvous, Subject};

/// Queries that are outstanding ahead of need, at most: fewer than the datagrams that queue pair 1 of the peer takes at once.
const MAX_QUERIES: usize = 16;

/// The keys that are imported into the virtual queue pair, and the queries for others.
#[derive(Default)]
pub(super) struct RegionKeys {
    imported: HashSet<Key>,
    queries: HashMap<Key, Query>,
}

/// The state of a key that is not imported.
pub(super) enum Lookup {
    /// No query for the key is outstanding.
    NotQueried,
    /// The peer has not answered.
    Pending,
    /// The peer's keys on all rails.
    Found(RemoteRegion),
    /// The peer has no region with this key.
    NotFound,
    /// A request that uses the key fails with this status: the peer does not answer, or its answer is malformed or
    /// about another region.
    Failed(WcStatus),
}

impl RegionKeys {
    /// Returns whether a request can be posted: it has no remote key, or its remote key is imported.
    pub(super) fn can_post(&self, wr: &SendWr) -> bool {
        wr.op.remote().is_none_or(|remote| self.imported.contains(&remote.rkey))
    }

    /// Returns whether a query for the key is outstanding or the key is imported.
    pub(super) fn is_requested(&self, key: Key) -> bool {
        self.imported.contains(&key) || self.queries.contains_key(&key)
    }

    /// Returns whether the number of outstanding queries permits one more ahead of need.
    pub(super) fn may_prefetch(&self) -> bool {
        self.queries.len() < MAX_QUERIES
    }

    /// Queries the peer for a key. Never blocks. `id` must be unpredictable.
    pub(super) fn request(&mut self, rendezvous: &Arc<Rendezvous>, id: u64, peer: &[Gid], key: Key) {
        self.queries.insert(key, Query::new(rendezvous, id, peer.to_vec(), Subject::Region(key)));
    }

    /// Sends the outstanding queries again that are due. Never blocks.
    pub(super) fn resend_due(&mut self) {
        self.queries.values_mut().for_each(Query::resend_if_due);
    }

    /// Returns the state of a key that is not imported. Never blocks.
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

    /// Notes that the key is imported into the virtual queue pair.
    pub(super) fn set_imported(&mut self, key: Key) {
        self.queries.remove(&key);
        self.imported.insert(key);
    }

    /// Forgets the answer for a key, so that the next request that uses the key queries the peer again.
    pub(super) fn forget(&mut self, key: Key) {
        self.queries.remove(&key);
    }

    /// Cancels all queries.
    pub(super) fn cancel_queries(&mut self) {
        self.queries.clear();
    }
}
