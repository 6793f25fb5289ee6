//! The handling of received messages, ready sockets and expired timers.

mod connections;
mod services;

use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::cm_event::{CmEvent, IdHandle};
use super::connection_table::Entry;
use super::identifier::{Identifier, NetworkState};
use super::manager_state::ManagerState;
use super::neighbour;
use super::network::PeerPath;
use super::peer_watch::{DeviceAddresses, Stated};
use super::protocol::message::Service;
use super::rdma_port::errno_of;
use super::received::{Content, Received};
use super::service_directory::{Answer, ServiceDirectory, answer};
use crate::rails::cm_receiver::{CmConnection, RailAddress};
use mitra_verbs_abi::{RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED};

/// The maximum number of streams that one run of a listener's handler answers. The limit keeps a
/// busy port from delaying the other ports.
const MAX_PER_RUN: usize = 64;
/// How long a listener pauses because the process has no descriptors or memory left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// How often the neighbour table is read while a host is asked for its address.
pub const RESOLUTION_INTERVAL: Duration = Duration::from_millis(20);

impl ManagerState {
    pub fn on_received(&mut self, Received { from, content }: Received, now: Instant) {
        match content {
            Content::Message { transaction, device } => self.on_message(from, device, transaction, now),
            Content::Owner(search, current) => {
                let connections = self.connections.values_mut().filter_map(|entry| entry.path.as_mut());
                let lookups =
                    self.identifiers.values_mut().filter_map(|identifier| match &mut identifier.network {
                        NetworkState::LookingUp(lookup) => lookup.path.as_mut(),
                        _ => None,
                    });
                let mut paths = connections.chain(lookups);
                if let Some(path) = paths.find(|path: &&mut PeerPath| path.search_id() == search) {
                    path.add_owner(from, current);
                }
            }
            Content::Connections(stated) => self.on_stated_connections(from, stated),
            Content::UnknownConnections(unknown) => self.on_unknown_connections(from, unknown, now),
        }
    }

    /// Ends the connections that the peer does not have.
    fn on_unknown_connections(&mut self, from: RailAddress, unknown: Vec<CmConnection>, now: Instant) {
        self.watches.on_answer(from, unknown.is_empty());
        for (own, peer) in unknown {
            if let (Some(entry), Some(network)) = (self.connections.get(own), &self.network)
                && entry.connection.ids().receiver == peer
                && entry.path.as_ref().is_some_and(|path| network.speaks_for_peer(from, path))
            {
                entry.connection.on_peer_lost(now);
                self.flush_connection(own, now);
            }
        }
    }

    /// Answers a statement with the connections that this end does not have, or that have ended.
    fn on_stated_connections(&mut self, from: RailAddress, stated: Vec<CmConnection>) {
        let mut unknown = Vec::new();
        for (peer, own) in stated {
            let known = self
                .connections
                .get(own)
                .filter(|entry| entry.connection.ids().receiver == peer && !entry.connection.has_ended());
            match known {
                None => unknown.push((peer, own)),
                Some(Entry { path: Some(path), .. }) => {
                    path.set_heard(from);
                    self.watches.on_statement(path.gid);
                }
                Some(_) => {}
            }
        }
        if let Some(network) = &self.network {
            network.answer_connections(from, unknown);
        }
    }

    /// Handles a ready socket.
    pub fn on_ready(&mut self, epoll_data: u64, now: Instant) {
        if ServiceDirectory::is_question(epoll_data) {
            let answers = self.directory.on_ready(epoll_data, now);
            self.on_answers(answers, now);
        } else {
            self.answer_requesters(epoll_data, now);
        }
    }

    /// Asks which device serves the destination of an identifier's request.
    pub fn locate(&mut self, handle: IdHandle, service: &Service, now: Instant) {
        let key = (service.space, service.destination);
        let answers = self.directory.ask(&self.epoll, key, handle, now);
        self.on_answers(answers, now);
    }

    fn on_answers(&mut self, answers: impl IntoIterator<Item = (Vec<IdHandle>, Answer)>, now: Instant) {
        let mut unanswered = Vec::new();
        for (handles, answer) in answers {
            for handle in handles {
                let waits = match self.get(handle).map(|identifier| &identifier.network) {
                    Ok(NetworkState::Connected(_)) => self.on_located_connection(handle, answer, now),
                    Ok(NetworkState::LookingUp(_)) => self.on_located_service(handle, answer, now),
                    _ => None,
                };
                unanswered.extend(waits.map(|service| (handle, service)));
            }
        }
        for (handle, service) in unanswered {
            // The next attempt is later, so there is no answer yet.
            self.directory.ask(&self.epoll, (service.space, service.destination), handle, now);
        }
        self.directory.remove_unused();
    }

    /// Handles all expired timers and returns the next deadline.
    pub fn on_timer(&mut self, now: Instant) -> Option<Instant> {
        let answers = self.directory.on_timer(&self.epoll, now);
        self.on_answers(answers, now);
        for id in self.connections.due(now) {
            self.on_connection_timer(id, now);
        }
        for handle in self.select(|identifier| identifier.deadline().is_some_and(|deadline| deadline <= now))
        {
            let Ok(identifier) = self.get(handle) else { continue };
            match &mut identifier.network {
                NetworkState::Listening(listener) => {
                    listener.paused_until = None;
                    if self.watch(handle).is_err() {
                        self.pause_listener(handle, now + ACCEPT_PAUSE);
                    }
                }
                NetworkState::LookingUp(_) => self.on_lookup_timer(handle, now),
                NetworkState::Resolving(_) => self.on_resolution_timer(handle, now),
                _ => {}
            }
        }
        self.watch_peers(now);
        let deadlines = [self.connections.deadline(), self.directory.deadline(), self.watches.deadline()];
        deadlines.into_iter().flatten().chain(self.identifiers().filter_map(Identifier::deadline)).min()
    }

    fn on_resolution_timer(&mut self, handle: IdHandle, now: Instant) {
        let Ok(identifier) = self.get(handle) else { return };
        let (NetworkState::Resolving(resolution), (_, Some(destination))) =
            (&mut identifier.network, identifier.addresses)
        else {
            return;
        };
        let event = if neighbour::is_resolved(destination.ip()) {
            CmEvent::Plain(RDMA_CM_EVENT_ADDR_RESOLVED)
        } else if now >= resolution.deadline {
            identifier.addresses.1 = None;
            CmEvent::Failed(RDMA_CM_EVENT_ADDR_ERROR, Errno::ETIMEDOUT)
        } else {
            resolution.due = now + RESOLUTION_INTERVAL;
            return neighbour::ask_for(destination.ip());
        };
        identifier.network = NetworkState::Idle;
        self.push_event(handle, event);
    }

    /// States the established connections to each device whose time has come, and ends those with a
    /// process that has ended.
    fn watch_peers(&mut self, now: Instant) {
        for device in self.watches.due(now) {
            let Some(network) = &self.network else { return };
            let is_with_device = |entry: &&Entry| entry.is_mitra && entry.connection.depends_on_peer();
            let (mut connections, mut paths) = (Vec::new(), Vec::new());
            for entry in self.connections.values().filter(is_with_device) {
                if let Some(path) = entry.path.as_ref().filter(|path| path.gid == device) {
                    let ids = entry.connection.ids();
                    connections.push((ids.sender, ids.receiver));
                    paths.push((ids.sender, path));
                }
            }
            connections.sort_unstable();
            let decisive = paths.iter().flat_map(|(_, path)| network.decisive_addresses(path));
            let all = paths.iter().flat_map(|(_, path)| path.all_addresses());
            let addresses = DeviceAddresses { decisive: decisive.collect(), all: all.collect() };
            match self.watches.state(network, device, addresses, &connections, now) {
                Stated::IsAnswered => {}
                // One search serves all connections with the device.
                Stated::Unanswered => {
                    let first = paths.iter().min_by_key(|(own, _)| *own);
                    first.into_iter().for_each(|(_, path)| network.find_owner(path));
                }
                Stated::HasEnded => {
                    for (own, _) in connections {
                        if let Some(entry) = self.connections.get(own) {
                            entry.connection.on_peer_lost(now);
                        }
                        self.flush_connection(own, now);
                    }
                }
            }
        }
    }

    /// Tells the streams that wait at a listener the GID of the device.
    fn answer_requesters(&mut self, listener: IdHandle, now: Instant) {
        let network = self.network.as_ref();
        let Some((gid, endpoints)) = network.map(|network| (network.gid(), network.endpoints())) else {
            return;
        };
        for _ in 0..MAX_PER_RUN {
            let Ok(identifier) = self.get(listener) else { return };
            let socket = identifier.port.as_ref().and_then(|port| port.socket());
            let (Some(socket), NetworkState::Listening(_)) = (socket, &identifier.network) else { return };
            match socket.accept() {
                Ok((stream, _)) => answer(&stream, gid, endpoints),
                Err(error) => match errno_of(error) {
                    Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS => {
                        return self.pause_listener(listener, now + ACCEPT_PAUSE);
                    }
                    // The requester has reset its stream.
                    Errno::ECONNABORTED => {}
                    // No stream waits.
                    _ => return,
                },
            }
        }
    }
}
