//! The non-equivocating broadcast of one message by one sender, as a [`Process`]. All correct
//! processes deliver the same message, or no correct process delivers a message.

use crate::broadcast::{Broadcast, Rules, Slot};
use crate::signature::Signer;
use crate::{Actions, AllRules, Input, Process, ProcessId, Value};
use serde::Serialize;

/// A process that may broadcast one message. Its decision is the first message that it delivers
/// from a given sender.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SingleBroadcast<V, K: Signer, R = AllRules> {
    broadcast: Broadcast<V, K, R>,
    message: Option<V>,
    sender: ProcessId,
    delivered: Option<V>,
}

impl<V: Value + Serialize, K: Signer, R: Rules> SingleBroadcast<V, K, R> {
    /// Creates a process that broadcasts `message`, unless it is `None`, and decides on the first
    /// message from `sender`.
    pub fn new(
        mut broadcast: Broadcast<V, K, R>,
        message: Option<V>,
        sender: ProcessId,
    ) -> SingleBroadcast<V, K, R> {
        broadcast.ignore_all_except(sender);
        SingleBroadcast { broadcast, message, sender, delivered: None }
    }
}

impl<V: Value + Serialize, K: Signer, R: Rules> Process for SingleBroadcast<V, K, R> {
    type Cell = Slot<V, K::Signature>;
    type Message = ();
    type Value = V;

    fn handle(&mut self, input: Input<Self::Cell, ()>, out: &mut Actions<Self>) {
        match input {
            Input::Start => {
                if let Some(message) = self.message.take() {
                    self.broadcast.broadcast(message, out);
                }
                self.broadcast.on_wake(out);
            }
            Input::Wake => self.broadcast.on_wake(out),
            Input::Response { memory, id, response } => {
                if let Some((q, message)) = self.broadcast.on_response(memory, id, response, out)
                    && q == self.sender
                {
                    self.delivered.get_or_insert(message);
                }
            }
            Input::Message { .. } | Input::Leader(_) | Input::Coin(_) => {}
        }
    }

    fn decision(&self) -> Option<&V> {
        self.delivered.as_ref()
    }

    fn attempts(&self) -> u64 {
        0
    }
}
