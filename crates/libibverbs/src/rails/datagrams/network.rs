//! The network of the UD queue pairs of a device: the NICs, the directory of other devices, and the
//! exchange of the directory's messages.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mitra_failover::LocalNic;
use mitra_verbs::{Gid, PortState, Qpn};

use super::address_handles::AddressHandles;
use super::directory::{Directory, Move, Route, is_multicast};
use crate::common::lock::lock;
use crate::rails::rail_address::Endpoint;
use crate::rails::rendezvous::{RailMask, ReachKind, Rendezvous};

/// The maximum number of changes of rails that a process logs.
const MAX_LOGGED_MOVES: u8 = 64;

/// The state that the UD queue pairs of a device share.
pub(crate) struct DatagramNetwork {
    pub(super) nics: Vec<LocalNic>,
    rendezvous: Arc<Rendezvous>,
    pub(super) directory: Mutex<Directory>,
    started: Instant,
    /// The [`RailMask`] of the rails whose NICs answered at the last observation.
    alive: AtomicU8,
    logged_moves: AtomicU8,
    pub(crate) address_handles: AddressHandles,
}

impl DatagramNetwork {
    /// Creates the network over at least two NICs. The GID of a NIC that is dead already is
    /// unknown, and its rail is never used.
    pub(in crate::rails) fn new(nics: &[LocalNic], rendezvous: &Arc<Rendezvous>) -> Arc<DatagramNetwork> {
        let gid = |nic: &LocalNic| nic.provider.query_port().map_or(Gid([0; 16]), |port| port.gid);
        let network = DatagramNetwork {
            nics: nics.to_vec(),
            rendezvous: Arc::clone(rendezvous),
            directory: Mutex::new(Directory::new(nics.iter().map(gid).collect())),
            started: Instant::now(),
            alive: AtomicU8::new(0),
            logged_moves: AtomicU8::new(0),
            address_handles: AddressHandles::new(nics),
        };
        network.observe_ports();
        Arc::new(network)
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    pub(super) fn is_alive(&self, rail: usize) -> bool {
        self.alive.load(Ordering::Acquire) & 1 << rail != 0
    }

    pub(super) fn is_any_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire) != 0
    }

    pub(in crate::rails) fn observe_ports(&self) {
        let (mut alive, mut up): (RailMask, RailMask) = (0, 0);
        let mut gids = lock(&self.directory).own.gids.clone();
        for (rail, nic) in self.nics.iter().enumerate() {
            if let Ok(port) = nic.provider.query_port() {
                alive |= 1 << rail;
                up |= RailMask::from(port.state == PortState::Active) << rail;
                gids[rail] = port.gid;
            }
        }
        self.alive.store(alive, Ordering::Release);
        self.rendezvous.set_device_gid(gids[0]);
        let mut directory = lock(&self.directory);
        directory.set_gids(self.now(), &gids);
        directory.set_up(self.now(), up);
    }

    /// Handles the directory's messages that have arrived, and sends those that are due. Never
    /// waits.
    pub(in crate::rails) fn exchange(&self) {
        for (from, message) in self.rendezvous.take_reach() {
            if let (Endpoint::Socket(_), ReachKind::Ask { qpn, .. }) = (from.endpoint, message.kind)
                && !lock(&self.directory).may_answer_for(qpn)
            {
                continue; // another process at the address may have the queue pair
            }
            let answer = lock(&self.directory).handle(self.now(), from.rail, from.gid, message);
            let Some(answer) = answer else { continue };
            // Each process at the address asks for itself whether this device is reached. The
            // numbers of a queue pair are for all of them: the directory tells a device once.
            if answer.message.qp.is_none() && (answer.rail, answer.to) == (from.rail, Some(from.gid)) {
                self.rendezvous.reply_reach(from, answer.message);
            } else {
                self.rendezvous.send_reach(answer.rail, answer.to, answer.message);
            }
        }
        // The lock of the directory is not held while the messages are sent, because the posts of
        // programs need it.
        let due = lock(&self.directory).poll_transmit(self.now());
        for message in due {
            self.rendezvous.send_reach(message.rail, message.to, message.message);
        }
    }

    /// Returns the way of a datagram, as [`Directory::route`] does, and logs changes of rails.
    pub(super) fn route(&self, own: Qpn, gid: Gid, qpn: Qpn) -> Route {
        let mut directory = lock(&self.directory);
        let route = directory.route(self.now(), own, gid, qpn);
        let moves = directory.take_moves();
        drop(directory);
        for Move { device, from, to } in moves {
            let logged = self.logged_moves.load(Ordering::Relaxed);
            if logged < MAX_LOGGED_MOVES {
                self.logged_moves.store(logged + 1, Ordering::Relaxed);
                tracing::warn!("datagrams to {device} moved from rail {from} to rail {to}");
            }
        }
        route
    }

    /// Returns the rail for datagrams to multicast groups, as [`Directory::multicast_rail`] does.
    /// First sends the announcement of the queue pair, if it is due, so that receivers know the
    /// sender of the datagram.
    pub(super) fn multicast_rail(&self, own: Qpn) -> usize {
        let (rail, is_announcement_due) = lock(&self.directory).multicast_rail(self.now(), own);
        if is_announcement_due {
            self.exchange();
        }
        rail
    }

    /// Returns the GID and the number by which programs know the sender of a datagram to `to`, as
    /// [`Directory::identify`] does. If the sender is unknown, first handles the messages that have
    /// arrived, because the sender states its addresses before it sends a datagram.
    pub(super) fn identify(&self, rail: usize, (gid, qpn): (Gid, Qpn), to: Gid) -> Option<(Gid, Qpn)> {
        // On rail 0, an unknown GID counts as a sender on rail 0. It may be the address of a device
        // on another rail, because a datagram to a group arrives on all rails of one network. So
        // the announcements that have arrived are handled first.
        if rail == 0 && is_multicast(to) && !lock(&self.directory).is_known(gid) {
            self.exchange();
        }
        let known = lock(&self.directory).identify(self.now(), rail, gid, qpn);
        known.or_else(|| {
            self.exchange();
            lock(&self.directory).identify(self.now(), rail, gid, qpn)
        })
    }
}
