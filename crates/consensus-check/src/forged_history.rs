//! A face of Byzantine processes where histories are broadcast: it tells of things that never happened, in good form and well signed.

use mitra_consensus::broadcast::{Broadcast, Rules};
use mitra_consensus::robust_backup::{Automaton, Cell, Event, EventBatch};
use mitra_consensus::signature::Signer;
use mitra_consensus::{Actions, Input, Process, ProcessId};

use crate::byzantine::AdversaryRng;

/// A process that broadcasts made-up turns.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ForgedHistory<A: Automaton<K>, K: Signer, B> {
    processes: u8,
    input: A::Input,
    broadcast: Broadcast<EventBatch<A::Input>, K, B>,
    begun: bool,
    whim: AdversaryRng,
}

impl<A: Automaton<K>, K: Signer, B: Rules> ForgedHistory<A, K, B> {
    /// One of `processes` processes, which takes part by `broadcast`; it claims to begin with `input`.
    pub fn new(
        processes: u8,
        input: A::Input,
        broadcast: Broadcast<EventBatch<A::Input>, K, B>,
        whim: u64,
    ) -> ForgedHistory<A, K, B> {
        ForgedHistory { processes, input, broadcast, begun: false, whim: AdversaryRng(whim) }
    }

    fn fable(&mut self, out: &mut Actions<Self>) {
        if !self.broadcast.can_broadcast() {
            return;
        }
        let mut turn = Vec::new();
        // Once it has begun it seldom begins anew, or refers to nobody.
        if !self.begun || self.whim.below(6) == 0 {
            self.begun = true;
            turn.push(Event::Begin(self.input.clone()));
        }
        for _ in 0..1 + self.whim.below(3) {
            let process = ProcessId(self.whim.below(self.processes.into()) as u8);
            turn.push(match self.whim.below(60) {
                0..10 => Event::Leader(process),
                10 => Event::Received(ProcessId(255)),
                _ => Event::Received(process),
            });
        }
        self.broadcast.broadcast(turn, out);
    }
}

impl<A: Automaton<K>, K: Signer, B: Rules> Process for ForgedHistory<A, K, B> {
    type Cell = Cell<A, K>;
    type Message = ();
    type Value = A::Value;

    fn handle(&mut self, input: Input<Self::Cell, ()>, out: &mut Actions<Self>) {
        match input {
            Input::Start | Input::Wake => {
                self.fable(out);
                self.broadcast.on_wake(out);
            }
            Input::Response { memory, id, response } => {
                self.broadcast.on_response(memory, id, response, out);
                self.fable(out);
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
