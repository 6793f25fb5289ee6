//! The connections of a process, also of identifiers that the program has destroyed.

use std::collections::HashMap;
use std::time::Instant;

use mitra_verbs::Gid;

use super::cm_event::IdHandle;
use super::network::PeerPath;
use super::protocol::connection::Connection;
use super::protocol::message::{Answered, Ids, Message, Rejection, Request, Transaction, reject_reason};
use super::refusals::Refusals;

/// The maximum number of connections whose identifiers are destroyed. They answer repeated messages
/// for a few seconds. Beyond the limit, a new one ends at once.
const MAX_WITHOUT_OWNER: usize = 4096;

/// A connection, until it is over.
pub struct Entry {
    pub connection: Connection,
    /// The REQ that is sent once the destination is known.
    pub request: Option<Request>,
    /// `None` until the destination is known.
    pub path: Option<PeerPath>,
    /// The identifier, unless the program has destroyed it.
    pub owner: Option<IdHandle>,
    /// Whether the peer's device is one of Mitra's.
    pub is_mitra: bool,
    /// The messages that the peer's host has refused while this end waits for an answer.
    pub refusals: Refusals,
}

#[derive(Default)]
pub struct ConnectionTable {
    /// By the communication id of this end.
    entries: HashMap<u32, Entry>,
    /// The received requests: the communication id of this end, by the requester's device and its
    /// communication id.
    requests: HashMap<(Gid, u32), u32>,
    /// The keys in `requests`, by the communication id of this end.
    keys: HashMap<u32, (Gid, u32)>,
    without_owner: usize,
}

impl ConnectionTable {
    pub fn contains(&self, id: u32) -> bool {
        self.entries.contains_key(&id)
    }

    pub fn insert(&mut self, entry: Entry) {
        let ids = entry.connection.ids();
        if let Some(path) = entry.path.as_ref().filter(|_| ids.receiver != 0) {
            self.requests.insert((path.gid, ids.receiver), ids.sender);
            self.keys.insert(ids.sender, (path.gid, ids.receiver));
        }
        self.entries.insert(ids.sender, entry);
    }

    pub fn get(&mut self, id: u32) -> Option<&mut Entry> {
        self.entries.get_mut(&id)
    }

    pub fn values(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.entries.values_mut()
    }

    /// Returns the connection's communication id if this end has received the request.
    pub fn of_request(&self, device: Gid, sender: u32) -> Option<u32> {
        self.requests.get(&(device, sender)).copied()
    }

    /// Returns the communication id of the connection to which a message belongs. A REQ is looked
    /// up by its sender, and a REJ of a requester that does not know the id of this end, too.
    pub fn find(&self, device: Gid, message: &Message) -> Option<u32> {
        let ids = match message {
            Message::Req(request) => return self.of_request(device, request.sender),
            Message::Mra(ids, _)
            | Message::Rej(ids, _)
            | Message::Rep(ids, _)
            | Message::Rtu(ids)
            | Message::Dreq(ids, _)
            | Message::Drep(ids) => *ids,
            Message::SidrReq(_) | Message::SidrRep(_) => return None,
        };
        if let (Message::Rej(..), 0) = (message, ids.receiver) {
            // The requester of an established connection knows it.
            let id = self.of_request(device, ids.sender)?;
            return self.entries.get(&id).filter(|entry| !entry.connection.was_established()).map(|_| id);
        }
        let own = self.entries.get(&ids.receiver)?.connection.ids();
        // Before the reply, the requester does not know the id of the other end.
        (own.receiver == ids.sender || own.receiver == 0).then_some(own.sender)
    }

    /// Handles the destruction of the identifier. The connection continues without it.
    pub fn abandon(&mut self, id: u32, now: Instant) {
        let has_room = self.without_owner < MAX_WITHOUT_OWNER;
        if let Some(entry) = self.entries.get_mut(&id)
            && entry.owner.take().is_some()
        {
            self.without_owner += 1;
            entry.connection.abandon(now);
            if !has_room {
                entry.connection.forget();
            }
        }
    }

    /// Removes a connection that is over.
    pub fn remove(&mut self, id: u32) {
        let Some(entry) = self.entries.remove(&id) else { return };
        if entry.owner.is_none() {
            self.without_owner -= 1;
        }
        if let Some(key) = self.keys.remove(&id) {
            self.requests.remove(&key);
        }
    }

    /// Returns the ids of the connections whose timer has expired.
    pub fn due(&self, now: Instant) -> Vec<u32> {
        let is_due = |entry: &Entry| entry.connection.deadline().is_some_and(|deadline| deadline <= now);
        self.entries.iter().filter(|(_, entry)| is_due(entry)).map(|(id, _)| *id).collect()
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.entries.values().filter_map(|entry| entry.connection.deadline()).min()
    }

    /// Returns the answer to a message that names no connection of this end.
    pub fn answer_to_stranger(transaction: &Transaction) -> Option<Transaction> {
        let reverse = |ids: &Ids| Ids { sender: ids.receiver, receiver: ids.sender };
        let message = match &transaction.message {
            // The peer's DREP was lost, and this end has forgotten the connection.
            Message::Dreq(ids, _) => Message::Drep(reverse(ids)),
            Message::Rep(ids, _) => Message::Rej(
                reverse(ids),
                Rejection::new(Answered::Rep, reject_reason::INVALID_COMMUNICATION_ID),
            ),
            _ => return None,
        };
        Some(Transaction { id: transaction.id, message })
    }
}
