//! Notices that the process of a peer has ended.
//!
//! The kernel's connection manager ends the connections of a process that is killed. A software NIC
//! ends with its process, and tells nobody. While there are established connections with one of
//! Mitra's devices, this end therefore states them to the device once a second. The device answers
//! with those that it does not have, because its process was started again or because a DREQ was
//! lost. A host whose process has ended refuses the statement. A device that only does not answer
//! may have lost its links, and is waited for.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use mitra_verbs::Gid;

use super::network::Network;
use super::refusals::Refusals;
use crate::rails::cm_receiver::{CmConnection, MAX_CM_CONNECTIONS};

const INTERVAL: Duration = Duration::from_secs(1);
/// The time to the next statement after one was refused.
const REFUSED_INTERVAL: Duration = Duration::from_millis(400);
/// The number of refused statements in succession after which the process has ended. They take
/// longer than [`INTERVAL`], so that a peer whose address has changed is heard before.
const MAX_REFUSED: u32 = 4;

struct Watch {
    due: Instant,
    refusals: Refusals,
    /// The index of the next connection to state.
    next: usize,
}

#[derive(Default)]
pub struct PeerWatches(HashMap<Gid, Watch>);

impl PeerWatches {
    /// Begins to watch the device of an established connection.
    pub fn add(&mut self, device: Gid, now: Instant) {
        let watch = Watch { due: now + INTERVAL, refusals: Refusals::default(), next: 0 };
        self.0.entry(device).or_insert(watch);
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.0.values().map(|watch| watch.due).min()
    }

    pub fn due(&self, now: Instant) -> Vec<Gid> {
        self.0.iter().filter(|(_, watch)| watch.due <= now).map(|(device, _)| *device).collect()
    }

    /// The device at an address has answered a statement.
    pub fn on_answer(&mut self, address: (usize, Gid)) {
        for watch in self.0.values_mut().filter(|watch| watch.refusals.names(address)) {
            watch.refusals.reset();
        }
    }

    /// The device has stated a connection with this end.
    pub fn on_statement(&mut self, device: Gid) {
        if let Some(watch) = self.0.get_mut(&device) {
            watch.refusals.reset();
        }
    }

    /// States connections with a device, at each of its addresses. Returns whether its process has
    /// ended. Without connections, the watch ends.
    pub fn state(
        &mut self,
        network: &Network,
        device: Gid,
        addresses: Vec<(usize, Gid)>,
        connections: &[CmConnection],
        now: Instant,
    ) -> bool {
        let Some(watch) = self.0.get_mut(&device) else { return false };
        if connections.is_empty() {
            self.0.remove(&device);
            return false;
        }
        let refused = watch.refusals.count(network, addresses.clone());
        if refused >= MAX_REFUSED {
            self.0.remove(&device);
            return true;
        }
        watch.due = now + if refused > 0 { REFUSED_INTERVAL } else { INTERVAL };
        let stated: Vec<CmConnection> = (0..connections.len().min(MAX_CM_CONNECTIONS))
            .map(|i| connections[(watch.next + i) % connections.len()])
            .collect();
        watch.next = watch.next.wrapping_add(stated.len());
        for address in addresses {
            network.state_connections(address, stated.clone());
        }
        false
    }
}
