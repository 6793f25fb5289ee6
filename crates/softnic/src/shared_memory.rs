//! Links through shared memory: how datagrams reach the other NICs of this host without a system
//! call.
//!
//! Each direction of a pair of NICs has a [ring](ring) of its own, which the sender makes when it
//! first sends and passes to the receiver ([`rendezvous`]). The sender writes to the ring at once,
//! so all datagrams of the pair use it. If the receiver does not accept the link in time, or closes
//! it, the sender uses UDP for a while.

#[cfg(test)]
mod hostile_tests;
mod memory;
#[cfg(test)]
mod memory_tests;
mod rendezvous;
mod ring;

use core::time::Duration;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use mitra_verbs::{Gid, Mtu, Time};

use memory::MappedRing;
use rendezvous::{Connection, Found, Process};
pub(crate) use ring::{Broken, Record};
use ring::{Receiver, Sender, ring_size};

use crate::Links;
use crate::interfaces::interface_of;
use crate::last_hit_cache::LastHitCache;

/// The bytes of a ring's memory.
const RING: usize = ring_size(2 << 20);
/// The length of the longest datagram, in bytes: a packet with the largest path MTU and the longest
/// headers.
const MAX_DATAGRAM: usize = Mtu::M4096.bytes() + 128;
/// The largest number of links in each direction, because each has a ring. Other peers are reached
/// over UDP.
const MAX_LINKS: usize = 64;
/// The largest number of connections that have not sent their hello.
const MAX_ARRIVING: usize = 64;
/// The largest number of connections that one call accepts or refuses.
const MAX_ACCEPTS: usize = 64;
/// A receiver that has not accepted a link after this time may never do so: its process is stopped,
/// or has no descriptors left.
const MAX_UNACCEPTED: Duration = Duration::from_millis(10);
/// How long a sender uses UDP before it connects again. After a link that was never accepted, the
/// time doubles, so that the retransmissions of a datagram do not all meet such links.
const MIN_RETRY: Duration = Duration::from_millis(100);
const MAX_RETRY: Duration = Duration::from_secs(60);
/// A full ring blocks the sender for this long at most. A receiver that takes longer loses
/// datagrams, because its sender has other peers, too.
const MAX_BLOCKED: Duration = Duration::from_millis(1);
/// The times after the end of a link at which the sender asks whether the process of the peer has
/// ended. A process that ends may close its link before its port.
const PROBES: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(5), Duration::from_millis(50), Duration::from_millis(500)];

/// The links of a NIC.
pub(crate) struct SharedMemoryLinks {
    own: Gid,
    /// `None` if the NIC uses no links.
    listener: Option<Arc<OwnedFd>>,
    /// Whether the NIC drops the datagrams to peers without a link ([`Links::SharedMemory`]).
    are_only: bool,
    outgoing: Vec<OutgoingLink>,
    /// The link in `outgoing` that was used last.
    last_used: usize,
    retries: LastHitCache<Gid, Retry>,
    incoming: Vec<IncomingLink>,
    /// Connections that have not sent their hello.
    arriving: Vec<Connection>,
    /// The peers to be asked whether their process has ended: the time of the next question, the
    /// number of questions so far, and the peer.
    probes: Vec<(Time, usize, Gid)>,
    /// The NIC accepts no links before this time, because the system had no descriptor left.
    accepts_from: Time,
    /// Whether the senders must wake this NIC.
    is_asleep: bool,
    /// Whether [`Self::descriptors`] has changed since the last call.
    has_changed: bool,
}

/// When a sender without a link connects again.
#[derive(Clone, Copy)]
struct Retry {
    at: Time,
    /// The time to wait after the next link that is not accepted.
    delay: Duration,
}

/// A link to another NIC.
pub(crate) struct OutgoingLink {
    peer: Gid,
    connection: Connection,
    sender: Sender<MappedRing>,
    opened: Time,
    is_accepted: bool,
    /// Since when the ring has been full.
    full_since: Option<Time>,
}

/// A link from another NIC.
struct IncomingLink {
    peer: Gid,
    connection: Connection,
    receiver: Receiver<MappedRing>,
    /// Whether the sender is gone. What it sent before is still to be read.
    is_closed: bool,
}

/// The result of adding a datagram to a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pushed {
    Sent,
    /// The ring is full. The sender tries again.
    Blocked,
    /// The ring has been full for too long. The datagram is lost.
    Dropped,
}

impl OutgoingLink {
    fn open(own: Gid, peer: Gid, now: Time) -> io::Result<OutgoingLink> {
        let connection = Connection::open(peer)?;
        // The name proves nothing: a process may listen under the address of another host.
        if interface_of(IpAddr::from(peer))?.is_none() {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        let ring = MappedRing::create(RING)?;
        connection.send_hello(own, &ring)?;
        let sender = Sender::new(ring);
        Ok(OutgoingLink { peer, connection, sender, opened: now, is_accepted: false, full_since: None })
    }

    /// Adds a datagram to the batch.
    ///
    /// # Errors
    /// [`Broken`] if the receiver has damaged the ring.
    pub(crate) fn push(&mut self, now: Time, record: Record, datagram: &[u8]) -> Result<Pushed, Broken> {
        if self.sender.push(record, datagram)? {
            self.full_since = None;
            return Ok(Pushed::Sent);
        }
        let is_brief = now - *self.full_since.get_or_insert(now) < MAX_BLOCKED;
        Ok(if is_brief { Pushed::Blocked } else { Pushed::Dropped })
    }

    /// Makes the batch visible to the receiver, and wakes it if it sleeps.
    ///
    /// # Errors
    /// [`Broken`] if the receiver cannot be woken.
    pub(crate) fn publish(&mut self) -> Result<(), Broken> {
        if self.sender.publish() { self.connection.wake_peer().map_err(|_| Broken) } else { Ok(()) }
    }

    /// Returns whether the receiver has had the time to accept the link, and has not.
    fn is_overdue(&mut self, now: Time) -> bool {
        if self.is_accepted || now - self.opened < MAX_UNACCEPTED {
            return false;
        }
        self.is_accepted = self.sender.is_accepted();
        !self.is_accepted
    }

    fn is_alive_to(&self, process: Process) -> bool {
        self.connection.peer == process && self.connection.is_open()
    }
}

impl SharedMemoryLinks {
    /// Makes the links of a NIC that uses UDP only.
    pub(crate) fn none(own: Gid) -> SharedMemoryLinks {
        SharedMemoryLinks {
            own,
            listener: None,
            are_only: false,
            outgoing: Vec::new(),
            last_used: 0,
            retries: LastHitCache::new(),
            incoming: Vec::new(),
            arriving: Vec::new(),
            probes: Vec::new(),
            accepts_from: Time::ZERO,
            is_asleep: false,
            has_changed: true,
        }
    }

    /// Lets the NICs of this host connect to the NIC at an address, unless `links` excludes it.
    ///
    /// # Errors
    /// The NIC cannot listen, for example because another process does under this address, and
    /// `links` excludes UDP.
    pub(crate) fn open(own: Gid, links: Links) -> io::Result<SharedMemoryLinks> {
        let listener = match links {
            Links::Udp => None,
            Links::Auto => rendezvous::listen(own).ok(),
            Links::SharedMemory => Some(rendezvous::listen(own)?),
        };
        let are_only = links == Links::SharedMemory;
        Ok(SharedMemoryLinks { listener: listener.map(Arc::new), are_only, ..SharedMemoryLinks::none(own) })
    }

    /// Returns the link to a peer. Connects if there is none. Returns `None` if the peer is reached
    /// over UDP.
    #[inline]
    pub(crate) fn to(&mut self, peer: Gid, now: Time) -> Option<&mut OutgoingLink> {
        self.listener.as_ref()?;
        let index = match self.outgoing.get(self.last_used) {
            Some(link) if link.peer == peer => self.last_used,
            _ => self.find_or_connect(peer, now)?,
        };
        self.last_used = index;
        if !self.are_only && self.outgoing[index].is_overdue(now) {
            self.close(peer, now);
            return None;
        }
        self.outgoing.get_mut(index)
    }

    fn find_or_connect(&mut self, peer: Gid, now: Time) -> Option<usize> {
        if let Some(index) = self.outgoing.iter().position(|link| link.peer == peer) {
            return Some(index);
        }
        if self.retry(peer).at > now || self.outgoing.len() == MAX_LINKS {
            return None;
        }
        self.connect(peer, now)
    }

    fn retry(&mut self, peer: Gid) -> &mut Retry {
        self.retries.get_or_insert_with(peer, || Retry { at: Time::ZERO, delay: MIN_RETRY })
    }

    #[cold]
    fn connect(&mut self, peer: Gid, now: Time) -> Option<usize> {
        let Ok(link) = OutgoingLink::open(self.own, peer, now) else {
            self.retry(peer).at = now + MIN_RETRY;
            return None;
        };
        self.outgoing.push(link);
        self.has_changed = true;
        Some(self.outgoing.len() - 1)
    }

    /// Closes the link to a peer. Datagrams go over UDP for a while. The peer is asked whether its
    /// process has ended.
    pub(crate) fn close(&mut self, peer: Gid, now: Time) {
        let Some(index) = self.outgoing.iter().position(|link| link.peer == peer) else { return };
        let link = self.outgoing.remove(index);
        let was_accepted = link.is_accepted || link.sender.is_accepted();
        if !was_accepted {
            link.sender.abandon();
        }
        link.connection.shut_down();
        let has_udp = !self.are_only;
        let retry = self.retry(peer);
        let delay = if was_accepted { MIN_RETRY } else { retry.delay };
        let next = if has_udp { (2 * delay).min(MAX_RETRY) } else { MIN_RETRY };
        *retry = Retry { at: now + delay, delay: next };
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
        connections.chain(incoming).chain(&self.arriving).for_each(Connection::shut_down);
        *self = SharedMemoryLinks::none(self.own);
    }

    /// Returns the number of links from other NICs.
    pub(crate) fn incoming_count(&self) -> usize {
        self.incoming.len()
    }

    /// Returns the NIC that sends on an incoming link.
    pub(crate) fn sender_of(&self, index: usize) -> Gid {
        self.incoming[index].peer
    }

    /// Removes the next datagram of an incoming link, and copies it to the start of `out`.
    ///
    /// # Errors
    /// [`Broken`] if the sender has damaged the ring.
    pub(crate) fn pop(&mut self, index: usize, out: &mut [u8]) -> Result<Option<Record>, Broken> {
        self.incoming[index].receiver.pop(out)
    }

    /// Returns whether the sender of an incoming link is gone.
    pub(crate) fn is_closed(&self, index: usize) -> bool {
        self.incoming[index].is_closed
    }

    /// Closes an incoming link.
    pub(crate) fn close_incoming(&mut self, index: usize) {
        self.incoming.remove(index).connection.shut_down();
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
            Found::Some((peer, memory)) => self.add_incoming(peer, connection, memory, now),
            Found::Nothing => {
                if self.arriving.len() == MAX_ARRIVING {
                    self.arriving.remove(0).shut_down();
                }
                self.arriving.push(connection);
            }
            Found::Closed => {}
        }
    }

    /// Adds a link from `peer`, if the process that made it is the one that listens under this
    /// address. Acknowledgements need a link in the other direction anyway. The link replaces an
    /// earlier one from this peer.
    fn add_incoming(&mut self, peer: Gid, connection: Connection, memory: OwnedFd, now: Time) {
        let known = self.outgoing.iter().position(|link| link.peer == peer);
        let mut is_proved = known.is_some_and(|at| self.outgoing[at].connection.peer == connection.peer);
        if known.is_none_or(|at| !self.outgoing[at].is_alive_to(connection.peer)) && connection.is_open() {
            if known.is_some() {
                self.close(peer, now);
            }
            let opened = (self.outgoing.len() < MAX_LINKS).then(|| self.connect(peer, now)).flatten();
            is_proved = opened.is_some_and(|at| self.outgoing[at].connection.peer == connection.peer);
        }
        if !is_proved {
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
            if !receiver.accept() {
                return;
            }
            self.incoming.push(IncomingLink { peer, connection, receiver, is_closed: false });
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
