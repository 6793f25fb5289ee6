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
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use mitra_verbs::{Gid, Mtu, Time};

use memory::MappedRing;
pub(crate) use outgoing::{OutgoingLink, Pushed};
use rendezvous::{Connection, Found};
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
/// not proved.
const MAX_ARRIVING: usize = 64;
/// The largest number of connections that one call accepts or refuses.
const MAX_ACCEPTS: usize = 64;
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
/// The largest number of peers that are to be asked because datagrams to them were dropped.
const MAX_PROBES: usize = 64;

/// The links of a NIC.
pub(crate) struct SharedMemoryLinks {
    own: Gid,
    setting: Links,
    /// `None` if the NIC uses no links.
    listener: Option<Arc<OwnedFd>>,
    /// The peers to which the progress thread is to connect.
    wanted: Vec<Gid>,
    outgoing: Vec<OutgoingLink>,
    /// The link in `outgoing` that was used last.
    last_used: usize,
    retries: LastHitCache<Gid, Retry>,
    incoming: Vec<IncomingLink>,
    /// Connections that have not sent their hello.
    arriving: Vec<Connection>,
    /// Links of peers that this NIC wants to connect to, because the connection shows which process
    /// listens under the peer's address.
    unproved: Vec<Unproved>,
    /// Closed links. The progress thread frees them.
    discarded: Discarded,
    /// The peers to be asked whether their process has ended: the time of the next question, the
    /// number of questions so far, and the peer.
    probes: Vec<(Time, usize, Gid)>,
    /// The NIC accepts no links before this time, because the system had no descriptor left.
    accepts_from: Time,
    /// Whether the senders must wake this NIC.
    is_asleep: bool,
    /// Whether [`Self::descriptors`] has changed since the last call.
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
    Free(Discarded),
}

/// The result of a chore.
pub(crate) enum Done {
    Connected { own: Gid, peer: Gid, link: io::Result<OutgoingLink> },
    Freed,
}

/// Links that have ended. To free them takes system calls.
#[derive(Default)]
pub(crate) struct Discarded {
    outgoing: Vec<OutgoingLink>,
    incoming: Vec<IncomingLink>,
}

/// A link from another NIC.
struct IncomingLink {
    peer: Gid,
    connection: Connection,
    receiver: Receiver<MappedRing>,
    /// Whether no datagram may be read yet, because older ones may be in the socket.
    is_new: bool,
    /// Whether the sender is gone. What it sent before is still to be read.
    is_closed: bool,
}

/// A link whose sender is not proved yet.
struct Unproved {
    peer: Gid,
    connection: Connection,
    memory: OwnedFd,
}

impl Chore {
    /// Does the chore. The NIC's lock is free.
    pub(crate) fn run(self) -> Done {
        match self {
            Chore::Connect { own, peer } => {
                Done::Connected { own, peer, link: OutgoingLink::open(own, peer) }
            }
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
            wanted: Vec::new(),
            outgoing: Vec::new(),
            last_used: 0,
            retries: LastHitCache::new(),
            incoming: Vec::new(),
            arriving: Vec::new(),
            unproved: Vec::new(),
            discarded: Discarded::default(),
            probes: Vec::new(),
            accepts_from: Time::ZERO,
            is_asleep: false,
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
        let listener = match setting {
            Links::Udp => None,
            Links::Auto => rendezvous::listen(own).ok(),
            Links::SharedMemory => Some(rendezvous::listen(own)?),
        };
        Ok(SharedMemoryLinks { setting, listener: listener.map(Arc::new), ..SharedMemoryLinks::none(own) })
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
            self.wanted.push(peer);
            self.has_changed = true;
        }
        if self.setting == Links::SharedMemory { Route::Later } else { Route::Udp }
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

    /// Returns whether the progress thread has a chore.
    pub(crate) fn has_chore(&self) -> bool {
        !(self.wanted.is_empty() && self.discarded.outgoing.is_empty() && self.discarded.incoming.is_empty())
    }

    /// Returns the next chore of the progress thread, which ends it by [`Self::finish`].
    pub(crate) fn take_chore(&mut self) -> Option<Chore> {
        let Discarded { outgoing, incoming } = &self.discarded;
        if !outgoing.is_empty() || !incoming.is_empty() {
            return Some(Chore::Free(std::mem::take(&mut self.discarded)));
        }
        self.wanted.first().map(|peer| Chore::Connect { own: self.own, peer: *peer })
    }

    /// Takes the result of a chore.
    pub(crate) fn finish(&mut self, done: Done, now: Time) {
        let Done::Connected { own, peer, link } = done else { return };
        // The NIC may have another address now, or no links.
        let is_wanted = own == self.own && self.wanted.contains(&peer);
        match link {
            Ok(link) if is_wanted => self.outgoing.push(link),
            Ok(link) => self.discarded.outgoing.push(link),
            Err(_) => self.postpone(peer, false, now),
        }
        if is_wanted {
            self.wanted.retain(|wanted| *wanted != peer);
            self.has_changed = true;
            let (of_peer, others) = self.unproved.drain(..).partition(|link| link.peer == peer);
            self.unproved = others;
            of_peer.into_iter().for_each(|link| self.add_incoming(link));
        }
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
        self.has_changed = true;
    }

    /// Accepts no more links, so that the next NIC at this address can.
    pub(crate) fn close_listener(&mut self) {
        self.listener = None;
    }

    /// Closes all links. The NIC uses UDP from now on.
    pub(crate) fn close_all(&mut self) {
        let connections = self.outgoing.iter().map(|link| &link.connection);
        let incoming = self.incoming.iter().map(|link| &link.connection);
        let unproved = self.unproved.iter().map(|link| &link.connection);
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
        self.has_changed = true;
    }

    /// Asks the senders to wake this NIC. Returns false, and does not ask, if a datagram waits.
    pub(crate) fn begin_sleep(&mut self) -> bool {
        self.is_asleep = true;
        let is_idle = self.incoming.iter().all(|link| link.receiver.begin_sleep());
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
    pub(crate) fn descriptors(&mut self, now: Time) -> Vec<Arc<OwnedFd>> {
        self.has_changed = false;
        let listener = self.listener.iter().filter(|_| self.accepts_from <= now).cloned();
        let outgoing = self.outgoing.iter().map(|link| &link.connection);
        // A closed connection is always readable.
        let incoming = self.incoming.iter().filter(|link| !link.is_closed).map(|link| &link.connection);
        let connections = outgoing.chain(incoming).chain(&self.arriving).map(Connection::descriptor);
        listener.chain(connections).collect()
    }

    /// Returns whether a thread that sleeps on [`Self::descriptors`] must be woken, because they
    /// have changed since.
    pub(crate) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// Accepts the links that other NICs have made. A link whose sender is gone meanwhile still has
    /// the last datagrams. If the system has no descriptor or memory left, the connections wait, or
    /// are closed.
    pub(crate) fn accept(&mut self, now: Time) {
        let waiting = self.arriving.len();
        for connection in std::mem::take(&mut self.arriving) {
            self.receive_hello(connection, now);
        }
        self.has_changed |= self.arriving.len() != waiting;
        for _ in 0..MAX_ACCEPTS {
            let Some(listener) = self.listener.as_ref().filter(|_| self.accepts_from <= now) else { break };
            match rendezvous::accept(listener) {
                Ok(Some(connection)) => {
                    self.receive_hello(connection, now);
                    self.has_changed = true;
                }
                Ok(None) => break,
                Err(_) => self.accepts_from = now + MIN_RETRY,
            }
        }
    }

    fn receive_hello(&mut self, connection: Connection, now: Time) {
        match connection.receive_hello() {
            Found::Some((peer, memory)) => self.prove(Unproved { peer, connection, memory }, now),
            Found::Nothing => {
                if self.arriving.len() == MAX_ARRIVING {
                    self.arriving.remove(0).shut_down();
                }
                self.arriving.push(connection);
            }
            Found::Closed => {}
        }
    }

    /// Adds a link, or connects to its sender before. Acknowledgements need a link in the other
    /// direction anyway.
    fn prove(&mut self, link: Unproved, now: Time) {
        let peer = link.peer;
        let known = self.outgoing.iter().find(|known| known.peer == peer);
        if known.is_some_and(|known| known.connection.is_open()) {
            return self.add_incoming(link);
        }
        self.close(peer, now);
        if !self.wanted.contains(&peer) {
            if self.outgoing.len() + self.wanted.len() >= MAX_LINKS {
                return;
            }
            self.wanted.push(peer);
        }
        if self.unproved.len() == MAX_ARRIVING {
            self.unproved.remove(0);
        }
        self.unproved.push(link);
    }

    /// Adds a link if the process that made it is the one that listens under the address of its
    /// sender. The link replaces an earlier one of this sender.
    fn add_incoming(&mut self, link: Unproved) {
        let Unproved { peer, connection, memory } = link;
        let is_proof = |known: &OutgoingLink| known.peer == peer && known.connection.peer == connection.peer;
        if !self.outgoing.iter().any(is_proof) {
            return;
        }
        for link in self.incoming.iter_mut().filter(|link| link.peer == peer) {
            link.is_closed = true;
        }
        if self.incoming.len() >= 2 * MAX_LINKS || self.open_incoming() >= MAX_LINKS {
            return;
        }
        if let Ok(ring) = MappedRing::open(memory, RING) {
            let receiver = Receiver::new(ring, MAX_DATAGRAM);
            receiver.accept();
            self.incoming.push(IncomingLink { peer, connection, receiver, is_new: true, is_closed: false });
            self.accepted += 1;
            self.has_changed = true;
        }
    }

    fn open_incoming(&self) -> usize {
        self.incoming.iter().filter(|link| !link.is_closed).count()
    }

    /// Handles the events of the descriptors: accepts links, and closes those whose other end is
    /// gone.
    pub(crate) fn handle_events(&mut self, now: Time) {
        self.accept(now);
        let is_gone = |link: &&OutgoingLink| !link.connection.take_wake_ups();
        let gone: Vec<Gid> = self.outgoing.iter().filter(is_gone).map(|link| link.peer).collect();
        gone.into_iter().for_each(|peer| self.close(peer, now));
        for link in &mut self.incoming {
            link.is_closed |= !link.connection.take_wake_ups();
        }
    }

    /// Returns when the links have something to do without an event: a peer is to be asked whether
    /// its process has ended, or the NIC accepts links again.
    pub(crate) fn next_due(&self, now: Time) -> Option<Time> {
        let accepts = Some(self.accepts_from).filter(|&from| from > now);
        self.probes.iter().map(|(at, ..)| *at).chain(accepts).min()
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
