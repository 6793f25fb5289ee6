//! A table of queue pairs by queue pair number (QPN).
//!
//! A handle is a slot index in its low bits and a tag in its high bits. Each queue pair in a slot
//! gets the next tag, so that a stale number does not reach a later queue pair in the same slot.
//! The tags of a slot begin at a random value. A slot that has used all its tags is quarantined
//! before it is used again. The QPN is the encrypted handle, as with memory keys, so that its bits
//! do not show the slot.

use core::time::Duration;
use std::collections::VecDeque;

use mitra_mutants::Mutant;
use mitra_verbs::{Error, Qpn, Result, Time};
use rand_chacha::ChaCha8Rng;
use rand_core::RngCore;

use crate::nic::key_table::Cipher;
use crate::qp::Qp;

const QPN_BITS: u32 = 24;
/// The queue pair number of the general services interface (GSI).
const GSI: Qpn = Qpn::new(1);
const GSI_SLOT: u32 = 0;
/// The numbers that no ordinary queue pair has: 0 and 1 are the management queue pairs, 0xffffff is
/// multicast.
const RESERVED: [u32; 3] = [0, 1, 0xff_ffff];

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct QpTable {
    slots: Vec<Slot>,
    /// The free slots that can be used at once. The slot that was freed first is in front.
    free: VecDeque<u32>,
    /// The free slots that have used all their tags, with the end of their quarantine, in ascending
    /// order.
    quarantined: VecDeque<(Time, u32)>,
    /// The number of low bits of a handle that hold the slot index.
    slot_bits: u32,
    limit: u32,
    live: u32,
    quarantine: Duration,
    /// The difference between successive tags of a slot. It is odd, so that a slot goes through all
    /// tags.
    step: u32,
    cipher: Cipher,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Slot {
    tag: u32,
    first_tag: u32,
    qp: Option<Box<Qp>>,
}

impl QpTable {
    pub(crate) fn new(limit: u32, quarantine: Duration, rng: &mut ChaCha8Rng) -> QpTable {
        let limit = limit.min(1 << 19);
        QpTable {
            slots: vec![Slot { tag: 0, first_tag: 0, qp: None }],
            free: VecDeque::new(),
            quarantined: VecDeque::new(),
            // Twice as many slots as queue pairs, so that free slots rotate even when the table is
            // full.
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

    /// Returns the number of the GSI queue pair if no queue pair has this number. The slot stays
    /// free until [`QpTable::insert`].
    pub(crate) fn reserve_gsi(&self) -> Result<Qpn> {
        if self.get(GSI).is_ok() {
            return Err(Error::Busy { kind: "queue pair", id: GSI.value(), user: "another owner" });
        }
        self.check_limit()?;
        Ok(GSI)
    }

    /// Chooses a slot for a new queue pair and returns its number. The slot stays free until
    /// [`QpTable::insert`].
    pub(crate) fn reserve(&mut self, now: Time, rng: &mut ChaCha8Rng) -> Result<Qpn> {
        self.check_limit()?;
        while let Some(&(until, slot)) = self.quarantined.front()
            && until <= now
        {
            self.quarantined.pop_front();
            self.free.push_back(slot);
        }
        let slot = match self.free.front() {
            // A freed slot is used only if every slot has been used.
            Some(&slot) if self.slots.len() == 1 << self.slot_bits || Mutant::NumberUsedAgain.is_on() => slot,
            _ if self.slots.len() < 1 << self.slot_bits => {
                let tag = rng.next_u32() & self.tag_mask();
                self.slots.push(Slot { tag, first_tag: tag, qp: None });
                let slot = self.slots.len() as u32 - 1;
                self.free.push_front(slot);
                slot
            }
            _ => {
                return Err(Error::Limit {
                    attribute: "queue pairs (with quarantined numbers)",
                    requested: self.slots.len() as u64 + 1,
                    limit: self.slots.len() as u64,
                });
            }
        };
        while RESERVED.contains(&self.number(slot).value()) {
            self.next_tag(slot);
        }
        Ok(self.number(slot))
    }

    fn check_limit(&self) -> Result<()> {
        if self.live < self.limit {
            return Ok(());
        }
        let requested = u64::from(self.live) + 1;
        Err(Error::Limit { attribute: "queue pairs", requested, limit: self.limit.into() })
    }

    /// Stores a queue pair in the slot that the preceding `reserve` or `reserve_gsi` call chose.
    pub(crate) fn insert(&mut self, qp: Qp) {
        let slot = match qp.attrs.qpn {
            GSI => Some(GSI_SLOT),
            _ => self.free.pop_front(),
        };
        if let Some(slot) = slot {
            self.live += 1;
            self.slots[slot as usize].qp = Some(Box::new(qp));
        }
    }

    pub(crate) fn remove(&mut self, now: Time, qpn: Qpn) -> Result<Box<Qp>> {
        self.get(qpn)?;
        let slot = self.slot(qpn);
        let qp = self.slots[slot as usize].qp.take().ok_or(no_such_qp(qpn))?;
        self.live -= 1;
        if slot == GSI_SLOT {
            // The number 1 is well known, so a quarantine would not protect the next owner.
        } else if Mutant::NumberUsedAgain.is_on() {
            self.free.push_front(slot);
        } else if self.next_tag(slot) {
            self.quarantined.push_back((now + self.quarantine, slot));
        } else {
            self.free.push_back(slot);
        }
        Ok(qp)
    }

    /// Gives the slot its next tag. Returns whether the slot has used all its tags.
    fn next_tag(&mut self, slot: u32) -> bool {
        let mask = self.tag_mask();
        let slot = &mut self.slots[slot as usize];
        slot.tag = slot.tag.wrapping_add(self.step) & mask;
        slot.tag == slot.first_tag
    }

    fn number(&self, slot: u32) -> Qpn {
        Qpn::new(self.cipher.encrypt(self.slots[slot as usize].tag << self.slot_bits | slot))
    }

    /// Returns the slot that a queue pair number stands for. The slot may be free, or its queue
    /// pair may have another number.
    pub(crate) fn slot(&self, qpn: Qpn) -> u32 {
        if qpn == GSI {
            return GSI_SLOT;
        }
        self.cipher.decrypt(qpn.value()) & ((1 << self.slot_bits) - 1)
    }

    pub(crate) fn get(&self, qpn: Qpn) -> Result<&Qp> {
        match self.slots.get(self.slot(qpn) as usize) {
            Some(Slot { qp: Some(qp), .. }) if qp.attrs.qpn == qpn => Ok(qp),
            _ => Err(no_such_qp(qpn)),
        }
    }

    pub(crate) fn get_mut(&mut self, qpn: Qpn) -> Result<&mut Qp> {
        let slot = self.slot(qpn);
        self.slot_mut(slot).filter(|qp| qp.attrs.qpn == qpn).ok_or(no_such_qp(qpn))
    }

    pub(crate) fn slot_mut(&mut self, slot: u32) -> Option<&mut Qp> {
        self.slots.get_mut(slot as usize)?.qp.as_deref_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Qp> {
        self.slots.iter().filter_map(|slot| slot.qp.as_deref())
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Qp)> {
        self.slots.iter_mut().zip(0..).filter_map(|(slot, i)| Some((i, slot.qp.as_deref_mut()?)))
    }
}

fn no_such_qp(qpn: Qpn) -> Error {
    Error::NoSuchObject { kind: "queue pair", id: qpn.value() }
}
