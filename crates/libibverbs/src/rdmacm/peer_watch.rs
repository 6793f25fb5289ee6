//! Notices that the process of a peer has ended.
//!
//! The kernel's connection manager ends the connections of a process that is killed. A software NIC
//! ends with its process, and tells nobody. While there are established connections with one of
//! Mitra's devices, this end therefore states them to the device once a second. The device answers
//! with those that it does not have, because its process was started again or because a DREQ was
//! lost. A host whose process has ended refuses the statement. A device that only does not answer
//! may have lost its links, and is waited for. It is then searched for on the other rails, and
//! stated to at all of its addresses. Before that, only the address at which it was heard learns
//! the communication ids, because any host can claim to be the device (docs/security.md).

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use mitra_verbs::Gid;

use super::network::Network;
use super::refusals::Refusals;
use crate::rails::cm_receiver::{CmConnection, MAX_CM_CONNECTIONS, RailAddress};

const INTERVAL: Duration = Duration::from_secs(1);
/// The time to the next statement after one was refused.
const REFUSED_INTERVAL: Duration = Duration::from_millis(400);
/// The number of refused statements after which the process has ended. They take longer than
/// [`INTERVAL`], so that a peer whose address has changed is heard before.
const MAX_REFUSED: u32 = 4;

/// The addresses of a device, from the paths of all connections with it.
pub struct DeviceAddresses {
    /// Those of [`Network::decisive_addresses`].
    pub decisive: BTreeSet<RailAddress>,
    pub all: BTreeSet<RailAddress>,
}

/// The result of a statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stated {
    /// The device has answered the statement before, or this one is the first.
    IsAnswered,
    Unanswered,
    /// The device's process has ended.
    HasEnded,
}

struct Watch {
    due: Instant,
    refusals: Refusals,
    /// Where the last statement went.
    stated: BTreeSet<RailAddress>,
    /// Whether the device was heard after the last statement.
    is_answered: bool,
    /// The index of the next connection to state.
    next: usize,
}

#[derive(Default)]
pub struct PeerWatches(HashMap<Gid, Watch>);

impl PeerWatches {
    /// Begins to watch the device of an established connection.
    pub fn add(&mut self, device: Gid, now: Instant) {
        self.0.entry(device).or_insert_with(|| Watch {
            due: now + INTERVAL,
            refusals: Refusals::default(),
            stated: BTreeSet::new(),
            is_answered: true,
            next: 0,
        });
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.0.values().map(|watch| watch.due).min()
    }

    pub fn due(&self, now: Instant) -> Vec<Gid> {
        self.0.iter().filter(|(_, watch)| watch.due <= now).map(|(device, _)| *device).collect()
    }

    /// The device at an address has answered a statement. `has_all` tells whether it has all of the
    /// connections: only a peer does. At an address that does not decide, another device may have
    /// answered that it has none.
    pub fn on_answer(&mut self, from: RailAddress, has_all: bool) {
        let is_peer =
            |watch: &&mut Watch| watch.refusals.names(from) || has_all && watch.stated.contains(&from);
        self.0.values_mut().filter(is_peer).for_each(Watch::on_heard);
    }

    /// The device has stated a connection with this end.
    pub fn on_statement(&mut self, device: Gid) {
        self.0.get_mut(&device).into_iter().for_each(Watch::on_heard);
    }

    /// States connections with a device. Without connections, the watch ends.
    pub fn state(
        &mut self,
        network: &Network,
        device: Gid,
        addresses: DeviceAddresses,
        connections: &[CmConnection],
        now: Instant,
    ) -> Stated {
        let Some(watch) = self.0.get_mut(&device).filter(|_| !connections.is_empty()) else {
            self.0.remove(&device);
            return Stated::IsAnswered;
        };
        if watch.refusals.count(network, addresses.decisive.iter().copied()) >= MAX_REFUSED {
            self.0.remove(&device);
            return Stated::HasEnded;
        }
        watch.due = now + if watch.refusals.is_any() { REFUSED_INTERVAL } else { INTERVAL };
        let is_answered = std::mem::take(&mut watch.is_answered);
        watch.stated = if is_answered { addresses.decisive } else { addresses.all };
        let stated: Vec<CmConnection> = (0..connections.len().min(MAX_CM_CONNECTIONS))
            .map(|i| connections[(watch.next + i) % connections.len()])
            .collect();
        watch.next = watch.next.wrapping_add(stated.len());
        for &address in &watch.stated {
            network.state_connections(address, stated.clone());
        }
        if is_answered { Stated::IsAnswered } else { Stated::Unanswered }
    }
}

impl Watch {
    fn on_heard(&mut self) {
        self.refusals.reset();
        self.is_answered = true;
    }
}
