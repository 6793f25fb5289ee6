//! Requests for connections, and the messages of connections.

use std::time::Instant;

use mitra_os_util::random::random_u64;
use mitra_verbs::{Gid, Psn};
use nix::errno::Errno;

use crate::rails::cm_receiver::{Endpoint, RailAddress};
use crate::rdmacm::cm_event::{CmEvent, IdHandle};
use crate::rdmacm::connection_table::{ConnectionTable, Entry};
use crate::rdmacm::identifier::{NegotiatedParams, NetworkState};
use crate::rdmacm::manager_state::ManagerState;
use crate::rdmacm::network::{PeerPath, is_mitra};
use crate::rdmacm::protocol::connection::{Connection, ConnectionEvent};
use crate::rdmacm::protocol::message::{
    Answered, ConnectionParams, Ids, Message, Rejection, Request, Service, Transaction, reject_reason,
};
use crate::rdmacm::rdma_port::{Port, errno_of};
use crate::rdmacm::refusals::Refusals;
use crate::rdmacm::service_directory::Answer;
use crate::rdmacm::unreachable;

/// The number of refused messages after which the peer's process has ended.
pub(super) const MAX_REFUSED: u32 = 4;

impl ManagerState {
    /// Starts to connect an identifier. The REQ is sent when the destination's device is known.
    ///
    /// # Errors
    /// The error of the system's random source.
    pub fn connect(&mut self, handle: IdHandle, request: Request, now: Instant) -> Result<(), Errno> {
        let id = self.unused_connection_id()?;
        let transaction = random_u64().map_err(errno_of)?;
        let service = request.service;
        self.connections.insert(Entry {
            connection: Connection::active(id, transaction, now),
            request: Some(Request { sender: id, ..request }),
            path: None,
            owner: Some(handle),
            is_mitra: false,
            refusals: Refusals::default(),
        });
        self.get(handle)?.network = NetworkState::Connected(id);
        self.locate(handle, &service, now);
        Ok(())
    }

    /// Returns a random communication id. 0 stands for an unknown one.
    fn unused_connection_id(&self) -> Result<u32, Errno> {
        loop {
            let id = random_u64().map_err(errno_of)? as u32;
            if id != 0 && !self.connections.contains(id) {
                return Ok(id);
            }
        }
    }

    /// Handles the answer to [`locate`](Self::locate). Returns the service if the identifier keeps
    /// waiting.
    pub(super) fn on_located_connection(
        &mut self,
        handle: IdHandle,
        answer: Answer,
        now: Instant,
    ) -> Option<Service> {
        let NetworkState::Connected(id) = self.get(handle).ok()?.network else { return None };
        let entry = self.connections.get(id)?;
        let request = entry.request.as_ref()?;
        let service = request.service;
        let network = self.network.as_ref()?;
        let (gid, endpoint) = match answer {
            Answer::Device(gid, endpoints) => (gid, endpoints.reached_from(network.endpoints())),
            Answer::Unknown => (Gid::from(service.destination.ip()), Endpoint::QueuePair1),
            Answer::NobodyListens => {
                // While no rail is up, this end knows nothing about the peer.
                if network.is_up() {
                    entry.connection.on_refused(now);
                }
                self.flush_connection(id, now);
                let waits = self.connections.get(id).is_some_and(|entry| !entry.connection.is_over());
                return waits.then_some(service);
            }
        };
        // Without random numbers, the connection waits for its timeout.
        entry.path = PeerPath::new(gid, endpoint).ok();
        if unreachable::is_out_of_reach(network, gid, &service) {
            entry.connection.on_unreachable(Errno::ENETUNREACH);
        } else if let Some(request) = entry.request.take() {
            let params = ConnectionParams { gid: network.gid().0, ..request.params };
            entry.connection.request(Request { remote_gid: gid.0, params, ..request }, now);
        }
        self.flush_connection(id, now);
        None
    }

    pub(super) fn on_message(
        &mut self,
        from: RailAddress,
        device: Gid,
        transaction: Transaction,
        now: Instant,
    ) {
        match &transaction.message {
            Message::SidrReq(request) => {
                return self.on_service_request(from, device, transaction.id, request.clone(), now);
            }
            Message::SidrRep(reply) => return self.on_service_reply(device, reply.clone(), now),
            _ => {}
        }
        if let Some(id) = self.connections.find(device, &transaction.message) {
            let (Some(entry), Some(network)) = (self.connections.get(id), &self.network) else { return };
            if let Some(path) = &mut entry.path {
                if transaction.message.denies_connection() && !network.speaks_for_peer(from, path) {
                    return;
                }
                path.set_heard(from);
                // The first REP. A repeated one tells nothing new.
                if let (Message::Rep(_, params), 0) = (&transaction.message, entry.connection.ids().receiver)
                {
                    path.gid = device;
                    entry.is_mitra = is_mitra(params.guid);
                }
            }
            entry.refusals.reset();
            entry.connection.receive(transaction, device.0, now);
            return self.flush_connection(id, now);
        }
        let answer = match &transaction.message {
            Message::Req(request) => {
                self.on_request(from, device, transaction.id, request, now).map(|rejection| {
                    let ids = Ids { sender: 0, receiver: request.sender };
                    Transaction { id: transaction.id, message: Message::Rej(ids, rejection) }
                })
            }
            _ => ConnectionTable::answer_to_stranger(&transaction),
        };
        if let (Some(answer), Some(network)) = (answer, &self.network) {
            network.send_to(from, &answer);
        }
    }

    /// Queues the event of a new REQ at its listener. Drops the REQ if the backlog is full or the
    /// system's random source fails; its sender repeats it. Returns the reason if the REQ is
    /// rejected.
    fn on_request(
        &mut self,
        from: RailAddress,
        device: Gid,
        transaction: u64,
        request: &Request,
        now: Instant,
    ) -> Option<Rejection> {
        let reject = |reason| Some(Rejection::new(Answered::Req, reason));
        let Some(listener) = self.listener_of(&request.service) else {
            return reject(reject_reason::INVALID_SERVICE_ID);
        };
        let path_mtu = self.network.as_ref()?.path_mtu;
        if request.params.path_mtu > path_mtu {
            let rejection = Rejection::new(Answered::Req, reject_reason::INVALID_PATH_MTU);
            return Some(Rejection { info: vec![path_mtu], ..rejection });
        }
        if !self.backlog_has_room(listener) {
            return None;
        }
        let (id, psn) = (self.unused_connection_id().ok()?, random_u64().ok()?);
        let mut path = PeerPath::new(device, from.endpoint).ok()?;
        path.set_heard(from);
        let mut child = self.get(listener).ok()?.child(listener);
        let Service { source, destination, .. } = request.service;
        child.addresses = (Some(destination), Some(source));
        child.params = NegotiatedParams {
            starting_psn: Psn::new(psn as u32).value(),
            // One side's initiator depth is the other side's responder resources.
            responder_resources: request.params.initiator_depth,
            initiator_depth: request.params.responder_resources,
            retry_count: request.params.retry_count,
            rnr_retry_count: request.params.rnr_retry_count,
            peer: Some(request.params.clone()),
        };
        child.network = NetworkState::Connected(id);
        let child = self.insert(child);
        self.connections.insert(Entry {
            connection: Connection::passive(id, transaction, request, now),
            request: None,
            path: Some(path),
            owner: Some(child),
            is_mitra: is_mitra(request.params.guid),
            refusals: Refusals::default(),
        });
        self.push_event(listener, CmEvent::Requested { child });
        None
    }

    pub(super) fn backlog_has_room(&mut self, listener: IdHandle) -> bool {
        let backlog = self.listener(listener).map(|listener| listener.backlog);
        backlog.zip(self.unread_events(listener)).is_some_and(|(backlog, unread)| unread < backlog)
    }

    pub(super) fn on_connection_timer(&mut self, id: u32, now: Instant) {
        let Some(entry) = self.connections.get(id) else { return };
        if let (Some(path), Some(network)) = (&entry.path, &self.network)
            && entry.connection.awaits_message()
            && entry.refusals.count(network, network.decisive_addresses(path)) >= MAX_REFUSED
        {
            entry.connection.on_peer_refuses(now);
        }
        entry.connection.on_timeout(now);
        self.flush_connection(id, now);
    }

    /// Sends a connection's messages and queues its events for the program. Removes a connection
    /// that is over.
    pub fn flush_connection(&mut self, id: u32, now: Instant) {
        let Some(entry) = self.connections.get(id) else { return };
        while let Some(outgoing) = entry.connection.next_message() {
            if let (Some(network), Some(path)) = (&self.network, &entry.path) {
                network.send(&outgoing, path);
            }
        }
        if let Some(path) =
            entry.path.as_ref().filter(|_| entry.is_mitra && entry.connection.depends_on_peer())
        {
            self.watches.add(path.gid, now);
        }
        let events: Vec<_> = std::iter::from_fn(|| entry.connection.next_event()).collect();
        let (owner, is_over) = (entry.owner, entry.connection.is_over());
        let device = entry.path.as_ref().map(|path| path.gid);
        if let Some(owner) = owner {
            for event in events {
                if let ConnectionEvent::Unreachable(errno) = event {
                    self.explain_unreachable(owner, device, errno);
                }
                self.push_event(owner, CmEvent::Connection(event));
            }
        }
        if is_over {
            self.connections.remove(id);
            owner.into_iter().for_each(|owner| self.directory.forget(owner));
            if let Some(identifier) = owner.and_then(|owner| self.get(owner).ok()) {
                identifier.network = NetworkState::Closed;
            }
        }
    }

    pub(super) fn explain_unreachable(&mut self, handle: IdHandle, device: Option<Gid>, errno: Errno) {
        let Ok(identifier) = self.get(handle) else { return };
        let (space, (Some(source), Some(destination))) = (identifier.space, identifier.addresses) else {
            return;
        };
        if let Some(network) = &self.network {
            unreachable::explain(network, device, &Service { space, source, destination }, errno);
        }
    }

    /// Applies `action` to an identifier's connection and flushes the connection.
    ///
    /// # Errors
    /// `EINVAL` if the identifier has no connection, or the error of `action`.
    pub fn update_connection<T>(
        &mut self,
        handle: IdHandle,
        action: impl FnOnce(&mut Connection) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let NetworkState::Connected(id) = self.get(handle)?.network else { return Err(Errno::EINVAL) };
        let result = action(&mut self.connections.get(id).ok_or(Errno::EINVAL)?.connection)?;
        self.flush_connection(id, Instant::now());
        self.waker.wake();
        Ok(result)
    }

    /// Whether the identifier is a request for a connection that the program has not answered.
    pub fn awaits_answer(&mut self, handle: IdHandle) -> Result<bool, Errno> {
        let NetworkState::Connected(id) = self.get(handle)?.network else { return Ok(false) };
        Ok(self.connections.get(id).is_some_and(|entry| entry.connection.awaits_answer()))
    }

    /// Closes an identifier's connection, listener, lookup or request, and informs the peer. With a
    /// listener, closes and removes the requests that the program has not read.
    pub fn close(&mut self, handle: IdHandle) {
        let Ok(identifier) = self.get(handle) else { return };
        let now = Instant::now();
        match std::mem::replace(&mut identifier.network, NetworkState::Closed) {
            NetworkState::Connected(id) => {
                self.directory.forget(handle);
                self.connections.abandon(id, now);
                self.flush_connection(id, now);
                self.waker.wake();
            }
            NetworkState::Listening(_) => {
                let port = identifier.port.take();
                // A child of the process may keep the socket open, so that epoll would report it
                // for ever. It fails only for a listener that pauses.
                let _ = port.as_ref().and_then(Port::socket).map(|socket| self.epoll.delete(socket));
                for request in self.select(|other| other.memory.is_none() && other.listener == Some(handle)) {
                    self.close(request);
                    self.remove(request);
                }
            }
            NetworkState::ServiceRequested(origin) => self.refuse_service_request(origin, now),
            NetworkState::LookingUp(lookup) => {
                self.lookups.remove(&lookup.lookup.request_id());
                self.directory.forget(handle);
            }
            NetworkState::Idle | NetworkState::Resolving(_) | NetworkState::Closed => {}
        }
    }

    /// Ends all connections, because the process exits. Destructors that run later get the event of
    /// an established connection that they disconnect and wait for.
    pub fn close_all(&mut self) {
        for handle in self.select(|identifier| matches!(identifier.network, NetworkState::Connected(_))) {
            if self.update_connection(handle, |connection| connection.disconnect(Instant::now())).is_err() {
                self.close(handle);
            }
        }
    }
}
