//! Between sockets and state machines: what the kernel says is ready is read, heard, answered and reported.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::socket::{SockaddrStorage, recvfrom};
use socket2::Socket;

use super::connection::{Connection, Happening};
use super::lookup::{Arrival, RequestKey, Step};
use super::message::{Answer, Inquiry, MAX_MESSAGE, Offer, sidr};
use super::socket::{Port, Space, errno_of, renumbered};
use super::state::{Endpoint, Handle, Identifier, Listener, Report, State, Stream, Terms};

/// How many streams or datagrams of one port are taken before others have their turn.
const AT_ONCE: usize = 64;
/// How many streams of one listener may be without a REQ; further ones are closed.
const MAX_STRANGERS: usize = 256;

impl State {
    /// A socket is ready.
    pub fn serve(&mut self, handle: Handle, now: Instant) {
        let Ok(identifier) = self.get(handle) else { return };
        match &mut identifier.endpoint {
            Endpoint::Connected(stream) => {
                stream.read(now);
                self.settle(handle);
            }
            Endpoint::Listening(_) if identifier.space == Space::Tcp => {
                self.take_streams(handle, now);
            }
            Endpoint::Listening(_) => self.take_inquiries(handle, now),
            Endpoint::Asking(..) => self.hear_answer(handle, now),
            _ => {}
        }
    }

    /// Does what is due, and says when next.
    pub fn tick(&mut self, now: Instant) -> Option<Instant> {
        let due: Vec<Handle> = self
            .identifiers()
            .filter(|(_, identifier)| identifier.deadline().is_some_and(|deadline| deadline <= now))
            .map(|(handle, _)| handle)
            .collect();
        for handle in due {
            let Ok(identifier) = self.get(handle) else { continue };
            match &mut identifier.endpoint {
                Endpoint::Connected(stream) => {
                    stream.connection.tick(now);
                    if let (true, Some(peer)) = (stream.connection.knocks(now), identifier.addresses.1) {
                        stream.open(peer, now);
                    }
                    self.settle(handle);
                }
                Endpoint::Asking(port, lookup) => match lookup.tick(now) {
                    // A lost datagram is repeated; that nobody is there, the next `recv` says.
                    Step::Send => drop(port.send(lookup.request())),
                    Step::Wait => {}
                    Step::GiveUp => self.end_lookup(handle, Report::NotFound(-(Errno::ETIMEDOUT as i32))),
                },
                _ => {}
            }
        }
        self.identifiers().filter_map(|(_, identifier)| identifier.deadline()).min()
    }

    /// Sends what a connection has to say and reports what happened to it.
    pub fn settle(&mut self, handle: Handle) {
        let Ok(identifier) = self.get(handle) else { return };
        let Endpoint::Connected(stream) = &mut identifier.endpoint else { return };
        stream.write();
        let listener = stream.listener;
        let happenings: Vec<Happening> = std::iter::from_fn(|| stream.connection.next_happening()).collect();
        let is_finished = stream.connection.is_finished();
        if is_finished {
            identifier.endpoint = Endpoint::Ended;
        }
        for happening in happenings {
            match (happening, listener) {
                (Happening::Requested(offer), Some(listener)) => self.requested(handle, listener, offer),
                (happening, _) => self.report(handle, Report::Connection(happening)),
            }
        }
        // Of a stream on which nobody asked, the program knows nothing.
        if is_finished && listener.is_some() && self.get(handle).is_ok_and(|gone| gone.terms.peer.is_none()) {
            self.remove(handle);
        }
    }

    /// A REQ came on a stream of a listener.
    fn requested(&mut self, child: Handle, listener: Handle, offer: Offer) {
        let starting_psn = super::random() as u32 & 0x00ff_ffff;
        let Ok(identifier) = self.get(child) else { return };
        identifier.terms = Terms {
            starting_psn,
            // One side's depth is the other's resources.
            responder_resources: offer.initiator_depth,
            initiator_depth: offer.responder_resources,
            retry_count: offer.retry_count,
            rnr_retry_count: offer.rnr_retry_count,
            peer: Some(offer),
        };
        if self.has_room(listener) {
            self.report(listener, Report::Requested { child });
        } else if let Some(Identifier { endpoint: Endpoint::Connected(mut stream), .. }) = self.remove(child)
        {
            stream.connection.refuse();
            stream.write();
        }
    }

    /// Whether the program may be told of one more request.
    fn has_room(&mut self, listener: Handle) -> bool {
        let Ok(Identifier { endpoint: Endpoint::Listening(Listener { backlog, .. }), channel, .. }) =
            self.get(listener)
        else {
            return false;
        };
        let (backlog, channel) = (*backlog, *channel);
        self.channels.get(&channel).is_some_and(|channel| channel.count(listener) < backlog)
    }

    fn take_streams(&mut self, listener: Handle, now: Instant) {
        for _ in 0..AT_ONCE {
            let Ok(identifier) = self.get(listener) else { return };
            let Endpoint::Listening(Listener { port, .. }) = &identifier.endpoint else { return };
            let socket = match port.accept().map_err(errno_of) {
                Ok((socket, _)) => socket,
                Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS) => {
                    return self.is_exhausted = true;
                }
                // There is none, or it is gone already.
                Err(_) => return,
            };
            let child = identifier.child();
            // A stream that cannot be taken in is closed, and its peer hears so.
            let _ = self.take_stream(child, listener, socket, now);
        }
    }

    fn take_stream(
        &mut self,
        mut child: Identifier,
        listener: Handle,
        socket: Socket,
        now: Instant,
    ) -> Result<(), Errno> {
        let strangers = self.identifiers().filter(|(_, other)| other.is_stranger_of(listener)).count();
        if strangers >= MAX_STRANGERS {
            return Err(Errno::EAGAIN);
        }
        let port = Port::new(socket)?;
        child.addresses = (Some(port.address()?), Some(port.peer()?));
        port.keep_alive();
        let connection = Connection::passive(now);
        child.endpoint =
            Endpoint::Connected(Stream { port, is_open: true, connection, listener: Some(listener) });
        let child = self.insert(child);
        self.watch(child).inspect_err(|_| drop(self.remove(child)))
    }

    fn take_inquiries(&mut self, listener: Handle, now: Instant) {
        for _ in 0..AT_ONCE {
            let Ok(identifier) = self.get(listener) else { return };
            let mut child = identifier.child();
            let Endpoint::Listening(Listener { port, requests, .. }) = &mut identifier.endpoint else {
                return;
            };
            let mut datagram = [0; MAX_MESSAGE + 1];
            // One that is longer does not parse.
            let Ok((length, from)) = receive(port, &mut datagram) else { return };
            match requests.receive(from, &datagram[..length], now) {
                Arrival::New(key, inquiry) => {
                    let local = super::socket::source_towards(from).ok().zip(port.address().ok());
                    let local = local.map(|(ip, bound)| SocketAddr::new(ip, bound.port()));
                    child.addresses = (local, Some(renumbered(from)));
                    self.inquired(child, listener, key, inquiry);
                }
                // A lost datagram is asked for again.
                Arrival::Again(answer) => drop(port.send_to(answer, &from.into())),
                Arrival::Nothing => {}
            }
        }
    }

    /// A SIDR_REQ came.
    fn inquired(&mut self, mut child: Identifier, listener: Handle, key: RequestKey, inquiry: Inquiry) {
        if self.has_room(listener) {
            child.endpoint = Endpoint::Asked { listener, key };
            child.inquiry = Some(inquiry);
            let child = self.insert(child);
            self.report(listener, Report::Requested { child });
        } else if let Ok(Identifier { endpoint: Endpoint::Listening(Listener { requests, .. }), .. }) =
            self.get(listener)
        {
            requests.forget(key);
        }
    }

    /// Answers a SIDR_REQ, through the listener's port and for its repetitions; to a listener that is gone nobody speaks.
    pub fn answer(&mut self, listener: Handle, key: RequestKey, answer: Answer, now: Instant) {
        if let Ok(Identifier { endpoint: Endpoint::Listening(Listener { port, requests, .. }), .. }) =
            self.get(listener)
        {
            let datagram = requests.answer(key, answer, now);
            // As above.
            let _ = port.send_to(&datagram, &key.0.into());
        }
    }

    fn hear_answer(&mut self, handle: Handle, now: Instant) {
        loop {
            let Ok(Identifier { endpoint: Endpoint::Asking(port, lookup), .. }) = self.get(handle) else {
                return;
            };
            let mut datagram = [0; MAX_MESSAGE + 1];
            let report = match receive(port, &mut datagram) {
                Ok((length, _)) => match lookup.receive(&datagram[..length]) {
                    Some(answer) if answer.status == sidr::VALID => Report::Found(answer),
                    Some(answer) => Report::NotFound(answer.status.into()),
                    None => continue,
                },
                Err(Errno::EAGAIN) => return,
                Err(Errno::ECONNREFUSED) if !lookup.is_refused(now) => continue,
                Err(Errno::ECONNREFUSED) => Report::NotFound(sidr::UNSUPPORTED.into()),
                Err(errno) => Report::NotFound(-(errno as i32)),
            };
            return self.end_lookup(handle, report);
        }
    }

    fn end_lookup(&mut self, handle: Handle, report: Report) {
        if let Ok(identifier) = self.get(handle) {
            identifier.endpoint = Endpoint::Ended;
        }
        self.report(handle, report);
    }
}

impl Identifier {
    /// When something is due.
    fn deadline(&self) -> Option<Instant> {
        match &self.endpoint {
            Endpoint::Connected(stream) => stream.connection.deadline(),
            Endpoint::Asking(_, lookup) => Some(lookup.deadline()),
            _ => None,
        }
    }

    /// Whether it is a stream of that listener on which nobody asked for anything yet.
    fn is_stranger_of(&self, listener: Handle) -> bool {
        self.listener() == Some(listener) && self.terms.peer.is_none()
    }
}

impl Stream {
    /// Opens the stream, or begins to.
    pub fn open(&mut self, peer: SocketAddr, now: Instant) {
        let connect = || self.port.connect(peer);
        // A socket that was refused says that first, and only then may try again (Linux, `inet_stream_connect`).
        let opened = match connect() {
            Err(Errno::ECONNABORTED) => connect(),
            opened => opened,
        };
        match opened {
            Ok(()) | Err(Errno::EINPROGRESS) => {}
            Err(errno) => self.fail(errno, now),
        }
    }

    /// Reads and hears all that has come.
    fn read(&mut self, now: Instant) {
        if !self.is_open {
            match self.port.take_error().map_err(errno_of) {
                Ok(None) if self.port.peer().is_ok() => self.is_open = true,
                // Not yet.
                Ok(None) => return,
                Ok(Some(error)) => return self.fail(errno_of(error), now),
                Err(errno) => return self.fail(errno, now),
            }
        }
        let mut bytes = [0; 4096];
        while !self.connection.is_finished() {
            match (&*self.port).read(&mut bytes) {
                Ok(0) => self.connection.lose(Errno::ECONNRESET),
                Ok(length) => self.connection.receive(&bytes[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => self.connection.lose(errno_of(error)),
            }
        }
    }

    fn fail(&mut self, errno: Errno, now: Instant) {
        match errno {
            Errno::ECONNREFUSED => self.connection.refused(now),
            errno => self.connection.lose(errno),
        }
    }

    /// Sends what there is to say, as far as the stream takes it.
    pub fn write(&mut self) {
        while self.is_open && !self.connection.outbox().is_empty() {
            match (&*self.port).write(self.connection.outbox()) {
                Ok(length) => drop(self.connection.outbox().drain(..length)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Once it is writable, or over, somebody will say so.
                Err(_) => return,
            }
        }
    }
}

/// Receives a datagram.
fn receive(port: &Port, into: &mut [u8]) -> Result<(usize, SocketAddr), Errno> {
    let (length, from) = recvfrom::<SockaddrStorage>(port.as_raw_fd(), into)?;
    let from = from.and_then(|from| match (from.as_sockaddr_in(), from.as_sockaddr_in6()) {
        (Some(v4), _) => Some(SocketAddr::V4((*v4).into())),
        (_, Some(v6)) => Some(SocketAddr::V6((*v6).into())),
        _ => None,
    });
    Ok((length, from.ok_or(Errno::EAFNOSUPPORT)?))
}
