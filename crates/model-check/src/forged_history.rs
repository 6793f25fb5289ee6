//! An instance of a Byzantine process of Robust Backup. The instance broadcasts events that did not
//! occur, in valid form and with valid signatures.

use mitra_consensus::broadcast::{Broadcast, Rules};
use mitra_consensus::robust_backup::{Automaton, Cell, Event, EventBatch};
use mitra_consensus::signature::Signer;
use mitra_consensus::{Actions, Input, Process, ProcessId};

use crate::byzantine::AdversaryRng;

/// A process that broadcasts batches of forged events.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ForgedHistory<A: Automaton<K>, K: Signer, B> {
    processes: u8,
    input: A::Input,
    broadcast: Broadcast<EventBatch<A::Input>, K, B>,
    has_begun: bool,
    adversary: AdversaryRng,
}

impl<A: Automaton<K>, K: Signer, B: Rules> ForgedHistory<A, K, B> {
    /// Creates one of `processes` processes, which sends with `broadcast` and claims that it
    /// started with `input`.
    pub fn new(
        processes: u8,
        input: A::Input,
        broadcast: Broadcast<EventBatch<A::Input>, K, B>,
        adversary_seed: u64,
    ) -> ForgedHistory<A, K, B> {
        ForgedHistory {
            processes,
            input,
            broadcast,
            has_begun: false,
            adversary: AdversaryRng(adversary_seed),
        }
    }

    fn broadcast_forged_batch(&mut self, out: &mut Actions<Self>) {
        if !self.broadcast.can_broadcast() {
            return;
        }
        let mut batch = Vec::new();
        // The other processes ignore a process after a second start, or after a message from a
        // process that does not exist. Both events are therefore rare.
        if !self.has_begun || self.adversary.below(6) == 0 {
            self.has_begun = true;
            batch.push(Event::Begin(self.input.clone()));
        }
        for _ in 0..1 + self.adversary.below(3) {
            let process = ProcessId(self.adversary.below(self.processes.into()) as u8);
            batch.push(match self.adversary.below(60) {
                0..10 => Event::Leader(process),
                10 => Event::Received(ProcessId(255)),
                _ => Event::Received(process),
            });
        }
        self.broadcast.broadcast(batch, out);
    }
}

impl<A: Automaton<K>, K: Signer, B: Rules> Process for ForgedHistory<A, K, B> {
    type Cell = Cell<A, K>;
    type Message = ();
    type Value = A::Value;

    fn handle(&mut self, input: Input<Self::Cell, ()>, out: &mut Actions<Self>) {
        match input {
            Input::Start | Input::Wake => {
                self.broadcast_forged_batch(out);
                self.broadcast.on_wake(out);
            }
            Input::Response { memory, id, response } => {
                self.broadcast.on_response(memory, id, response, out);
                self.broadcast_forged_batch(out);
            }
            Input::Message { .. } | Input::Leader(_) | Input::Coin(_) => {}
        }
    }

    fn decision(&self) -> Option<&A::Value> {
        None
    }

    fn attempts(&self) -> u64 {
        0
    }
}
