//! Links through shared memory: how datagrams reach the other NICs of this host without a system
//! call.
//!
//! Each direction of a pair of NICs has a [ring](ring) of its own, which the sender makes and
//! passes to the receiver ([`rendezvous`]). The sender uses UDP until the receiver has accepted the
//! ring, and when either end has closed the link. The progress thread connects and accepts, because
//! a caller must not make the system calls: some are cancellation points (`pthreads(7)`).

#[cfg(test)]
mod hostile_tests;
mod memory;
#[cfg(test)]
mod memory_tests;
mod outgoing;
mod rendezvous;
mod ring;

use core::time::Duration;
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use mitra_verbs::{Gid, Mtu, Time};

use memory::MappedRing;
pub(crate) use outgoing::OutgoingLink;
pub(crate) use rendezvous::readable;
use rendezvous::{Accepted, Connection, Found, Hello, Message, Process, Secret};
pub(crate) use ring::{Broken, Record};
use ring::{Receiver, ring_size};

use crate::Links;
use crate::last_hit_cache::LastHitCache;

/// The bytes of a ring's memory.
const RING: usize = ring_size(2 << 20);
/// The length of the longest datagram, in bytes: a packet with the largest path MTU and the longest
/// headers.
const MAX_DATAGRAM: usize = Mtu::M4096.bytes() + 128;
/// The largest number of links in each direction, because each has a ring. Other peers are reached
/// over UDP.
const MAX_LINKS: usize = 64;
/// The largest number of connections that have not sent their hello, and of those whose sender is
/// not proved: of all processes, and of each.
const MAX_ARRIVING: usize = 64;
const MAX_ARRIVING_OF_PROCESS: usize = 16;
/// The largest number of connections of other users that have sent nothing.
const MAX_REFUSED: usize = 16;
/// The largest number of connections that one call accepts while it holds the NIC's lock: of this
/// user, and of others, which cost less.
const MAX_ACCEPTS: usize = 8;
const MAX_ACCEPTS_OF_OTHERS: usize = 64;
/// The time from the end of a link, or an attempt, to the next attempt to connect. After a link
/// that was never accepted, or a failed attempt, the time doubles. A link from the peer ends the
/// wait.
const MIN_RETRY: Duration = Duration::from_millis(100);
const MAX_RETRY: Duration = Duration::from_secs(60);
/// The times after the end of a link at which the sender asks whether the process of the peer has
/// ended. A process that ends may close its link before its port.
/// While a NIC without UDP drops datagrams to this peer, the sender asks every [`MIN_RETRY`], too.
const PROBES: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(5), Duration::from_millis(50), Duration::from_millis(500)];
/// Callers that poll leave their processor to the progress threads of both ends for this long at
/// most, while a link is being made. A progress thread that has just made a link waits for a
/// polling thread's time slice otherwise, which is several milliseconds long.
const MAX_CONNECT_TIME: Duration = Duration::from_millis(5);
/// The largest number of peers that are to be asked because datagrams to them were dropped.
const MAX_PROBES: usize = 64;

/// The links of a NIC.
pub(crate) struct SharedMemoryLinks {
    own: Gid,
    setting: Links,
    /// `None` if the NIC uses no links.
    listener: Option<Arc<OwnedFd>>,
    failure: Option<io::ErrorKind>,
    /// The peers to which the progress thread is to connect.
    wanted: Vec<Gid>,
    /// Until when callers that poll leave their processor to the progress threads, because a link
    /// is being made.
    connects_until: Time,
    outgoing: Vec<OutgoingLink>,
    /// The link in `outgoing` that was used last.
    last_used: usize,
    retries: LastHitCache<Gid, Retry>,
    incoming: Vec<IncomingLink>,
    /// Connections that have not sent their hello.
    arriving: Vec<Connection>,
    /// Connections of other users, oldest first. The NIC closes each when something arrives, so
    /// that a process can send its hello before it learns of the refusal.
    refused: VecDeque<Arc<OwnedFd>>,
    /// Links whose senders have not returned the secret of this NIC's link to their address.
    unproved: Vec<Arrival>,
    /// Links whose rings the progress thread is to map.
    proved: Vec<Arrival>,
    /// Closed links. The progress thread frees them.
    discarded: Discarded,
    /// The peers to be asked whether their process has ended: the time of the next question, the
    /// number of questions so far, and the peer.
    probes: Vec<(Time, usize, Gid)>,
    /// The NIC accepts no links before this time, because the system had no descriptor left.
    accepts_from: Time,
    /// Whether the senders must wake this NIC.
    is_asleep: bool,
    /// What [`Self::descriptors`] returned last. `None` if it has changed since.
    watched: Option<Arc<[Arc<OwnedFd>]>>,
    /// Whether a thread that sleeps on [`Self::descriptors`] must be woken, because they have
    /// changed.
    has_changed: bool,
    /// The number of links from other NICs since the NIC was opened.
    accepted: u64,
}

/// When a sender without a link connects again.
#[derive(Clone, Copy)]
struct Retry {
    at: Time,
    /// The time to wait after the next link that is not accepted.
    delay: Duration,
}

/// How a datagram reaches a peer.
pub(crate) enum Route<'a> {
    Link(&'a mut OutgoingLink),
    Udp,
    /// The progress thread is about to connect, and the NIC does not use UDP.
    Later,
    /// There is no link, and the NIC does not use UDP.
    None,
}

/// A task that the progress thread runs for the links while the NIC's lock is free.
pub(crate) enum Chore {
    Connect { own: Gid, peer: Gid },
    Open { own: Gid, arrival: Arrival },
    Free(Discarded),
}

/// The result of a chore.
pub(crate) enum Done {
    Connected { own: Gid, peer: Gid, link: io::Result<OutgoingLink> },
    Opened { own: Gid, link: io::Result<IncomingLink> },
    Freed,
}

/// Links that have ended. To free them takes system calls.
#[derive(Default)]
pub(crate) struct Discarded {
    outgoing: Vec<OutgoingLink>,
    incoming: Vec<IncomingLink>,
}

/// A link from another NIC.
pub(crate) struct IncomingLink {
    peer: Gid,
    /// The secret of the sender.
    secret: Secret,
    connection: Connection,
    receiver: Receiver<MappedRing>,
    /// Whether no datagram may be read yet, because older ones may be in the socket.
    is_new: bool,
    /// Whether the sender is gone. What it sent before is still to be read.
    is_closed: bool,
}

/// A link of another NIC whose ring is not mapped yet.
pub(crate) struct Arrival {
    /// The address that the sender states.
    peer: Gid,
    secret: Secret,
    connection: Connection,
    memory: OwnedFd,
}

impl Arrival {
    fn open(self) -> io::Result<IncomingLink> {
        let Arrival { peer, secret, connection, memory } = self;
        let receiver = Receiver::new(MappedRing::open(memory, RING)?, MAX_DATAGRAM);
        Ok(IncomingLink { peer, secret, connection, receiver, is_new: true, is_closed: false })
    }
}

impl Chore {
    /// Does the chore. The NIC's lock is free.
    pub(crate) fn run(self) -> Done {
        match self {
            Chore::Connect { own, peer } => {
                Done::Connected { own, peer, link: OutgoingLink::open(own, peer) }
            }
            Chore::Open { own, arrival } => Done::Opened { own, link: arrival.open() },
            Chore::Free(Discarded { .. }) => Done::Freed,
        }
    }
}

impl SharedMemoryLinks {
    /// Makes the links of a NIC that uses UDP only.
    pub(crate) fn none(own: Gid) -> SharedMemoryLinks {
        SharedMemoryLinks {
            own,
            setting: Links::Udp,
            listener: None,
            failure: None,
            wanted: Vec::new(),
            connects_until: Time::ZERO,
            outgoing: Vec::new(),
            last_used: 0,
            retries: LastHitCache::new(),
            incoming: Vec::new(),
            arriving: Vec::new(),
            refused: VecDeque::new(),
            unproved: Vec::new(),
            proved: Vec::new(),
            discarded: Discarded::default(),
            probes: Vec::new(),
            accepts_from: Time::ZERO,
            is_asleep: false,
            watched: None,
            has_changed: true,
            accepted: 0,
        }
    }

    /// Lets the NICs of this host connect to the NIC at an address, unless `setting` excludes it.
    ///
    /// # Errors
    /// The NIC cannot listen, for example because another process does under this address, and
    /// `setting` excludes UDP.
    pub(crate) fn open(own: Gid, setting: Links) -> io::Result<SharedMemoryLinks> {
        let listened = (setting != Links::Udp).then(|| rendezvous::listen(own)).transpose();
        let (listener, failure) = match listened {
            Ok(listener) => (listener.map(Arc::new), None),
            Err(error) if setting == Links::Auto => (None, Some(error.kind())),
            Err(error) => return Err(error),
        };
        Ok(SharedMemoryLinks { setting, listener, failure, ..SharedMemoryLinks::none(own) })
    }

    /// Returns why the NIC accepts no links although its setting allows them.
    pub(crate) fn failure(&self) -> Option<io::ErrorKind> {
        self.failure
    }

    pub(crate) fn setting(&self) -> Links {
        self.setting
    }

    /// Returns how datagrams reach a peer now. Asks the progress thread to connect if there is no
    /// link.
    #[inline]
    pub(crate) fn route(&mut self, peer: Gid, now: Time) -> Route<'_> {
        if self.listener.is_none() {
            return self.without_link();
        }
        let index = match self.outgoing.get(self.last_used) {
            Some(link) if link.peer == peer => self.last_used,
            _ => match self.outgoing.iter().position(|link| link.peer == peer) {
                Some(index) => index,
                None => return self.want(peer, now),
            },
        };
        self.last_used = index;
        // Without UDP, what is sent before the receiver accepts the link waits in the ring.
        if self.outgoing[index].is_accepted() || self.setting == Links::SharedMemory {
            Route::Link(&mut self.outgoing[index])
        } else {
            Route::Udp
        }
    }

    #[cold]
    fn want(&mut self, peer: Gid, now: Time) -> Route<'_> {
        if IpAddr::from(peer).is_multicast() {
            return Route::Udp; // a link has one receiver
        }
        if !self.wanted.contains(&peer) {
            if self.retry(peer).at > now || self.outgoing.len() + self.wanted.len() >= MAX_LINKS {
                self.probe_later(peer, now);
                return self.without_link();
            }
            self.connect_later(peer, now);
            self.set_changed();
        }
        if self.setting == Links::SharedMemory { Route::Later } else { Route::Udp }
    }

    /// Asks the progress thread to connect to a peer.
    fn connect_later(&mut self, peer: Gid, now: Time) {
        self.wanted.push(peer);
        self.connects_until = now + MAX_CONNECT_TIME;
    }

    /// Asks a peer without a link after a while whether its process has ended, if the NIC drops
    /// what it would send to the peer over UDP. Over UDP, the refusals of these datagrams would
    /// show the end.
    fn probe_later(&mut self, peer: Gid, now: Time) {
        let is_due = self.setting == Links::SharedMemory && self.probes.len() < MAX_PROBES;
        if is_due && self.probes.iter().all(|(_, _, probed)| *probed != peer) {
            self.probes.push((now + MIN_RETRY, PROBES.len(), peer));
        }
    }

    fn without_link(&self) -> Route<'_> {
        if self.setting == Links::SharedMemory { Route::None } else { Route::Udp }
    }

    fn retry(&mut self, peer: Gid) -> &mut Retry {
        self.retries.get_or_insert_with(peer, || Retry { at: Time::ZERO, delay: MIN_RETRY })
    }

    /// Sets the time of the next attempt to connect to a peer, after a link has ended or an attempt
    /// has failed.
    fn postpone(&mut self, peer: Gid, was_accepted: bool, now: Time) {
        let has_udp = self.setting != Links::SharedMemory;
        let retry = self.retry(peer);
        let delay = if was_accepted { MIN_RETRY } else { retry.delay };
        let next = if has_udp { (2 * delay).min(MAX_RETRY) } else { MIN_RETRY };
        *retry = Retry { at: now + delay, delay: next };
    }

    /// Returns whether a link is being made, for which the progress threads of both ends need a
    /// processor.
    #[inline]
    pub(crate) fn is_connecting(&mut self, now: Time) -> bool {
        now < self.connects_until && {
            let has_arrivals = !(self.unproved.is_empty() && self.proved.is_empty());
            let is_connecting = has_arrivals
                || !self.wanted.is_empty()
                || !self.outgoing.iter_mut().all(OutgoingLink::is_accepted);
            if !is_connecting {
                self.connects_until = Time::ZERO;
            }
            is_connecting
        }
    }

    /// Returns whether the progress thread has a chore.
    pub(crate) fn has_chore(&self) -> bool {
        let has_links = !self.wanted.is_empty() || !self.proved.is_empty();
        has_links || !(self.discarded.outgoing.is_empty() && self.discarded.incoming.is_empty())
    }

    /// Returns the next chore of the progress thread, which ends it by [`Self::finish`].
    pub(crate) fn take_chore(&mut self) -> Option<Chore> {
        let Discarded { outgoing, incoming } = &self.discarded;
        if !outgoing.is_empty() || !incoming.is_empty() {
            return Some(Chore::Free(std::mem::take(&mut self.discarded)));
        }
        if !self.proved.is_empty() {
            return Some(Chore::Open { own: self.own, arrival: self.proved.remove(0) });
        }
        self.wanted.first().map(|peer| Chore::Connect { own: self.own, peer: *peer })
    }

    /// Takes the result of a chore.
    pub(crate) fn finish(&mut self, done: Done, now: Time) {
        match done {
            Done::Connected { own, peer, link } => {
                // The NIC may have another address now, or no links.
                let is_wanted = own == self.own && self.wanted.contains(&peer);
                match link {
                    Ok(link) if is_wanted => self.add_outgoing(link),
                    Ok(link) => self.discarded.outgoing.push(link),
                    Err(_) => {
                        self.postpone(peer, false, now);
                        // Nobody listens under the address that these links state.
                        self.unproved.retain(|link| link.peer != peer);
                    }
                }
                if is_wanted {
                    self.wanted.retain(|wanted| *wanted != peer);
                    self.set_changed();
                }
            }
            Done::Opened { own, link: Ok(link) } => {
                if own == self.own && self.listener.is_some() {
                    self.add_incoming(link);
                } else {
                    self.discarded.incoming.push(link);
                }
            }
            Done::Opened { link: Err(_), .. } | Done::Freed => {}
        }
    }

    fn add_outgoing(&mut self, link: OutgoingLink) {
        // The peer has linked already, and accepts this link once it has its secret.
        let incoming = self.incoming.iter().filter(|link| !link.is_closed);
        let secrets = incoming.map(|incoming| (incoming.peer, incoming.secret));
        let arrivals = self.unproved.iter().chain(&self.proved).map(|link| (link.peer, link.secret));
        for (_, secret) in secrets.chain(arrivals).filter(|(peer, _)| *peer == link.peer) {
            // A connection that does not take the secret is closed by its other end.
            let _ = link.connection.send_proof(secret);
        }
        self.outgoing.push(link);
    }

    /// Closes the link to a peer. Datagrams go over UDP for a while. The peer is asked whether its
    /// process has ended.
    pub(crate) fn close(&mut self, peer: Gid, now: Time) {
        let Some(index) = self.outgoing.iter().position(|link| link.peer == peer) else { return };
        let mut link = self.outgoing.remove(index);
        link.connection.shut_down();
        let was_accepted = link.is_accepted();
        self.discarded.outgoing.push(link);
        self.postpone(peer, was_accepted, now);
        self.probes.retain(|(_, _, probed)| *probed != peer);
        self.probes.push((now, 0, peer));
        self.set_changed();
    }

    /// Accepts no more links, so that the next NIC at this address can.
    pub(crate) fn close_listener(&mut self) {
        self.listener = None;
        self.refused.clear();
        self.set_changed();
    }

    /// Closes all links. The NIC uses UDP from now on.
    pub(crate) fn close_all(&mut self) {
        let connections = self.outgoing.iter().map(|link| &link.connection);
        let incoming = self.incoming.iter().map(|link| &link.connection);
        let unproved = self.unproved.iter().chain(&self.proved).map(|link| &link.connection);
        let incoming = incoming.chain(&self.arriving).chain(unproved);
        connections.chain(incoming).for_each(Connection::shut_down);
        *self = SharedMemoryLinks::none(self.own);
    }

    /// Returns the number of links from other NICs.
    pub(crate) fn incoming_count(&self) -> usize {
        self.incoming.len()
    }

    /// Returns the number of links from other NICs since the NIC was opened or got its address.
    pub(crate) fn accepted_count(&self) -> u64 {
        self.accepted
    }

    /// Returns the NIC that sends on an incoming link.
    pub(crate) fn sender_of(&self, index: usize) -> Gid {
        self.incoming[index].peer
    }

    /// Returns whether the first datagram of an incoming link waits. The caller empties the socket,
    /// because the sender may have used UDP before, and calls [`Self::begin`].
    pub(crate) fn begins(&self, index: usize) -> bool {
        self.incoming[index].is_new && !self.incoming[index].receiver.is_empty()
    }

    /// Lets [`Self::pop`] read an incoming link.
    pub(crate) fn begin(&mut self, index: usize) {
        self.incoming[index].is_new = false;
    }

    /// Removes the next datagram of an incoming link, and copies it to the start of `out`.
    ///
    /// # Errors
    /// [`Broken`] if the sender has damaged the ring.
    pub(crate) fn pop(&mut self, index: usize, out: &mut [u8]) -> Result<Option<Record>, Broken> {
        let link = &mut self.incoming[index];
        if link.is_new { Ok(None) } else { link.receiver.pop(out) }
    }

    /// Returns whether the sender of an incoming link is gone.
    pub(crate) fn is_closed(&self, index: usize) -> bool {
        self.incoming[index].is_closed
    }

    /// Closes an incoming link.
    pub(crate) fn close_incoming(&mut self, index: usize) {
        let link = self.incoming.remove(index);
        link.connection.shut_down();
        self.discarded.incoming.push(link);
        self.set_changed();
    }

    /// Wakes the sender of an incoming link if it waits for room.
    pub(crate) fn wake_waiting_sender(&self, index: usize) {
        let link = &self.incoming[index];
        if link.receiver.take_wait() {
            // A sender that is gone needs no wake-up.
            let _ = link.connection.wake_peer();
        }
    }

    /// Asks the senders to wake this NIC. Returns false, and does not ask, if a datagram waits.
    pub(crate) fn begin_sleep(&mut self) -> bool {
        self.is_asleep = true;
        let is_idle = self.incoming.iter().all(|link| link.receiver.begin_sleep());
        (0..self.incoming.len()).for_each(|index| self.wake_waiting_sender(index));
        if !is_idle {
            self.end_sleep();
        }
        is_idle
    }

    /// Tells the senders that they need not wake this NIC.
    pub(crate) fn end_sleep(&mut self) {
        if std::mem::take(&mut self.is_asleep) {
            self.incoming.iter().for_each(|link| link.receiver.end_sleep());
        }
    }

    /// Returns the descriptors that are readable when [`Self::handle_events`] has something to do.
    pub(crate) fn descriptors(&mut self, now: Time) -> Arc<[Arc<OwnedFd>]> {
        self.has_changed = false;
        if let Some(watched) = &self.watched {
            return Arc::clone(watched);
        }
        let accepts = self.accepts_from <= now;
        let listener = self.listener.iter().filter(|_| accepts).cloned();
        let outgoing = self.outgoing.iter().map(|link| &link.connection);
        // A closed connection is always readable.
        let incoming = self.incoming.iter().filter(|link| !link.is_closed).map(|link| &link.connection);
        let unproved = self.unproved.iter().map(|link| &link.connection);
        let connections = outgoing.chain(incoming).chain(unproved).chain(&self.arriving);
        let refused = self.refused.iter().cloned();
        let watched: Arc<[_]> =
            listener.chain(connections.map(Connection::descriptor)).chain(refused).collect();
        // The listener joins them later.
        self.watched = accepts.then(|| Arc::clone(&watched));
        watched
    }

    fn set_changed(&mut self) {
        (self.watched, self.has_changed) = (None, true);
    }

    /// Returns whether a thread that sleeps on [`Self::descriptors`] must be woken, because they
    /// have changed since.
    pub(crate) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// Handles the events of descriptors that are readable: accepts links, and closes those whose
    /// other end is gone. What is still to be read keeps its descriptor readable.
    pub(crate) fn handle_events(&mut self, readable: &[Arc<OwnedFd>], now: Time) {
        for descriptor in readable {
            let is_of = |connection: &Connection| connection.has_descriptor(descriptor);
            if self.listener.as_ref().is_some_and(|listener| Arc::ptr_eq(listener, descriptor)) {
                self.accept(now);
            } else if let Some(link) = self.incoming.iter_mut().find(|link| is_of(&link.connection)) {
                link.is_closed = matches!(link.connection.receive(), Found::Closed);
                if link.is_closed {
                    self.set_changed();
                }
            } else if let Some(link) = self.outgoing.iter().find(|link| is_of(&link.connection)) {
                // A wake-up means that a full ring has room, which the next round finds.
                if matches!(link.connection.receive(), Found::Closed) {
                    self.close(link.peer, now);
                }
            } else if let Some(index) = self.unproved.iter().position(|link| is_of(&link.connection)) {
                self.receive_proof(index);
            } else if let Some(index) = self.arriving.iter().position(is_of) {
                let connection = self.arriving.remove(index);
                self.receive_hello(connection, now);
                self.set_changed();
            } else if let Some(index) = self.refused.iter().position(|other| Arc::ptr_eq(other, descriptor)) {
                self.refused.remove(index);
                self.set_changed();
            }
        }
    }

    /// Accepts the links that other NICs have made. A link whose sender is gone meanwhile still has
    /// the last datagrams. If the system has no descriptor or memory left, the connections wait, or
    /// are closed.
    fn accept(&mut self, now: Time) {
        let (mut accepted, mut of_others) = (0, 0);
        while accepted < MAX_ACCEPTS && of_others < MAX_ACCEPTS_OF_OTHERS {
            let Some(listener) = self.listener.as_ref().filter(|_| self.accepts_from <= now) else { break };
            match rendezvous::accept(listener) {
                Ok(Accepted::Connection(connection)) => {
                    accepted += 1;
                    self.receive_hello(connection, now);
                }
                Ok(Accepted::OfOtherUser(socket)) => {
                    of_others += 1;
                    if self.refused.len() >= MAX_REFUSED {
                        self.refused.pop_front();
                    }
                    self.refused.push_back(Arc::new(socket));
                }
                Ok(Accepted::Nothing) => break,
                Err(_) => {
                    self.refused.clear();
                    self.accepts_from = now + MIN_RETRY;
                }
            }
            self.set_changed();
        }
    }

    fn receive_hello(&mut self, connection: Connection, now: Time) {
        match connection.receive_hello() {
            Found::Some(Hello { peer, secret, memory }) => {
                self.add_unproved(Arrival { peer, secret, connection, memory }, now);
            }
            Found::Nothing => {
                make_room(&mut self.arriving, connection.peer, |waiting| waiting.peer);
                self.arriving.push(connection);
            }
            Found::Closed => {}
        }
    }

    /// Returns the secret of a link to its sender, over a link to the address that the sender
    /// states, and waits for the secret of that link. Acknowledgements need a link in the other
    /// direction anyway.
    fn add_unproved(&mut self, link: Arrival, now: Time) {
        let (peer, process) = (link.peer, link.connection.peer);
        let known = self.outgoing.iter().find(|known| known.peer == peer);
        let told = known.map(|known| known.connection.send_proof(link.secret));
        if matches!(&told, Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock) {
            // Others have stated the address of this peer. The sender connects again later.
            return;
        }
        if !matches!(told, Some(Ok(()))) {
            self.close(peer, now);
            if !self.wanted.contains(&peer) {
                if self.outgoing.len() + self.wanted.len() >= MAX_LINKS {
                    return;
                }
                self.connect_later(peer, now);
            }
        }
        self.unproved.retain(|other| (other.peer, other.connection.peer) != (peer, process));
        make_room(&mut self.unproved, process, |link| link.connection.peer);
        self.unproved.push(link);
    }

    /// Receives the message of a link that is not proved.
    fn receive_proof(&mut self, index: usize) {
        let link = &self.unproved[index];
        let own = self.outgoing.iter().find(|known| known.peer == link.peer).map(|known| known.secret);
        let is_proved = match link.connection.receive() {
            Found::Some(Message::Proof(secret)) if own.is_some_and(|own| own == secret) => true,
            // The sender also returns the secrets of others that have stated this NIC's address,
            // and it wakes a receiver that sleeps.
            Found::Some(Message::Proof(_) | Message::WakeUp) | Found::Nothing => return,
            Found::Closed => false,
        };
        let link = self.unproved.remove(index);
        self.set_changed();
        let is_other = |other: &&IncomingLink| !other.is_closed && other.peer != link.peer;
        let others = self.incoming.iter().filter(is_other).count();
        let has_room = self.incoming.len() < 2 * MAX_LINKS && others + self.proved.len() < MAX_LINKS;
        if is_proved && has_room {
            self.proved.retain(|earlier| earlier.peer != link.peer);
            self.proved.push(link);
        }
    }

    /// Adds a link, which replaces an earlier one of its sender.
    fn add_incoming(&mut self, link: IncomingLink) {
        for earlier in self.incoming.iter_mut().filter(|earlier| earlier.peer == link.peer) {
            earlier.is_closed = true;
        }
        link.receiver.accept();
        self.incoming.push(link);
        self.accepted += 1;
        self.set_changed();
    }

    /// Gives back the pages of a ring that was not used for a while.
    pub(crate) fn release_idle(&mut self, now: Time) {
        let is_idle = |link: &&mut OutgoingLink| link.idle_at().is_some_and(|at| at <= now);
        if let Some(link) = self.outgoing.iter_mut().find(is_idle) {
            link.release(now);
        }
    }

    /// Returns when the links have something to do without an event: a peer is to be asked whether
    /// its process has ended, the NIC accepts links again, or a ring gives pages back.
    pub(crate) fn next_due(&self, now: Time) -> Option<Time> {
        let accepts = Some(self.accepts_from).filter(|&from| from > now);
        let idle = self.outgoing.iter().filter_map(OutgoingLink::idle_at);
        self.probes.iter().map(|(at, ..)| *at).chain(accepts).chain(idle).min()
    }

    /// Returns a peer that is to be asked now.
    pub(crate) fn take_probe(&mut self, now: Time) -> Option<Gid> {
        let index = self.probes.iter().position(|(at, ..)| *at <= now)?;
        let (at, count, peer) = self.probes.swap_remove(index);
        if let Some(next) = PROBES.get(count + 1) {
            self.probes.push((at + (*next - PROBES[count]), count + 1, peer));
        }
        Some(peer)
    }
}

/// Closes the oldest of the connections that wait for their peers if there are too many, of one
/// process or of all.
fn make_room<T>(waiting: &mut Vec<T>, process: Process, process_of: impl Fn(&T) -> Process) {
    let is_of_process = |waiting: &T| process_of(waiting) == process;
    if waiting.iter().filter(|waiting| is_of_process(waiting)).count() >= MAX_ARRIVING_OF_PROCESS {
        let oldest = waiting.iter().position(is_of_process);
        oldest.map(|oldest| waiting.remove(oldest));
    }
    if waiting.len() >= MAX_ARRIVING {
        waiting.remove(0);
    }
}
