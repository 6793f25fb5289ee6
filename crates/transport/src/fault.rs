//! Faults on demand, sans-IO: what a rail does to packets, and at which stage it dies.
//!
//! A driver asks [`Faults`] at its taps: [`Faults::transmit`] before a packet leaves the NIC, [`Faults::receive`]
//! before the NIC executes an arrived one, [`Faults::executed`] after that and before any answer leaves. It does what
//! the [`TapResult`] says, and before each step that a failed NIC cannot take it asks [`Faults::host_access_ok`],
//! [`Faults::dma_ok`] and [`Faults::placement_ok`]. While [`Faults::is_idle`] there is no need to ask at all.
//!
//! The stages are those of the failover specification (`docs/failover.md`); `docs/faults.md` tells users how to script
//! them. Which failure strikes at which packet is decided by counting, noise by a seeded generator: the same packets
//! in the same order meet the same faults.

mod script;
#[cfg(test)]
mod tests;

use core::time::Duration;

use mitra_wire::{Message, Packet, Psn, Syndrome, Transport};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

pub use script::{Delay, ScriptError};

/// What dies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Failure {
    /// The cable is out: nothing passes in either direction, the port goes down, the NIC lives.
    LinkDown,
    /// The NIC is dead: host access fails, DMA has stopped, nothing passes.
    NicDead,
    /// The NIC is hung: host access fails, but packets are still executed and answered.
    NicHung,
    /// The NIC acknowledges but holds back what it should place: lost if it dies next, placed if another failure
    /// comes first.
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

/// Fails a NIC when the `nth` matching packet, counted from 1 since [`Faults::arm`], reaches a stage. `docs/faults.md`
/// says for each stage which packets match, and what becomes of the one that the failure strikes at.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Trigger {
    /// Where.
    pub stage: Stage,
    /// At which one.
    pub nth: u32,
    /// What dies.
    pub failure: Failure,
}

/// What a rail does to packets at random; probabilities in parts per million. At most one of them befalls a packet:
/// what exceeds a million, in the order drop, corrupt, duplicate, reorder, is cut.
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

/// What a tap says about a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TapResult {
    /// What becomes of the packet.
    pub verdict: Verdict,
    /// What has just failed, so that the driver reports it: a packet that passes goes first. Should several triggers
    /// strike at one packet, this is the first of them, and the state shows all.
    pub failure: Option<Failure>,
}

/// How the NIC itself is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Health {
    Alive,
    Hung,
    Dead,
}

/// A trigger that has not struck yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Armed {
    trigger: Trigger,
    /// Matching packets still to come, the one that it strikes at included.
    left: u32,
    /// Stage 8 after its nth request, which had this PSN: waits until that is acknowledged.
    holds_from: Option<Psn>,
}

/// The faults of one NIC and its rail: what is armed, and what has failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Faults {
    rng: ChaCha8Rng,
    noise_tx: Noise,
    noise_rx: Noise,
    armed: Vec<Armed>,
    link_up: bool,
    health: Health,
    holding_back: bool,
}

impl Faults {
    /// No faults. `seed` decides what noise does.
    pub fn new(seed: [u8; 32]) -> Faults {
        Faults {
            rng: ChaCha8Rng::from_seed(seed),
            noise_tx: Noise::default(),
            noise_rx: Noise::default(),
            armed: Vec::new(),
            link_up: true,
            health: Health::Alive,
            holding_back: false,
        }
    }

    /// What befalls packets that leave.
    pub fn set_noise_tx(&mut self, noise: Noise) {
        self.noise_tx = noise;
    }

    /// What befalls packets that arrive.
    pub fn set_noise_rx(&mut self, noise: Noise) {
        self.noise_rx = noise;
    }

    /// Adds a trigger; it strikes once. Several count side by side.
    pub fn arm(&mut self, trigger: Trigger) {
        self.armed.push(Armed { trigger, left: trigger.nth.max(1), holds_from: None });
    }

    /// Disarms all triggers, also one of stage 8 that holds placements back already; these are then placed.
    pub fn disarm_all(&mut self) {
        if self.armed.iter().any(|armed| armed.holds_from.is_some()) {
            self.holding_back = false;
        }
        self.armed.clear();
    }

    /// Fails now.
    pub fn fail(&mut self, failure: Failure) {
        self.holding_back = failure == Failure::NotPlaced;
        match failure {
            Failure::LinkDown => self.link_up = false,
            Failure::NicDead => self.health = Health::Dead,
            Failure::NicHung if self.health == Health::Alive => self.health = Health::Hung,
            Failure::NicHung | Failure::NotPlaced => {}
        }
    }

    /// Puts the cable in again. Nothing brings a NIC back: open a new one.
    pub fn heal_link(&mut self) {
        self.link_up = true;
    }

    /// Ends [`Failure::NotPlaced`]: what is held back is placed, and so is what follows.
    pub fn resume_placement(&mut self) {
        self.holding_back = false;
        self.armed.retain(|armed| armed.holds_from.is_none());
    }

    /// Whether the cable is in.
    pub fn link_up(&self) -> bool {
        self.link_up
    }

    /// Whether verbs calls reach the NIC: it is neither dead nor hung.
    pub fn host_access_ok(&self) -> bool {
        self.health == Health::Alive
    }

    /// Whether the NIC still touches memory, executes packets and writes completions: it is not dead.
    pub fn dma_ok(&self) -> bool {
        self.health != Health::Dead
    }

    /// Whether what the NIC executes reaches memory now. While it does not, the driver keeps writes and the results of
    /// atomics, in order, where the NIC's own reads see them but the host does not. When this is true again they are
    /// placed; when [`Faults::dma_ok`] no longer is, they are lost.
    pub fn placement_ok(&self) -> bool {
        self.dma_ok() && !self.holding_back
    }

    /// Whether nothing is armed, failed or noisy.
    pub fn is_idle(&self) -> bool {
        let silent = Noise::default();
        self.armed.is_empty()
            && self.link_up
            && self.health == Health::Alive
            && !self.holding_back
            && (self.noise_tx, self.noise_rx) == (silent, silent)
    }

    /// A packet is about to leave the NIC. The driver asks for each packet in turn, and sends one that passes before
    /// it acts on the failure.
    pub fn transmit(&mut self, packet: &Packet<'_>) -> TapResult {
        if !self.passing() {
            return TapResult { verdict: Verdict::Drop, failure: None };
        }
        let kind = Kind::of(packet);
        let posted = if kind.is_request() { self.reached(Stage::Posted, packet.psn) } else { None };
        if !self.passing() {
            return TapResult { verdict: Verdict::Drop, failure: posted };
        }
        let lost = match kind {
            Kind::Request { .. } => self.reached(Stage::RequestOnWire, packet.psn),
            Kind::Response { .. } => self.reached(Stage::AckOnWire, packet.psn),
            Kind::Uncounted => None,
        };
        if lost.is_some() {
            return TapResult { verdict: Verdict::Drop, failure: posted.or(lost) };
        }
        let verdict = noise(&mut self.rng, &self.noise_tx);
        let acknowledged = match kind {
            Kind::Response { positive: true } => self.acknowledged(packet.psn),
            _ => None,
        };
        TapResult { verdict, failure: posted.or(acknowledged) }
    }

    /// A packet has arrived and is about to be executed. One that noise drops or corrupts never arrived: no trigger
    /// counts it. One that comes later or twice is asked about once.
    pub fn receive(&mut self, packet: &Packet<'_>) -> TapResult {
        if !self.passing() {
            return TapResult { verdict: Verdict::Drop, failure: None };
        }
        let verdict = noise(&mut self.rng, &self.noise_rx);
        if matches!(verdict, Verdict::Drop | Verdict::Corrupt(_)) {
            return TapResult { verdict, failure: None };
        }
        let kind = Kind::of(packet);
        let failed = match kind {
            Kind::Request { .. } => self.reached(Stage::Arrived, packet.psn),
            Kind::Response { .. } => self.reached(Stage::Acknowledged, packet.psn),
            Kind::Uncounted => None,
        };
        if !self.passing() {
            return TapResult { verdict: Verdict::Drop, failure: failed };
        }
        let held = if kind.is_request() { self.reached(Stage::NotPlaced, packet.psn) } else { None };
        TapResult { verdict, failure: failed.or(held) }
    }

    /// A packet was executed, and no answer to it has left. To be called for what really was executed: a duplicate or
    /// a packet out of sequence would be counted too.
    pub fn executed(&mut self, packet: &Packet<'_>) -> Option<Failure> {
        if !self.passing() {
            return None;
        }
        match Kind::of(packet) {
            Kind::Request { completes: false } => self.reached(Stage::PartlyExecuted, packet.psn),
            Kind::Request { completes: true } => self.reached(Stage::Executed, packet.psn),
            Kind::Response { .. } | Kind::Uncounted => None,
        }
    }

    /// Whether packets get from the wire to memory and back.
    fn passing(&self) -> bool {
        self.link_up && self.dma_ok()
    }

    /// Counts a packet that has reached a stage, and strikes if a trigger waited for it.
    fn reached(&mut self, stage: Stage, psn: Psn) -> Option<Failure> {
        let mut failed = None;
        for at in (0..self.armed.len()).rev() {
            let armed = &mut self.armed[at];
            if armed.trigger.stage != stage || armed.holds_from.is_some() {
                continue;
            }
            armed.left -= 1;
            if armed.left > 0 {
                continue;
            }
            let failure = if stage == Stage::NotPlaced {
                armed.holds_from = Some(psn);
                Failure::NotPlaced
            } else {
                self.armed.remove(at).trigger.failure
            };
            self.fail(failure);
            failed = Some(failure);
        }
        failed
    }

    /// A positive response leaves: the second part of stage 8.
    fn acknowledged(&mut self, psn: Psn) -> Option<Failure> {
        let waits = |armed: &Armed| armed.holds_from.is_some_and(|from| !psn.is_before(from));
        let at = self.armed.iter().position(waits)?;
        let failure = self.armed.remove(at).trigger.failure;
        self.fail(failure);
        Some(failure)
    }
}

/// What triggers see in a packet.
#[derive(Clone, Copy)]
enum Kind {
    /// Of RC; `completes` its message.
    Request { completes: bool },
    /// Of RC; `positive`: not a NAK.
    Response { positive: bool },
    /// Of another service: failover's own datagrams must not move the count.
    Uncounted,
}

impl Kind {
    fn of(packet: &Packet<'_>) -> Kind {
        match packet.message {
            _ if packet.transport != Transport::Rc => Kind::Uncounted,
            Message::SendFirst | Message::SendMiddle | Message::WriteFirst(_) | Message::WriteMiddle => {
                Kind::Request { completes: false }
            }
            Message::Ack(aeth) => Kind::Response { positive: matches!(aeth.syndrome, Syndrome::Ack { .. }) },
            message if message.is_response() => Kind::Response { positive: true },
            _ => Kind::Request { completes: true },
        }
    }

    fn is_request(self) -> bool {
        matches!(self, Kind::Request { .. })
    }
}

/// What noise does to the next packet. Draws nothing if there is none.
fn noise(rng: &mut ChaCha8Rng, noise: &Noise) -> Verdict {
    if *noise == Noise::default() {
        return Verdict::Pass;
    }
    let mut draw = ((u64::from(rng.next_u32()) * 1_000_000) >> 32) as u32;
    let mut hits = |ppm: u32| {
        let hit = draw < ppm;
        draw = draw.saturating_sub(ppm);
        hit
    };
    if hits(noise.drop_ppm) {
        Verdict::Drop
    } else if hits(noise.corrupt_ppm) {
        Verdict::Corrupt(rng.next_u32())
    } else if hits(noise.duplicate_ppm) {
        Verdict::Duplicate
    } else if hits(noise.reorder_ppm) {
        let longest = u64::try_from(noise.max_delay.as_nanos()).unwrap_or(u64::MAX);
        let delay = (u128::from(rng.next_u64()) * u128::from(longest)) >> 64;
        Verdict::Delay(Duration::from_nanos(delay as u64))
    } else {
        Verdict::Pass
    }
}
