//! The sender's end of a link.

use core::time::Duration;
use std::io;
use std::net::IpAddr;

use mitra_verbs::{Gid, Time};

use super::RING;
use super::memory::MappedRing;
use super::rendezvous::Connection;
use super::ring::{Broken, Record, Sender};
use crate::interfaces::interface_of;

/// A full ring blocks the sender for this long at most. A receiver that takes longer loses
/// datagrams, because its sender has other peers, too.
const MAX_BLOCKED: Duration = Duration::from_millis(10);
/// A link to another NIC.
pub(crate) struct OutgoingLink {
    pub(super) peer: Gid,
    pub(super) connection: Connection,
    sender: Sender<MappedRing>,
    is_accepted: bool,
    /// Since when the ring has been full.
    full_since: Option<Time>,
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
    pub(super) fn open(own: Gid, peer: Gid) -> io::Result<OutgoingLink> {
        let connection = Connection::open(peer)?;
        // The name proves nothing: a process may listen under the address of another host.
        if interface_of(IpAddr::from(peer))?.is_none() {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        let ring = MappedRing::create(RING)?;
        connection.send_hello(own, &ring)?;
        let sender = Sender::new(ring);
        Ok(OutgoingLink { peer, connection, sender, is_accepted: false, full_since: None })
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

    /// Returns whether the receiver has accepted the link.
    pub(super) fn is_accepted(&mut self) -> bool {
        self.is_accepted = self.is_accepted || self.sender.is_accepted();
        self.is_accepted
    }
}
