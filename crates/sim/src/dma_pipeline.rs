//! The path of a NIC's placements, completions and delayed ACKs to host memory.
//!
//! All of them pass through one queue in order, like posted writes on PCI Express. A placement becomes
//! visible in chunks, and its last chunk last, so that a concurrent reader sees it torn. Aligned 8-byte words
//! do not tear. A fetch or an atomic of the same NIC first completes everything before it, and so does
//! revocation. Pending items are lost when the NIC dies.

use std::collections::VecDeque;
use std::sync::Arc;

use mitra_transport::AtomicOp;
use mitra_verbs::{Buffer, CqId, Gid, Time};

use crate::Prng;
use crate::config::MemoryTiming;

/// The queue from one NIC to its host's memory.
#[derive(Debug)]
pub(crate) struct DmaPipeline {
    items: VecDeque<Item>,
    released: Vec<Release>,
    timing: MemoryTiming,
    rng: Prng,
    /// The time before which no later item is due.
    last_due: Time,
    in_order: bool,
    frozen: bool,
    placed: u64,
}

#[derive(Debug)]
struct Item {
    due: Time,
    kind: ItemKind,
}

#[derive(Debug)]
enum ItemKind {
    Chunk(Chunk),
    Release(Release),
}

/// What leaves the queue besides data.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Release {
    /// A completion becomes visible in this queue.
    Completion(CqId),
    /// A packet may leave the NIC.
    Packet(Gid, Vec<u8>),
}

#[derive(Debug)]
struct Chunk {
    buffer: Arc<Buffer>,
    offset: usize,
    data: Arc<[u8]>,
    from: usize,
    to: usize,
}

impl Chunk {
    fn end(&self) -> usize {
        self.offset + (self.to - self.from)
    }

    fn overlaps(&self, other: &Chunk) -> bool {
        Arc::ptr_eq(&self.buffer, &other.buffer) && self.offset < other.end() && other.offset < self.end()
    }
}

impl DmaPipeline {
    /// Creates a pipeline. With `in_order`, placements of different requests stay in order
    /// ([`mitra_verbs::Capabilities::write_order`]).
    pub(crate) fn new(timing: MemoryTiming, rng: Prng, in_order: bool) -> DmaPipeline {
        let (items, released) = (VecDeque::new(), Vec::new());
        DmaPipeline { items, released, timing, rng, last_due: Time::ZERO, in_order, frozen: false, placed: 0 }
    }

    /// Returns when the next item is due.
    pub(crate) fn next_at(&self) -> Option<Time> {
        if self.frozen { None } else { self.items.front().map(|i| i.due) }
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns the number of bytes that have become visible.
    pub(crate) fn placed(&self) -> u64 {
        self.placed
    }

    /// Stops all placements. ACKs that wait for a placement leave at once.
    pub(crate) fn freeze(&mut self) {
        self.frozen = true;
        for item in core::mem::take(&mut self.items) {
            match item.kind {
                ItemKind::Release(packet @ Release::Packet(..)) => self.released.push(packet),
                kind => self.items.push_back(Item { due: item.due, kind }),
            }
        }
    }

    /// Resumes placements, including overdue ones.
    pub(crate) fn thaw(&mut self) {
        self.frozen = false;
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Discards all items, and returns the number of bytes lost.
    pub(crate) fn discard_all(&mut self) -> u64 {
        self.truncate(0)
    }

    /// Discards all but the first `keep` items, and returns the number of bytes lost.
    pub(crate) fn truncate(&mut self, keep: usize) -> u64 {
        let lost = self.items.drain(keep..).map(|i| match i.kind {
            ItemKind::Chunk(c) => (c.to - c.from) as u64,
            ItemKind::Release(_) => 0,
        });
        lost.sum()
    }

    /// Completes the items that are due.
    pub(crate) fn advance(&mut self, now: Time) {
        while !self.frozen && self.items.front().is_some_and(|i| i.due <= now) {
            self.pop();
        }
    }

    /// Completes all items, in order.
    pub(crate) fn flush(&mut self) {
        while !self.items.is_empty() {
            self.pop();
        }
        self.last_due = Time::ZERO;
    }

    /// Returns the releases since the last call.
    pub(crate) fn take_released(&mut self) -> Vec<Release> {
        core::mem::take(&mut self.released)
    }

    /// Queues a release behind all items.
    pub(crate) fn push_release(&mut self, now: Time, release: Release) {
        let due = self.last_due.max(now);
        self.last_due = due;
        self.items.push_back(Item { due, kind: ItemKind::Release(release) });
    }

    fn pop(&mut self) {
        let Some(item) = self.items.pop_front() else { return };
        match item.kind {
            ItemKind::Chunk(c) => {
                c.buffer.write_at(c.offset, &c.data[c.from..c.to]);
                self.placed += (c.to - c.from) as u64;
            }
            ItemKind::Release(release) => self.released.push(release),
        }
    }

    /// Queues a placement.
    pub(crate) fn place(&mut self, now: Time, buffer: &Arc<Buffer>, offset: usize, data: &[u8]) {
        let data: Arc<[u8]> = data.into();
        let mut chunks = Vec::new();
        let mut from = 0;
        while from < data.len() {
            let size = self.rng.between(self.timing.chunk_min as u64, self.timing.chunk_max as u64) as usize;
            // Chunks end at 8-byte boundaries of the buffer and have at least one word.
            let end = (offset + from + size.max(8)) / 8 * 8;
            let to = (end - offset).min(data.len());
            chunks.push(Chunk {
                buffer: Arc::clone(buffer),
                offset: offset + from,
                data: Arc::clone(&data),
                from,
                to,
            });
            from = to;
        }
        if chunks.len() > 2 && self.rng.chance(self.timing.shuffle_ppm) {
            for i in (1..chunks.len() - 1).rev() {
                chunks.swap(i, self.rng.index(i + 1));
            }
        }
        let mut due = if self.in_order { self.last_due.max(now) } else { now };
        for chunk in chunks {
            due += self.timing.chunk_delay.sample(&mut self.rng);
            self.insert(due, chunk);
        }
    }

    fn insert(&mut self, due: Time, chunk: Chunk) {
        let mut position = self.items.len();
        if !self.in_order {
            // Relaxed ordering: a placement may overtake placements to other addresses, but no completion.
            while let Some(Item { due: other, kind: ItemKind::Chunk(before) }) =
                position.checked_sub(1).map(|p| &self.items[p])
                && *other > due
                && !before.overlaps(&chunk)
            {
                position -= 1;
            }
        }
        let due = position.checked_sub(1).map_or(due, |p| due.max(self.items[p].due));
        self.last_due = self.last_due.max(due);
        self.items.insert(position, Item { due, kind: ItemKind::Chunk(chunk) });
    }

    /// Reads memory as the NIC sees it: host memory, overlaid with pending placements.
    pub(crate) fn read_through(&mut self, buffer: &Arc<Buffer>, offset: usize, out: &mut [u8]) {
        if !self.frozen {
            self.flush();
        }
        buffer.read_at(offset, out);
        for item in &self.items {
            if let ItemKind::Chunk(c) = &item.kind
                && Arc::ptr_eq(&c.buffer, buffer)
            {
                let (low, high) = (c.offset.max(offset), c.end().min(offset + out.len()));
                if low < high {
                    out[low - offset..high - offset]
                        .copy_from_slice(&c.data[c.from + low - c.offset..c.from + high - c.offset]);
                }
            }
        }
    }

    /// Performs an atomic, and returns the old value.
    pub(crate) fn atomic(
        &mut self,
        now: Time,
        buffer: &Arc<Buffer>,
        offset: usize,
        op: AtomicOp,
        global: bool,
    ) -> u64 {
        let mut word = [0; 8];
        self.read_through(buffer, offset, &mut word);
        let old = u64::from_ne_bytes(word);
        let new = op.apply(old);
        if global && !self.frozen {
            buffer.store(offset, new);
        } else if new != old {
            // The load is immediate and the store delayed, so that atomics of other NICs can interleave.
            let due = now + self.timing.atomic_delay.sample(&mut self.rng);
            let (data, buffer) = (new.to_ne_bytes().as_slice().into(), Arc::clone(buffer));
            self.insert(due, Chunk { buffer, offset, data, from: 0, to: 8 });
        }
        old
    }
}

#[cfg(test)]
mod tests;
