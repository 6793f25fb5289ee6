//! The addresses of other devices, as their messages state them, and how they may change.

use std::collections::BTreeSet;
use std::time::Duration;

use mitra_verbs::Gid;

use super::{Directory, MAX_DESTINATIONS, MAX_PEERS, Peer, QpTable};
use crate::rails::rendezvous::DeviceAddress;

impl Directory {
    /// Records the address that a device has stated in a message on `rail`. Returns false if the
    /// device is alive at other addresses, and the message does not come from one of them.
    pub(super) fn accept(&mut self, now: Duration, rail: usize, address: DeviceAddress) -> bool {
        let gid = address.gids[0];
        let from = (rail, address.gids[rail]);
        let former = address.device.former.clone();
        // A message from a changed address does not prove that the device is the same. A message
        // from an unchanged address on another rail does.
        let is_unproven = |old: &Peer| old.is_alive(now) && !old.is_at(from) && old.shares_rail(&address);
        if former.iter().filter_map(|gid| self.peers.get(gid)).any(is_unproven) {
            return false;
        }
        let mut is_same = false;
        if let Some(peer) = self.peers.get_mut(&gid) {
            is_same = peer.address.gids == address.gids;
            // While the device is alive, only a message from a known address changes its other
            // addresses.
            if !is_same && !peer.is_at(from) && peer.is_alive(now) {
                return false;
            }
            if is_same {
                (peer.address, peer.heard, peer.misses[rail]) = (address.clone(), now, 0);
            }
        }
        if !is_same {
            self.replace_peer(now, from, address);
        }
        for former in former {
            self.rename(now, former, gid);
        }
        true
    }

    /// Records a new device, or new addresses of a known device. `from` is the rail and the address
    /// of the device's message. If a known device already had the address `from`, its other data
    /// stay.
    fn replace_peer(&mut self, now: Duration, from: (usize, Gid), address: DeviceAddress) {
        let gid = address.gids[0];
        let mut peer = Peer {
            misses: Vec::new(),
            address: address.clone(),
            current: 0,
            qps: QpTable::default(),
            told: BTreeSet::new(),
            heard: now,
            sent: None,
            asked: None,
            next_probe: now,
            tells_left: 0,
        };
        for known in address.device.former.iter().chain([&gid]) {
            let is_followed = |old: &Peer| *known == gid || old.is_at(from) || !old.is_alive(now);
            if !self.peers.get(known).is_some_and(is_followed) {
                continue;
            }
            self.renamed.values_mut().filter(|present| *present == known).for_each(|present| *present = gid);
            let Some(old) = self.forget_peer(*known) else { continue };
            peer = if old.is_at(from) { old } else { Peer { sent: old.sent, ..peer } };
        }
        if self.peers.len() >= MAX_PEERS {
            let oldest = self.peers.iter().min_by_key(|(_, peer)| peer.heard).map(|(gid, _)| *gid);
            if let Some(oldest) = oldest {
                self.forget_peer(oldest);
                self.renamed.retain(|_, present| *present != oldest);
            }
        }
        for (rail, of_rail) in address.gids.iter().enumerate() {
            self.by_address.insert((rail, *of_rail), gid);
        }
        let misses = vec![0; address.gids.len()];
        self.peers.insert(gid, Peer { misses, address, heard: now, ..peer });
        // From now on, a program that uses this GID means this device.
        self.renamed.remove(&gid);
    }

    /// Records a former GID of a device, if a program uses this GID and no other live device has or
    /// had it.
    fn rename(&mut self, now: Duration, former: Gid, gid: Gid) {
        let is_used = self.destinations_at(former).next().is_some();
        let other = self.peers.get(&former).or_else(|| self.peers.get(self.renamed.get(&former)?));
        let is_taken = other.is_some_and(|other| other.address.gids[0] != gid && other.is_alive(now));
        if is_used && !is_taken {
            if self.renamed.len() >= MAX_DESTINATIONS {
                self.renamed.pop_first();
            }
            self.renamed.insert(former, gid);
        }
    }

    fn forget_peer(&mut self, gid: Gid) -> Option<Peer> {
        let peer = self.peers.remove(&gid)?;
        for address in peer.address.gids.iter().copied().enumerate() {
            if self.by_address.get(&address) == Some(&gid) {
                self.by_address.remove(&address);
            }
        }
        Some(peer)
    }
}
