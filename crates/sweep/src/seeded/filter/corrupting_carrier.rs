//! A carrier that corrupts messages where no ICRC protects them, as in host memory.

use std::cell::Cell;
use std::rc::Rc;

use mitra_filter::rpc::{Carrier, Event, OrderedCarrier};
use mitra_verbs::{Result, Time};

use mitra_sim::Prng;

/// A carrier that flips a bit of some messages that are sent or delivered.
pub(super) struct CorruptingCarrier<C> {
    inner: C,
    rng: Prng,
    ppm: u32,
    closed: Rc<Cell<u32>>,
}

impl<C> CorruptingCarrier<C> {
    pub(super) fn new(inner: C, rng: Prng, ppm: u32, closed: &Rc<Cell<u32>>) -> CorruptingCarrier<C> {
        CorruptingCarrier { inner, rng, ppm, closed: Rc::clone(closed) }
    }
}

fn corrupt(rng: &mut Prng, ppm: u32, message: &[u8]) -> Vec<u8> {
    let mut bytes = message.to_vec();
    if rng.chance(ppm) && !bytes.is_empty() {
        let bit = rng.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    bytes
}

impl<C: Carrier> Carrier for CorruptingCarrier<C> {
    type Node = C::Node;

    fn now(&self) -> Time {
        self.inner.now()
    }

    fn max_message(&self) -> usize {
        self.inner.max_message()
    }

    fn send(&mut self, to: C::Node, message: &[u8]) {
        let message = corrupt(&mut self.rng, self.ppm, message);
        self.inner.send(to, &message);
    }

    fn poll(&mut self, handle: &mut dyn FnMut(C::Node, Event<'_>)) -> Result<()> {
        let (rng, ppm, closed) = (&mut self.rng, self.ppm, &self.closed);
        self.inner.poll(&mut |node, event| match event {
            Event::Message(message) => handle(node, Event::Message(&corrupt(rng, ppm, message))),
            Event::Closed => {
                closed.set(closed.get() + 1);
                handle(node, Event::Closed);
            }
        })
    }
}

impl<C: OrderedCarrier> OrderedCarrier for CorruptingCarrier<C> {}
