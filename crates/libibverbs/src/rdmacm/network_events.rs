//! The handling of ready sockets and expired timers.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use mitra_os_util::random::random_u64;
use mitra_verbs::Psn;
use nix::errno::Errno;
use nix::sys::socket::{SockaddrStorage, recvfrom};
use socket2::Socket;

use super::cm_event::{CmEvent, IdHandle};
use super::identifier::{ConnectionStream, Identifier, Listener, NegotiatedParams, NetworkState};
use super::manager_state::ManagerState;
use super::protocol::connection::{Connection, ConnectionEvent};
use super::protocol::message::{ConnectionParams, MAX_MESSAGE, SidrReply, sidr_status};
use super::protocol::service_lookup::{LookupAction, ReceivedDatagram, RequestKey};
use super::rdma_port::{Port, PortSpace, errno_of, source_towards, translate_address};
use crate::abi::RDMA_CM_EVENT_UNREACHABLE;

/// The maximum number of streams or datagrams that one run of a listener's handler takes. The limit
/// keeps a busy port from delaying the other ports.
const MAX_PER_RUN: usize = 64;
/// The number of streams of one listener that may wait for a REQ. Further streams wait in the
/// socket's queue in the kernel.
const MAX_PENDING_STREAMS: usize = 256;
/// How long a listener pauses because too many streams wait for a REQ, or because the process has
/// no descriptors or memory left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

impl ManagerState {
    pub fn on_ready(&mut self, handle: IdHandle, now: Instant) {
        let Ok(identifier) = self.get(handle) else { return };
        match &mut identifier.network {
            NetworkState::Connected(stream) => {
                stream.read(now);
                self.flush(handle);
            }
            NetworkState::Listening(_) if identifier.space == PortSpace::Tcp => {
                self.accept_streams(handle, now);
            }
            NetworkState::Listening(_) => self.receive_service_requests(handle, now),
            NetworkState::LookingUp(..) => self.receive_service_reply(handle, now),
            _ => {}
        }
    }

    /// Handles all expired timers and returns the next deadline.
    pub fn on_timer(&mut self, now: Instant) -> Option<Instant> {
        for handle in self.select(|identifier| identifier.deadline().is_some_and(|deadline| deadline <= now))
        {
            let Ok(identifier) = self.get(handle) else { continue };
            match &mut identifier.network {
                NetworkState::Connected(stream) => {
                    stream.connection.on_timeout(now);
                    if let (true, Some(peer)) =
                        (stream.connection.take_connect_retry(now), identifier.addresses.1)
                    {
                        stream.open(peer, now);
                    }
                    self.flush(handle);
                }
                NetworkState::Listening(listener) => {
                    listener.paused_until = None;
                    if self.watch(handle).is_err() {
                        self.pause_listener(handle, now + ACCEPT_PAUSE);
                    }
                }
                NetworkState::LookingUp(port, lookup) => match lookup.on_timer(now) {
                    // A failure is ignored: the request is repeated, and the next `recv` returns a
                    // lasting error.
                    LookupAction::Send => drop(port.send(lookup.request())),
                    LookupAction::Wait => {}
                    LookupAction::TimedOut => {
                        self.end_lookup(handle, lookup_failed(Errno::ETIMEDOUT));
                    }
                },
                _ => {}
            }
        }
        self.identifiers().filter_map(Identifier::deadline).min()
    }

    /// Sends a connection's outgoing messages and queues its events for the program. If a
    /// listener's stream closed before a REQ arrived, removes the stream's identifier.
    pub fn flush(&mut self, handle: IdHandle) {
        let Ok(identifier) = self.get(handle) else { return };
        let NetworkState::Connected(stream) = &mut identifier.network else { return };
        stream.write();
        let events: Vec<ConnectionEvent> = std::iter::from_fn(|| stream.connection.next_event()).collect();
        let (is_closed, listener) = (stream.connection.is_closed(), identifier.listener);
        if stream.connection.is_over() {
            identifier.network = NetworkState::Closed;
        } else if is_closed {
            stream.port = None;
        }
        for event in events {
            match (event, listener) {
                (ConnectionEvent::Requested(params), Some(listener)) => {
                    self.on_connection_request(handle, listener, params);
                }
                (event, _) => self.push_event(handle, CmEvent::Connection(event)),
            }
        }
        // Without a REQ, the program does not know the identifier and cannot destroy it.
        if is_closed
            && listener.is_some()
            && self.get(handle).is_ok_and(|identifier| identifier.params.peer.is_none())
        {
            self.remove(handle);
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
        let NetworkState::Connected(stream) = &mut self.get(handle)?.network else {
            return Err(Errno::EINVAL);
        };
        let result = action(&mut stream.connection)?;
        self.flush(handle);
        Ok(result)
    }

    /// Closes an identifier's connection, listener, lookup or request, and informs the peer. With a
    /// listener, closes and removes the requests that the program has not read.
    pub fn close(&mut self, handle: IdHandle) {
        let Ok(identifier) = self.get(handle) else { return };
        match std::mem::replace(&mut identifier.network, NetworkState::Closed) {
            NetworkState::Connected(mut stream) => {
                stream.connection.abandon();
                stream.write();
            }
            NetworkState::Listening(_) => {
                for request in self.select(|other| other.memory.is_none() && other.listener == Some(handle)) {
                    self.close(request);
                    self.remove(request);
                }
            }
            NetworkState::ServiceRequested(key) => {
                self.answer_service_request(handle, key, SidrReply::rejection(key.1, Vec::new()));
            }
            NetworkState::Unbound
            | NetworkState::Bound(_)
            | NetworkState::LookingUp(..)
            | NetworkState::Closed => {}
        }
    }

    /// Queues the event of a REQ on a stream of `listener`. Drops the REQ if the backlog is full or
    /// the system's random source fails.
    fn on_connection_request(&mut self, child: IdHandle, listener: IdHandle, params: ConnectionParams) {
        let psn = random_u64().ok().filter(|_| self.backlog_has_room(listener));
        let Ok(identifier) = self.get(child) else { return };
        let Some(psn) = psn else {
            if let NetworkState::Connected(stream) = &mut identifier.network {
                stream.connection.drop_request(Instant::now());
            }
            return;
        };
        identifier.params = NegotiatedParams {
            starting_psn: Psn::new(psn as u32).value(),
            // One side's initiator depth is the other side's responder resources.
            responder_resources: params.initiator_depth,
            initiator_depth: params.responder_resources,
            retry_count: params.retry_count,
            rnr_retry_count: params.rnr_retry_count,
            peer: Some(params),
        };
        self.push_event(listener, CmEvent::Requested { child });
    }

    fn backlog_has_room(&mut self, listener: IdHandle) -> bool {
        let backlog = self.listener(listener).map(|listener| listener.backlog);
        backlog.zip(self.unread_events(listener)).is_some_and(|(backlog, unread)| unread < backlog)
    }

    fn accept_streams(&mut self, listener: IdHandle, now: Instant) {
        for _ in 0..MAX_PER_RUN {
            let pending = self.identifiers().filter(|other| other.is_pending_stream_of(listener)).count();
            if pending >= MAX_PENDING_STREAMS {
                return self.pause_listener(listener, now + ACCEPT_PAUSE);
            }
            let Ok(identifier) = self.get(listener) else { return };
            let NetworkState::Listening(Listener { port, .. }) = &identifier.network else { return };
            let socket = match port.accept().map_err(errno_of) {
                Ok((socket, _)) => socket,
                Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS) => {
                    return self.pause_listener(listener, now + ACCEPT_PAUSE);
                }
                // No stream waits, or the peer has reset the stream.
                Err(_) => return,
            };
            let child = identifier.child(listener);
            // A failure closes the stream and thereby informs the peer.
            let _ = self.add_stream(child, socket, now);
        }
    }

    /// Adds `child` as the identifier of a stream that its listener accepted.
    ///
    /// # Errors
    /// The error of a system call, after which the stream is closed.
    fn add_stream(&mut self, mut child: Identifier, socket: Socket, now: Instant) -> Result<(), Errno> {
        let port = Port::new(socket)?;
        child.addresses = (Some(port.address()?), Some(port.peer()?));
        port.keep_alive();
        let connection = Connection::passive(now);
        child.network =
            NetworkState::Connected(ConnectionStream { port: Some(port), is_open: true, connection });
        let child = self.insert(child);
        self.watch(child).inspect_err(|_| drop(self.remove(child)))
    }

    fn receive_service_requests(&mut self, listener: IdHandle, now: Instant) {
        for _ in 0..MAX_PER_RUN {
            let Ok(identifier) = self.get(listener) else { return };
            let mut child = identifier.child(listener);
            let NetworkState::Listening(Listener { port, requests, .. }) = &mut identifier.network else {
                return;
            };
            // The buffer has one byte more than the longest message, so a datagram that is too long
            // does not decode.
            let mut datagram = [0; MAX_MESSAGE + 1];
            let Ok((length, from)) = receive_datagram(port, &mut datagram) else { return };
            match requests.receive(from, &datagram[..length], now) {
                ReceivedDatagram::New(key, request) => {
                    let local = source_towards(from).ok().zip(port.address().ok());
                    let local = local.map(|(ip, bound)| SocketAddr::new(ip, bound.port()));
                    child.addresses = (local, Some(translate_address(from)));
                    child.network = NetworkState::ServiceRequested(key);
                    child.service_request = Some(request);
                    if self.backlog_has_room(listener) {
                        let child = self.insert(child);
                        self.push_event(listener, CmEvent::Requested { child });
                    } else if let Some(Listener { requests, .. }) = self.listener(listener) {
                        // Forgets the request, so that the next repetition counts as a new request.
                        requests.remove(key);
                    }
                }
                // A failure is ignored, because the requester repeats its request.
                ReceivedDatagram::Duplicate(reply) => drop(port.send_to(reply, &from.into())),
                ReceivedDatagram::Ignored => {}
            }
        }
    }

    /// Closes the service request of an identifier. If the listener is open, sends the reply
    /// through the listener's port, and stores the reply for repetitions of the request.
    pub fn answer_service_request(&mut self, handle: IdHandle, key: RequestKey, reply: SidrReply) {
        let Ok(identifier) = self.get(handle) else { return };
        identifier.network = NetworkState::Closed;
        if let Some(Listener { port, requests, .. }) =
            identifier.listener.and_then(|listener| self.listener(listener))
        {
            let datagram = requests.reply(key, reply, Instant::now());
            // A failure is ignored, because the requester repeats its request and gets the stored
            // reply.
            let _ = port.send_to(&datagram, &key.0.into());
        }
    }

    fn receive_service_reply(&mut self, handle: IdHandle, now: Instant) {
        loop {
            let Ok(Identifier { network: NetworkState::LookingUp(port, lookup), .. }) = self.get(handle)
            else {
                return;
            };
            let mut datagram = [0; MAX_MESSAGE + 1];
            let event = match receive_datagram(port, &mut datagram) {
                Ok((length, _)) => match lookup.receive(&datagram[..length]) {
                    Some(reply) => CmEvent::ServiceReplied(reply),
                    None => continue,
                },
                Err(Errno::EAGAIN) => return,
                Err(Errno::ECONNREFUSED) if !lookup.is_refusal_final(now) => continue,
                Err(Errno::ECONNREFUSED) => {
                    let rejection = SidrReply::rejection(0, Vec::new());
                    CmEvent::ServiceReplied(SidrReply { status: sidr_status::UNSUPPORTED, ..rejection })
                }
                Err(errno) => lookup_failed(errno),
            };
            return self.end_lookup(handle, event);
        }
    }

    fn end_lookup(&mut self, handle: IdHandle, event: CmEvent) {
        if let Ok(identifier) = self.get(handle) {
            identifier.network = NetworkState::Closed;
        }
        self.push_event(handle, event);
    }
}

impl ConnectionStream {
    /// Starts to connect the stream. An immediate failure fails the connection.
    pub fn open(&mut self, peer: SocketAddr, now: Instant) {
        let Some(port) = &self.port else { return };
        let connect = || port.connect(peer);
        // The first `connect` after a refused attempt returns ECONNABORTED, and the second starts a
        // new attempt (Linux, `inet_stream_connect`).
        let result = match connect() {
            Err(Errno::ECONNABORTED) => connect(),
            result => result,
        };
        match result {
            Ok(()) | Err(Errno::EINPROGRESS) => {}
            Err(errno) => self.fail(errno, now),
        }
    }

    /// Reads until the socket has no more data and passes the data to the connection.
    fn read(&mut self, now: Instant) {
        let Some(port) = &self.port else { return };
        if !self.is_open {
            match port.take_error().map_err(errno_of) {
                Ok(None) if port.peer().is_ok() => self.is_open = true,
                // The attempt is in progress.
                Ok(None) => return,
                Ok(Some(error)) => return self.fail(errno_of(error), now),
                Err(errno) => return self.fail(errno, now),
            }
        }
        let mut bytes = [0; 4096];
        while !self.connection.is_closed() {
            match (&**port).read(&mut bytes) {
                Ok(0) => self.connection.on_stream_end(Errno::ECONNRESET, now),
                Ok(length) => self.connection.receive(&bytes[..length], now),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => self.connection.on_stream_end(errno_of(error), now),
            }
        }
    }

    /// Tells the connection that an attempt to connect has failed. The connection may retry a
    /// refused attempt.
    fn fail(&mut self, errno: Errno, now: Instant) {
        match errno {
            Errno::ECONNREFUSED => self.connection.on_connection_refused(now),
            errno => self.connection.on_stream_end(errno, now),
        }
    }

    /// Sends the connection's outgoing messages, as far as the socket's buffer has space.
    pub fn write(&mut self) {
        let Some(port) = &self.port else { return };
        while self.is_open && !self.connection.outbox().is_empty() {
            match (&**port).write(self.connection.outbox()) {
                Ok(length) => drop(self.connection.outbox().drain(..length)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // After EAGAIN, epoll reports the socket when the buffer has space. After another
                // error, epoll reports the socket at once, and `read` handles the error.
                Err(_) => return,
            }
        }
    }
}

fn lookup_failed(errno: Errno) -> CmEvent {
    CmEvent::Failed(RDMA_CM_EVENT_UNREACHABLE, errno)
}

/// Returns the number of received bytes, at most the buffer's length, and the sender.
fn receive_datagram(port: &Port, buffer: &mut [u8]) -> Result<(usize, SocketAddr), Errno> {
    let (length, from) = recvfrom::<SockaddrStorage>(port.as_raw_fd(), buffer)?;
    let from = from.and_then(|from| match (from.as_sockaddr_in(), from.as_sockaddr_in6()) {
        (Some(v4), _) => Some(SocketAddr::V4((*v4).into())),
        (_, Some(v6)) => Some(SocketAddr::V6((*v6).into())),
        _ => None,
    });
    Ok((length, from.ok_or(Errno::EAFNOSUPPORT)?))
}
