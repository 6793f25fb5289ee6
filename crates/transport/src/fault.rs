//! Fault injection without I/O: random packet faults (noise), and NIC failures at a chosen stage of
//! an operation.
//!
//! A driver calls [`Faults`] at three taps: [`Faults::transmit`] before a packet is sent,
//! [`Faults::receive`] before the NIC executes a packet that has arrived, and [`Faults::executed`]
//! after the execution and before any response is sent. The driver carries out the [`TapResult`].
//! Before each step that a failed NIC cannot take, the driver checks [`Faults::host_access_ok`],
//! [`Faults::dma_ok`] and [`Faults::placement_ok`]. While [`Faults::is_idle`] returns true, the
//! driver may skip the taps.
//!
//! `docs/faults.md` defines the stages and the script syntax. Triggers count packets, and noise
//! uses a seeded generator, so that the same packets in the same order have the same faults.

#[cfg(test)]
mod tests;

use core::time::Duration;

use mitra_wire::{Message, Packet, Psn, Syndrome, Transport};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use crate::packet_of_message;

pub use mitra_verbs::fault::{Delay, Failure, Noise, ScriptError, Stage, Trigger};

/// What the driver does with one packet at a tap.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// The driver delivers the packet.
    Pass,
    /// The driver drops the packet.
    Drop,
    /// The driver delivers the packet twice.
    Duplicate,
    /// The driver delivers the packet after this time.
    Delay(Duration),
    /// The driver flips this bit of the packet and delivers it. Bits count from the first byte of
    /// the BTH, modulo the packet's length in bits.
    Corrupt(u32),
}

/// The result of a tap for one packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TapResult {
    /// What the driver does with the packet.
    pub verdict: Verdict,
    /// The failure that the packet has caused. The driver delivers a passing packet before it acts
    /// on the failure. If the packet fires several triggers, the field contains the failure of the
    /// first trigger. The state of [`Faults`] reflects all triggers.
    pub failure: Option<Failure>,
}

/// The state of the NIC, apart from its link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Health {
    Alive,
    Hung,
    Dead,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Armed {
    trigger: Trigger,
    /// The number of matching packets until the trigger fires, including the packet that fires it.
    remaining: u32,
    /// For a trigger of stage 8, the PSN of the nth request, once that request has arrived. The
    /// trigger fires when the NIC acknowledges this PSN.
    holds_from: Option<Psn>,
}

/// The fault state of one NIC and its link: noise, armed triggers and failures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Faults {
    rng: ChaCha8Rng,
    noise_tx: Noise,
    noise_rx: Noise,
    armed: Vec<Armed>,
    link_up: bool,
    health: Health,
    /// Whether the NIC acknowledges writes without placing their data.
    placement_held: bool,
}

impl Faults {
    /// Creates a state without faults. `seed` determines the random choices of noise.
    pub fn new(seed: [u8; 32]) -> Faults {
        Faults {
            rng: ChaCha8Rng::from_seed(seed),
            noise_tx: Noise::default(),
            noise_rx: Noise::default(),
            armed: Vec::new(),
            link_up: true,
            health: Health::Alive,
            placement_held: false,
        }
    }

    /// Sets the noise for packets that the NIC sends.
    pub fn set_noise_tx(&mut self, noise: Noise) {
        self.noise_tx = noise;
    }

    /// Sets the noise for packets that arrive at the NIC.
    pub fn set_noise_rx(&mut self, noise: Noise) {
        self.noise_rx = noise;
    }

    /// Adds a trigger, which fires once. Several triggers count independently.
    pub fn arm(&mut self, trigger: Trigger) {
        self.armed.push(Armed { trigger, remaining: trigger.nth.max(1), holds_from: None });
    }

    /// Disarms all triggers. If an armed trigger of stage 8 already holds placement back, placement
    /// resumes.
    pub fn disarm_all(&mut self) {
        if self.armed.iter().any(|armed| armed.holds_from.is_some()) {
            self.placement_held = false;
        }
        self.armed.clear();
    }

    /// Causes a failure now.
    pub fn fail(&mut self, failure: Failure) {
        self.placement_held = failure == Failure::NotPlaced;
        match failure {
            Failure::LinkDown => self.link_up = false,
            Failure::NicDead => self.health = Health::Dead,
            Failure::NicHung if self.health == Health::Alive => self.health = Health::Hung,
            Failure::NicHung | Failure::NotPlaced => {}
        }
    }

    /// Ends [`Failure::LinkDown`]. A dead or hung NIC cannot be healed; the driver opens a new one.
    pub fn heal_link(&mut self) {
        self.link_up = true;
    }

    /// Ends [`Failure::NotPlaced`]: the driver places the data that it holds back. Disarms the
    /// triggers of stage 8 that hold placement back.
    pub fn resume_placement(&mut self) {
        self.placement_held = false;
        self.armed.retain(|armed| armed.holds_from.is_none());
    }

    /// Returns whether the link is up.
    pub fn link_up(&self) -> bool {
        self.link_up
    }

    /// Returns whether the NIC is neither dead nor hung, so that verbs calls reach it.
    pub fn host_access_ok(&self) -> bool {
        self.health == Health::Alive
    }

    /// Returns whether the NIC accesses memory, executes packets and writes completions, which a
    /// dead NIC does not.
    pub fn dma_ok(&self) -> bool {
        self.health != Health::Dead
    }

    /// Returns whether executed writes reach memory now.
    ///
    /// While the method returns false, the driver keeps the data of writes and atomics in order.
    /// The NIC's own reads see this data, and the host does not. When the method returns true
    /// again, the driver places the data. When [`Faults::dma_ok`] becomes false, the driver drops
    /// the data.
    pub fn placement_ok(&self) -> bool {
        self.dma_ok() && !self.placement_held
    }

    /// Returns whether there are no armed triggers, no failures and no noise.
    pub fn is_idle(&self) -> bool {
        let no_noise = Noise::default();
        self.armed.is_empty()
            && self.link_up
            && self.health == Health::Alive
            && !self.placement_held
            && (self.noise_tx, self.noise_rx) == (no_noise, no_noise)
    }

    /// Applies the faults to a packet that is about to be sent.
    ///
    /// The driver calls the method for each packet in sending order. It sends a passing packet
    /// before it acts on a failure.
    pub fn transmit(&mut self, packet: &Packet<'_>) -> TapResult {
        if !self.packets_pass() {
            return TapResult { verdict: Verdict::Drop, failure: None };
        }
        let kind = PacketKind::of(packet);
        let posted = if kind.is_request() { self.count_packet(Stage::Posted, packet.psn) } else { None };
        if !self.packets_pass() {
            return TapResult { verdict: Verdict::Drop, failure: posted };
        }
        let lost = match kind {
            PacketKind::Request { .. } => self.count_packet(Stage::RequestOnWire, packet.psn),
            PacketKind::Response { .. } => self.count_packet(Stage::AckOnWire, packet.psn),
            PacketKind::Uncounted => None,
        };
        if lost.is_some() {
            return TapResult { verdict: Verdict::Drop, failure: posted.or(lost) };
        }
        let verdict = draw_fault(&mut self.rng, &self.noise_tx);
        let acknowledged = match kind {
            PacketKind::Response { positive: true } => self.fire_acknowledged(packet.psn),
            _ => None,
        };
        TapResult { verdict, failure: posted.or(acknowledged) }
    }

    /// Applies the faults to a packet that has arrived and is about to be executed.
    ///
    /// A packet that noise drops or corrupts counts as lost on the wire, so no trigger counts it.
    /// The driver calls the method once for a packet that it then delays or duplicates.
    pub fn receive(&mut self, packet: &Packet<'_>) -> TapResult {
        if !self.packets_pass() {
            return TapResult { verdict: Verdict::Drop, failure: None };
        }
        let verdict = draw_fault(&mut self.rng, &self.noise_rx);
        if matches!(verdict, Verdict::Drop | Verdict::Corrupt(_)) {
            return TapResult { verdict, failure: None };
        }
        let kind = PacketKind::of(packet);
        let failed = match kind {
            PacketKind::Request { .. } => self.count_packet(Stage::Arrived, packet.psn),
            PacketKind::Response { .. } => self.count_packet(Stage::Acknowledged, packet.psn),
            PacketKind::Uncounted => None,
        };
        if !self.packets_pass() {
            return TapResult { verdict: Verdict::Drop, failure: failed };
        }
        let held = if kind.is_request() { self.count_packet(Stage::NotPlaced, packet.psn) } else { None };
        TapResult { verdict, failure: failed.or(held) }
    }

    /// Counts a packet that the NIC has executed and not answered. Returns the failure that the
    /// packet has caused.
    ///
    /// The driver must not call the method for duplicates or packets out of sequence, because
    /// triggers would count them too.
    pub fn executed(&mut self, packet: &Packet<'_>) -> Option<Failure> {
        if !self.packets_pass() {
            return None;
        }
        match PacketKind::of(packet) {
            PacketKind::Request { completes: false } => self.count_packet(Stage::PartlyExecuted, packet.psn),
            PacketKind::Request { completes: true } => self.count_packet(Stage::Executed, packet.psn),
            PacketKind::Response { .. } | PacketKind::Uncounted => None,
        }
    }

    fn packets_pass(&self) -> bool {
        self.link_up && self.dma_ok()
    }

    /// Counts a packet that has reached a stage and fires the triggers that have reached their
    /// number. Returns the failure of the first trigger that fires, in the order of arming.
    fn count_packet(&mut self, stage: Stage, psn: Psn) -> Option<Failure> {
        let mut failed = None;
        for index in (0..self.armed.len()).rev() {
            let armed = &mut self.armed[index];
            if armed.trigger.stage != stage || armed.holds_from.is_some() {
                continue;
            }
            armed.remaining -= 1;
            if armed.remaining > 0 {
                continue;
            }
            let failure = if stage == Stage::NotPlaced {
                armed.holds_from = Some(psn);
                Failure::NotPlaced
            } else {
                self.armed.remove(index).trigger.failure
            };
            self.fail(failure);
            failed = Some(failure);
        }
        failed
    }

    /// Fires a trigger of stage 8 if the positive response with this PSN acknowledges the trigger's
    /// request.
    fn fire_acknowledged(&mut self, psn: Psn) -> Option<Failure> {
        let is_acknowledged = |armed: &Armed| armed.holds_from.is_some_and(|from| !psn.is_before(from));
        let index = self.armed.iter().position(is_acknowledged)?;
        let failure = self.armed.remove(index).trigger.failure;
        self.fail(failure);
        Some(failure)
    }
}

/// The kind of a packet, as triggers distinguish it.
#[derive(Clone, Copy)]
enum PacketKind {
    /// An RC or XRC request. `completes` is whether it is the last packet of its message.
    Request { completes: bool },
    /// An RC or XRC response. `positive` is false for a NAK.
    Response { positive: bool },
    /// A packet of another service. Triggers do not count it, so that failover's control messages
    /// do not change the count.
    Uncounted,
}

impl PacketKind {
    fn of(packet: &Packet<'_>) -> PacketKind {
        match packet.message {
            _ if !matches!(packet.transport, Transport::Rc | Transport::Xrc(_)) => PacketKind::Uncounted,
            Message::Ack(aeth) => {
                PacketKind::Response { positive: matches!(aeth.syndrome, Syndrome::Ack { .. }) }
            }
            message if message.is_response() => PacketKind::Response { positive: true },
            message => PacketKind::Request { completes: packet_of_message::position(&message).last },
        }
    }

    fn is_request(self) -> bool {
        matches!(self, PacketKind::Request { .. })
    }
}

/// Without noise, the generator does not advance.
fn draw_fault(rng: &mut ChaCha8Rng, noise: &Noise) -> Verdict {
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
