//! What the threads of the device have received for the manager's thread.

use std::collections::VecDeque;
use std::sync::Mutex;

use mitra_verbs::Gid;

use super::protocol::message::Transaction;
use crate::common::lock::lock;
use crate::rails::cm_receiver::{CmConnection, RailAddress};

/// The maximum number of messages that wait. Further ones are lost, and repeated by their senders.
const MAX_WAITING: usize = 4096;

/// A message that has arrived.
pub struct Received {
    pub from: RailAddress,
    pub content: Content,
}

pub enum Content {
    Message {
        transaction: Transaction,
        /// The GID of the sender's device.
        device: Gid,
    },
    /// An answer to the search of this id: the GID that the device has now.
    Owner(u64, Gid),
    Connections(Vec<CmConnection>),
    UnknownConnections(Vec<CmConnection>),
}

#[derive(Default)]
pub struct ReceivedQueue(Mutex<VecDeque<Received>>);

impl ReceivedQueue {
    /// Returns whether the queue was empty.
    pub fn push(&self, received: Received) -> bool {
        let mut queue = lock(&self.0);
        if queue.len() < MAX_WAITING {
            queue.push_back(received);
        }
        queue.len() == 1
    }

    pub fn take(&self) -> VecDeque<Received> {
        std::mem::take(&mut lock(&self.0))
    }
}
