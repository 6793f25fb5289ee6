//! The sender's end of a link.

use core::time::Duration;
use std::io;
use std::net::IpAddr;

use mitra_os_util::interfaces::interface_of;
use mitra_verbs::{Gid, Time};

use super::RING;
use super::memory::{MappedRing, NewRing};
use super::rendezvous::{Connection, Secret};
use super::ring::{Broken, Record, Sender, limit_within, ring_size};

/// The bytes of a new ring that have pages, which are those of an idle ring, too. A NIC with the
/// largest number of links has 8 MiB of such pages. After a failover, 64 messages of 4 KiB go
/// through a ring that was idle. With 32 KiB, its sender would add pages meanwhile, which takes
/// longer than the messages.
const MIN_ALLOCATED: usize = 128 << 10;
/// A ring that is used has at least this many bytes of pages. With 64 KiB, WRITEs of 4 KiB in turn
/// take 9 % longer, and with 128 KiB, READs of 64 KiB 13 %.
const MIN_BUSY: usize = 256 << 10;
/// A ring is used if it wraps around [`WRAPS_UNTIL_BUSY`](super::ring::WRAPS_UNTIL_BUSY) times in
/// this time, at more than 1 MB/s. Heartbeats alone send a small part of that.
const BUSY_TIME: Duration = Duration::from_millis(400);
/// The bytes of pages that a full ring gets at once. To add them takes 10 to 30 µs.
const GROWTH: usize = 64 << 10;
/// A ring that was not used for this long gives its pages back.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// A link to another NIC.
pub(crate) struct OutgoingLink {
    pub(super) peer: Gid,
    pub(super) connection: Connection,
    /// What only the process that accepts the connection knows.
    pub(super) secret: Secret,
    sender: Sender<MappedRing>,
    /// Whether the kernel can add pages to the ring.
    can_grow: bool,
    is_accepted: bool,
    /// When the ring was last used.
    used_at: Time,
    /// Since when the sender counts how often the ring has wrapped around.
    wraps_since: Time,
}

impl OutgoingLink {
    pub(super) fn open(own: Gid, peer: Gid) -> io::Result<OutgoingLink> {
        let connection = Connection::open(peer)?;
        // Any process may choose a socket name with this address, so ask the system whether the
        // address is of this host.
        if interface_of(IpAddr::from(peer))?.is_none() {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        let secret = Secret::new()?;
        let NewRing { ring, file, allocated } = MappedRing::create(RING, MIN_ALLOCATED)?;
        connection.send_hello(own, secret, &file)?;
        let mut sender = Sender::new(ring);
        let can_grow = allocated < RING;
        if can_grow {
            // Nobody has used the ring, so this cannot fail.
            let _ = sender.shrink(limit_within(allocated));
            sender.set_busy_limit(limit_within(MIN_BUSY));
        }
        Ok(OutgoingLink {
            peer,
            connection,
            secret,
            sender,
            can_grow,
            is_accepted: false,
            used_at: Time::ZERO,
            wraps_since: Time::ZERO,
        })
    }

    /// Adds a datagram to the batch. Returns false if the ring is full: the receiver wakes this end
    /// when it has read a datagram.
    ///
    /// # Errors
    /// [`Broken`] if the receiver has damaged the ring.
    pub(crate) fn push(&mut self, now: Time, record: Record, datagram: &[u8]) -> Result<bool, Broken> {
        self.used_at = now;
        if now.saturating_since(self.wraps_since) >= BUSY_TIME {
            self.wraps_since = now;
            self.sender.forget_wraps();
        }
        if self.sender.push(record, datagram)? {
            return Ok(true);
        }
        self.push_to_full(record, datagram)
    }

    #[cold]
    fn push_to_full(&mut self, record: Record, datagram: &[u8]) -> Result<bool, Broken> {
        while self.sender.outgrows(datagram.len()) {
            self.grow();
            if self.sender.push(record, datagram)? {
                return Ok(true);
            }
        }
        self.sender.begin_wait();
        self.sender.push(record, datagram)
    }

    /// Adds pages to the ring, until it has all, or no memory is left.
    fn grow(&mut self) {
        // The pages in front hold the header word behind the last record, too.
        let from = ring_size(self.sender.limit());
        let next = (from + GROWTH).min(RING);
        if next > from && self.sender.memory().allocate(from, next - from).is_ok() {
            self.sender.grow(if next == RING { RING - ring_size(0) } else { limit_within(next) });
        } else {
            self.sender.fix_limit();
        }
    }

    /// Returns when the ring gives pages back unless it is used again. `None` if it has none to
    /// give.
    pub(super) fn idle_at(&self) -> Option<Time> {
        let has_more = self.sender.limit() > limit_within(MIN_ALLOCATED) || self.sender.is_fixed();
        (self.can_grow && has_more).then_some(self.used_at + IDLE_AFTER)
    }

    /// Gives pages back if the receiver has read all.
    pub(super) fn release(&mut self, now: Time) {
        match self.sender.shrink(limit_within(MIN_ALLOCATED)) {
            Ok(Some(kept)) => self.sender.memory().free(MIN_ALLOCATED, kept),
            // A later push finds the damage.
            Ok(None) | Err(Broken) => self.used_at = now,
        }
    }

    /// Makes the batch visible to the receiver, and wakes it if it sleeps.
    ///
    /// # Errors
    /// [`Broken`] if the receiver cannot be woken.
    pub(crate) fn publish(&mut self) -> Result<(), Broken> {
        if self.sender.publish() { self.connection.wake_peer().map_err(|_| Broken) } else { Ok(()) }
    }

    /// Returns whether the receiver has accepted the link.
    pub(super) fn is_accepted(&mut self) -> bool {
        self.is_accepted = self.is_accepted || self.sender.is_accepted();
        self.is_accepted
    }
}
