//! The queue of a NIC's placements, completions and ACKs that wait for placements.
//!
//! The items of the queue complete in order, like posted writes on PCI Express. With relaxed
//! ordering, a placement may overtake placements to other addresses. A placement becomes visible in
//! chunks, and its last chunk last, so that a concurrent reader may see it torn. Aligned 8-byte
//! words do not tear. A fetch, an atomic or a revocation at the same NIC first completes all items.
//! Items that are pending when the NIC dies are lost.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mitra_transport::AtomicOp;
use mitra_verbs::{Buffer, CqId, Gid, Time};

use crate::Prng;
use crate::config::MemoryTiming;

#[derive(Debug)]
pub(crate) struct DmaPipeline {
    items: VecDeque<Item>,
    released: Vec<Release>,
    timing: MemoryTiming,
    rng: Prng,
    /// The latest due time of the items queued so far. Later items are due no earlier, except for
    /// overtaking placements.
    last_due: Time,
    in_order: bool,
    pub(crate) frozen: bool,
    /// The number of bytes that have become visible.
    pub(crate) placed: u64,
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

/// An item that takes effect when all items before it are complete.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Release {
    Completion(CqId),
    Packet(Gid, Vec<u8>),
}

#[derive(Debug)]
pub(crate) struct HostBuffer {
    pub(crate) buffer: Arc<Buffer>,
    /// The number of changes that NICs of the host have made to the buffer, over all registrations
    /// of the buffer.
    pub(crate) changes: Arc<AtomicU64>,
}

impl HostBuffer {
    fn is_same(&self, other: &HostBuffer) -> bool {
        Arc::ptr_eq(&self.buffer, &other.buffer)
    }

    fn count_change(&self) {
        // Only the thread that holds the world's lock changes the counter.
        self.changes.store(self.changes.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Chunk {
    memory: Arc<HostBuffer>,
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
        self.memory.is_same(&other.memory) && self.offset < other.end() && other.offset < self.end()
    }
}

impl DmaPipeline {
    /// Creates a pipeline. Without `in_order`, placements may overtake each other
    /// ([`mitra_verbs::Capabilities::write_order`]).
    pub(crate) fn new(timing: MemoryTiming, rng: Prng, in_order: bool) -> DmaPipeline {
        let (items, released) = (VecDeque::new(), Vec::new());
        DmaPipeline { items, released, timing, rng, last_due: Time::ZERO, in_order, frozen: false, placed: 0 }
    }

    /// Returns `None` if the pipeline is empty or frozen.
    pub(crate) fn next_at(&self) -> Option<Time> {
        if self.frozen { None } else { self.items.front().map(|i| i.due) }
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Stops all placements, and releases the packets that wait for them.
    pub(crate) fn freeze(&mut self) {
        self.frozen = true;
        for item in core::mem::take(&mut self.items) {
            match item.kind {
                ItemKind::Release(packet @ Release::Packet(..)) => self.released.push(packet),
                kind => self.items.push_back(Item { due: item.due, kind }),
            }
        }
    }

    pub(crate) fn discard_all(&mut self) -> u64 {
        self.truncate(0)
    }

    /// Discards all items except the first `keep`. Returns the number of bytes that are not placed.
    pub(crate) fn truncate(&mut self, keep: usize) -> u64 {
        let lost = self.items.drain(keep..).map(|i| match i.kind {
            ItemKind::Chunk(c) => (c.to - c.from) as u64,
            ItemKind::Release(_) => 0,
        });
        lost.sum()
    }

    pub(crate) fn advance(&mut self, now: Time) {
        while !self.frozen && self.items.front().is_some_and(|i| i.due <= now) {
            self.pop();
        }
    }

    /// Completes all items in order, also items that are not due.
    pub(crate) fn flush(&mut self) {
        while !self.items.is_empty() {
            self.pop();
        }
        self.last_due = Time::ZERO;
    }

    pub(crate) fn take_released(&mut self) -> Vec<Release> {
        core::mem::take(&mut self.released)
    }

    pub(crate) fn push_release(&mut self, now: Time, release: Release) {
        let due = self.last_due.max(now);
        self.last_due = due;
        self.items.push_back(Item { due, kind: ItemKind::Release(release) });
    }

    fn pop(&mut self) {
        let Some(item) = self.items.pop_front() else { return };
        match item.kind {
            ItemKind::Chunk(c) => {
                c.memory.buffer.write_at(c.offset, &c.data[c.from..c.to]);
                c.memory.count_change();
                self.placed += (c.to - c.from) as u64;
            }
            ItemKind::Release(release) => self.released.push(release),
        }
    }

    pub(crate) fn place(&mut self, now: Time, memory: &Arc<HostBuffer>, offset: usize, data: &[u8]) {
        let data: Arc<[u8]> = data.into();
        let mut chunks = Vec::new();
        let mut from = 0;
        while from < data.len() {
            let size = self.rng.between(self.timing.chunk_min as u64, self.timing.chunk_max as u64) as usize;
            // A chunk ends at an 8-byte boundary of the buffer or at the end of the data, so that
            // words do not tear.
            let end = (offset + from + size.max(8)) / 8 * 8;
            let to = (end - offset).min(data.len());
            chunks.push(Chunk {
                memory: Arc::clone(memory),
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
            // With relaxed ordering, a placement may overtake placements to other addresses, but no
            // completion or packet.
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

    /// Reads memory as the NIC sees it, after all items have completed. A frozen pipeline completes
    /// no items, so its pending placements are overlaid on the bytes.
    pub(crate) fn read_through(&mut self, memory: &HostBuffer, offset: usize, out: &mut [u8]) {
        if !self.frozen {
            self.flush();
        }
        memory.buffer.read_at(offset, out);
        for item in &self.items {
            if let ItemKind::Chunk(c) = &item.kind
                && c.memory.is_same(memory)
            {
                let (low, high) = (c.offset.max(offset), c.end().min(offset + out.len()));
                if low < high {
                    out[low - offset..high - offset]
                        .copy_from_slice(&c.data[c.from + low - c.offset..c.from + high - c.offset]);
                }
            }
        }
    }

    /// Executes an atomic and returns the old value. With `global`, no other NIC's atomic comes
    /// between the load and the store.
    pub(crate) fn atomic(
        &mut self,
        now: Time,
        memory: &Arc<HostBuffer>,
        offset: usize,
        op: AtomicOp,
        global: bool,
    ) -> u64 {
        let mut word = [0; 8];
        self.read_through(memory, offset, &mut word);
        let old = u64::from_ne_bytes(word);
        let new = op.apply(old);
        if global && !self.frozen {
            memory.buffer.store(offset, new);
            memory.count_change();
        } else if new != old {
            // The store is delayed, so that atomics of other NICs can come between the load and the
            // store.
            let due = now + self.timing.atomic_delay.sample(&mut self.rng);
            let (data, memory) = (new.to_ne_bytes().as_slice().into(), Arc::clone(memory));
            self.insert(due, Chunk { memory, offset, data, from: 0, to: 8 });
        }
        old
    }
}

#[cfg(test)]
mod tests;
