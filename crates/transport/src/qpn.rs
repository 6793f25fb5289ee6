//! Queue pairs by number.
//!
//! Low bits of a handle are the slot; the upper ones step through all their values from a random one on, so that a
//! stale number does not hit the slot's new queue pair. Before a slot's handles come round it rests. The number is the
//! handle enciphered, as with keys: no bit of it tells the slot.

use core::time::Duration;
use std::collections::VecDeque;

use mitra_verbs::{Error, Qpn, Result, Time};
use rand_chacha::ChaCha8Rng;
use rand_core::RngCore;

use crate::keys::Cipher;
use crate::qp::Qp;

const QPN_BITS: u32 = 24;
/// The general services interface, and the slot that is only its.
const GSI: Qpn = Qpn::new(1);
const GSI_SLOT: u32 = 0;
/// 0 and 1 are the management queue pairs, the last one is multicast.
const RESERVED: [u32; 3] = [0, 1, 0xff_ffff];

/// The queue pairs of a NIC.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Qps {
    slots: Vec<Slot>,
    /// Free slots that can be used at once, the longest unused first.
    free: VecDeque<u32>,
    /// Free slots whose numbers have come round, and when they may be used again; ascending.
    resting: VecDeque<(Time, u32)>,
    slot_bits: u32,
    limit: u32,
    live: u32,
    quarantine: Duration,
    /// An odd step from one number of a slot to the next, so that all are visited.
    step: u32,
    cipher: Cipher,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Slot {
    tag: u32,
    first_tag: u32,
    qp: Option<Box<Qp>>,
}

impl Qps {
    pub(crate) fn new(limit: u32, quarantine: Duration, rng: &mut ChaCha8Rng) -> Qps {
        let limit = limit.min(1 << 19);
        Qps {
            slots: vec![Slot { tag: 0, first_tag: 0, qp: None }],
            free: VecDeque::new(),
            resting: VecDeque::new(),
            // Twice the slots that can be in use, so that there are some to rotate through.
            slot_bits: (2 * limit.max(8)).next_power_of_two().ilog2(),
            limit,
            live: 0,
            quarantine,
            step: rng.next_u32() | 1,
            cipher: Cipher::new(rng),
        }
    }

    fn tag_mask(&self) -> u32 {
        (1 << (QPN_BITS - self.slot_bits)) - 1
    }

    /// Queue pair 1 for its one owner; nothing is taken yet.
    pub(crate) fn reserve_gsi(&self) -> Result<Qpn> {
        if self.get(GSI).is_ok() {
            return Err(Error::Busy { kind: "queue pair", id: GSI.value(), user: "another owner" });
        }
        self.check_limit()?;
        Ok(GSI)
    }

    /// A slot and its number for a new queue pair; nothing is taken yet.
    pub(crate) fn reserve(&mut self, now: Time, rng: &mut ChaCha8Rng) -> Result<Qpn> {
        self.check_limit()?;
        while let Some(&(until, slot)) = self.resting.front()
            && until <= now
        {
            self.resting.pop_front();
            self.free.push_back(slot);
        }
        let slot = match self.free.front() {
            // While there are slots never used, free ones rest.
            Some(&slot) if self.slots.len() == 1 << self.slot_bits => slot,
            _ if self.slots.len() < 1 << self.slot_bits => {
                let tag = rng.next_u32() & self.tag_mask();
                self.slots.push(Slot { tag, first_tag: tag, qp: None });
                let slot = self.slots.len() as u32 - 1;
                self.free.push_front(slot);
                slot
            }
            _ => {
                return Err(Error::Limit {
                    attribute: "queue pairs, with destroyed ones whose numbers are quarantined,",
                    requested: self.slots.len() as u64 + 1,
                    limit: self.slots.len() as u64,
                });
            }
        };
        while RESERVED.contains(&self.number(slot).value()) {
            self.advance(slot);
        }
        Ok(self.number(slot))
    }

    fn check_limit(&self) -> Result<()> {
        if self.live < self.limit {
            return Ok(());
        }
        let asked = u64::from(self.live) + 1;
        Err(Error::Limit { attribute: "queue pairs", requested: asked, limit: self.limit.into() })
    }

    /// Puts a queue pair into the slot just reserved.
    pub(crate) fn occupy(&mut self, qp: Qp) {
        let slot = match qp.common.qpn {
            GSI => Some(GSI_SLOT),
            _ => self.free.pop_front(),
        };
        if let Some(slot) = slot {
            self.live += 1;
            self.slots[slot as usize].qp = Some(Box::new(qp));
        }
    }

    /// Removes a queue pair.
    pub(crate) fn remove(&mut self, now: Time, qpn: Qpn) -> Result<Box<Qp>> {
        self.get(qpn)?;
        let slot = self.slot(qpn);
        let qp = self.slots[slot as usize].qp.take().ok_or(unknown(qpn))?;
        self.live -= 1;
        if slot == GSI_SLOT {
            // Its number is given again at once: it is known to all.
        } else if self.advance(slot) {
            self.resting.push_back((now + self.quarantine, slot));
        } else {
            self.free.push_back(slot);
        }
        Ok(qp)
    }

    /// The slot's next number; true if its numbers have come round.
    fn advance(&mut self, slot: u32) -> bool {
        let mask = self.tag_mask();
        let slot = &mut self.slots[slot as usize];
        slot.tag = slot.tag.wrapping_add(self.step) & mask;
        slot.tag == slot.first_tag
    }

    fn number(&self, slot: u32) -> Qpn {
        Qpn::new(self.cipher.encipher(self.slots[slot as usize].tag << self.slot_bits | slot))
    }

    /// The slot that a number names.
    pub(crate) fn slot(&self, qpn: Qpn) -> u32 {
        if qpn == GSI {
            return GSI_SLOT;
        }
        self.cipher.decipher(qpn.value()) & ((1 << self.slot_bits) - 1)
    }

    pub(crate) fn get(&self, qpn: Qpn) -> Result<&Qp> {
        match self.slots.get(self.slot(qpn) as usize) {
            Some(Slot { qp: Some(qp), .. }) if qp.common.qpn == qpn => Ok(qp),
            _ => Err(unknown(qpn)),
        }
    }

    pub(crate) fn get_mut(&mut self, qpn: Qpn) -> Result<&mut Qp> {
        let slot = self.slot(qpn);
        self.at_mut(slot).filter(|qp| qp.common.qpn == qpn).ok_or(unknown(qpn))
    }

    /// The queue pair in a slot.
    pub(crate) fn at_mut(&mut self, slot: u32) -> Option<&mut Qp> {
        self.slots.get_mut(slot as usize)?.qp.as_deref_mut()
    }

    /// All queue pairs, with their slots.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Qp)> {
        self.slots.iter_mut().zip(0..).filter_map(|(slot, i)| Some((i, slot.qp.as_deref_mut()?)))
    }
}

fn unknown(qpn: Qpn) -> Error {
    Error::NoSuchObject { kind: "queue pair", id: qpn.value() }
}
