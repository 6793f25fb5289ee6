//! Faults on demand, sans-IO: what a rail does to packets, and at which stage it dies.
//!
//! A driver asks [`Faults`] at its taps: before a packet leaves, before an arrived one is executed, after it was
//! executed. The stages are those of the failover specification (`docs/failover.md`).

use core::time::Duration;

/// What dies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Failure {
    /// The cable is out: nothing passes in either direction, the port goes down, the NIC lives.
    LinkDown,
    /// The NIC is dead: host access fails, DMA has stopped, nothing passes.
    NicDead,
    /// The NIC is hung: host access fails, but packets are still executed and answered.
    NicHung,
    /// The NIC acknowledges but no longer places: what it acknowledges from here on is lost when it dies.
    NotPlaced,
}

/// Where in an operation's life a failure falls. 1, 2 and 7 are seen at the requester's NIC, the others at the responder's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Stage {
    /// 1: posted, not sent.
    Posted = 1,
    /// 2: the request is on the wire, and lost.
    RequestOnWire,
    /// 3: at the responder, not executed.
    Arrived,
    /// 4: some packets of the message are executed.
    PartlyExecuted,
    /// 5: executed, not acknowledged.
    Executed,
    /// 6: the acknowledgement (or response) is on the wire, and lost.
    AckOnWire,
    /// 7: acknowledged, no completion yet.
    Acknowledged,
    /// 8: acknowledged, not yet placed in memory.
    NotPlaced,
}

/// Fails a NIC when the `nth` matching packet (counted from 1) reaches a stage.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Trigger {
    /// Where.
    pub stage: Stage,
    /// At which one.
    pub nth: u32,
    /// What dies.
    pub failure: Failure,
}

/// What a rail does to packets at random; probabilities in parts per million.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Noise {
    /// Lost.
    pub drop_ppm: u32,
    /// Delivered twice.
    pub duplicate_ppm: u32,
    /// Held back by a random time up to `max_delay`, so that later ones overtake it.
    pub reorder_ppm: u32,
    /// One bit flipped.
    pub corrupt_ppm: u32,
    /// The longest that a packet is held back.
    pub max_delay: Duration,
}

/// What becomes of one packet at a tap.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// Nothing.
    Pass,
    /// It is lost.
    Drop,
    /// It is delivered now and once more.
    Duplicate,
    /// It is delivered later.
    Delay(Duration),
    /// This bit of it is flipped (counted from the first byte of the BTH, modulo its length).
    Corrupt(u32),
}
