//! What a NIC has sent towards host memory and the host cannot see yet.
//!
//! Placements, completions and (where the device promises so) acknowledgements go through one queue in order, as
//! posted writes go over PCI Express. A placement becomes visible in chunks, so that who reads meanwhile sees it torn;
//! its last chunk comes last. Aligned 8-byte words do not tear. A fetch or an atomic of the same NIC pushes everything
//! before it into memory, and so does revocation. When the NIC dies, what is still here is lost.

use std::collections::VecDeque;
use std::sync::Arc;

use mitra_transport::{AtomicOp, Memory, MemoryFault};
use mitra_verbs::{Buffer, CqId, Gid, RegionId, Time};

use crate::Prng;
use crate::config::MemoryTiming;

/// The way from one NIC to its host's memory.
#[derive(Debug)]
pub(crate) struct Pipeline {
    items: VecDeque<Item>,
    released: Vec<Release>,
    timing: MemoryTiming,
    rng: Prng,
    /// No later item is due before this.
    tail: Time,
    in_order: bool,
    frozen: bool,
    placed: u64,
}

#[derive(Debug)]
struct Item {
    at: Time,
    body: Body,
}

#[derive(Debug)]
enum Body {
    Chunk(Chunk),
    Then(Release),
}

/// What has come out at the end, besides data.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Release {
    /// A completion is visible in this queue.
    Completion(CqId),
    /// A packet may leave.
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

impl Pipeline {
    /// `in_order`: placements of different requests stay in order ([`mitra_verbs::Capabilities::write_order`]).
    pub(crate) fn new(timing: MemoryTiming, rng: Prng, in_order: bool) -> Pipeline {
        let (items, released) = (VecDeque::new(), Vec::new());
        Pipeline { items, released, timing, rng, tail: Time::ZERO, in_order, frozen: false, placed: 0 }
    }

    /// When the next item is due.
    pub(crate) fn next_at(&self) -> Option<Time> {
        if self.frozen { None } else { self.items.front().map(|i| i.at) }
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Bytes that have become visible.
    pub(crate) fn placed(&self) -> u64 {
        self.placed
    }

    /// From now on nothing reaches memory, but acknowledgements that waited for it leave.
    pub(crate) fn freeze(&mut self) {
        self.frozen = true;
        for item in core::mem::take(&mut self.items) {
            match item.body {
                Body::Then(packet @ Release::Packet(..)) => self.released.push(packet),
                body => self.items.push_back(Item { at: item.at, body }),
            }
        }
    }

    /// What was held back may go on, and what is overdue with it.
    pub(crate) fn thaw(&mut self) {
        self.frozen = false;
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// The NIC dies: how many bytes on their way are lost.
    pub(crate) fn lose(&mut self) -> u64 {
        self.truncate(0)
    }

    /// Forgets items from the back until `keep` are left, so many bytes: a reset stops the NIC in the middle of things.
    pub(crate) fn truncate(&mut self, keep: usize) -> u64 {
        let lost = self.items.drain(keep..).map(|i| match i.body {
            Body::Chunk(c) => (c.to - c.from) as u64,
            Body::Then(_) => 0,
        });
        lost.sum()
    }

    /// Lets out what is due.
    pub(crate) fn advance(&mut self, now: Time) {
        while !self.frozen && self.items.front().is_some_and(|i| i.at <= now) {
            self.take();
        }
    }

    /// Pushes everything out, in order.
    pub(crate) fn flush(&mut self) {
        while !self.items.is_empty() {
            self.take();
        }
        self.tail = Time::ZERO;
    }

    /// What has come out since this was last asked.
    pub(crate) fn take_released(&mut self) -> Vec<Release> {
        core::mem::take(&mut self.released)
    }

    /// Puts something behind all that is under way.
    pub(crate) fn then(&mut self, now: Time, what: Release) {
        let at = self.tail.max(now);
        self.tail = at;
        self.items.push_back(Item { at, body: Body::Then(what) });
    }

    fn take(&mut self) {
        let Some(item) = self.items.pop_front() else { return };
        match item.body {
            Body::Chunk(c) => {
                c.buffer.write_at(c.offset, &c.data[c.from..c.to]);
                self.placed += (c.to - c.from) as u64;
            }
            Body::Then(release) => self.released.push(release),
        }
    }

    fn place(&mut self, now: Time, buffer: &Arc<Buffer>, offset: usize, data: &[u8]) {
        let data: Arc<[u8]> = data.into();
        let mut chunks = Vec::new();
        let mut from = 0;
        while from < data.len() {
            let size = self.rng.between(self.timing.chunk_min as u64, self.timing.chunk_max as u64) as usize;
            // Chunks end where words of the buffer end, and have at least one.
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
        let mut at = if self.in_order { self.tail.max(now) } else { now };
        for chunk in chunks {
            at += self.timing.delay.sample(&mut self.rng);
            self.insert(at, chunk);
        }
    }

    fn insert(&mut self, at: Time, chunk: Chunk) {
        let mut position = self.items.len();
        if !self.in_order {
            // Relaxed ordering overtakes data of other addresses, but no completion.
            while let Some(Item { at: other, body: Body::Chunk(before) }) =
                position.checked_sub(1).map(|p| &self.items[p])
                && *other > at
                && !before.overlaps(&chunk)
            {
                position -= 1;
            }
        }
        let at = position.checked_sub(1).map_or(at, |p| at.max(self.items[p].at));
        self.tail = self.tail.max(at);
        self.items.insert(position, Item { at, body: Body::Chunk(chunk) });
    }

    /// What the NIC itself would read: memory, and on top of it what the NIC still holds.
    fn read(&mut self, buffer: &Arc<Buffer>, offset: usize, out: &mut [u8]) {
        if !self.frozen {
            self.flush();
        }
        buffer.read_at(offset, out);
        for item in &self.items {
            if let Body::Chunk(c) = &item.body
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

    fn atomic(&mut self, now: Time, buffer: &Arc<Buffer>, offset: usize, op: AtomicOp, global: bool) -> u64 {
        let mut word = [0; 8];
        self.read(buffer, offset, &mut word);
        let old = u64::from_ne_bytes(word);
        let new = op.apply(old);
        if global && !self.frozen {
            buffer.store(offset, new);
        } else if new != old {
            // Load now, store later: meanwhile others, who do not take this NIC's lock, do as they please.
            let at = now + self.timing.atomic.sample(&mut self.rng);
            let (data, buffer) = (new.to_ne_bytes().as_slice().into(), Arc::clone(buffer));
            self.insert(at, Chunk { buffer, offset, data, from: 0, to: 8 });
        }
        old
    }
}

/// The memory of a host as one of its NICs reaches it.
pub(crate) struct Port<'a> {
    pub(crate) pipeline: &'a mut Pipeline,
    pub(crate) regions: &'a [Option<Arc<Buffer>>],
    pub(crate) now: Time,
    pub(crate) global_atomics: bool,
}

impl Port<'_> {
    fn buffer(
        &self,
        region: RegionId,
        offset: u64,
        len: usize,
    ) -> Result<(&Arc<Buffer>, usize), MemoryFault> {
        let Some(buffer) = self.regions.get(region.0 as usize).and_then(Option::as_ref) else {
            // The contract of `Memory`: no key of it is left.
            panic!("the transport touches {region} after it was revoked");
        };
        let offset = usize::try_from(offset).map_err(|_| MemoryFault)?;
        let fits = offset.checked_add(len).is_some_and(|end| end <= buffer.len());
        if fits { Ok((buffer, offset)) } else { Err(MemoryFault) }
    }
}

impl Memory for Port<'_> {
    fn place(&mut self, region: RegionId, offset: u64, data: &[u8]) -> Result<(), MemoryFault> {
        let (buffer, offset) = self.buffer(region, offset, data.len())?;
        let buffer = Arc::clone(buffer);
        self.pipeline.place(self.now, &buffer, offset, data);
        Ok(())
    }

    fn fetch(&mut self, region: RegionId, offset: u64, out: &mut [u8]) -> Result<(), MemoryFault> {
        let (buffer, offset) = self.buffer(region, offset, out.len())?;
        let buffer = Arc::clone(buffer);
        self.pipeline.read(&buffer, offset, out);
        Ok(())
    }

    fn atomic(&mut self, region: RegionId, offset: u64, op: AtomicOp) -> Result<u64, MemoryFault> {
        let (buffer, offset) = self.buffer(region, offset, 8)?;
        if offset % 8 != 0 {
            return Err(MemoryFault);
        }
        let buffer = Arc::clone(buffer);
        Ok(self.pipeline.atomic(self.now, &buffer, offset, op, self.global_atomics))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    struct Bench {
        pipeline: Pipeline,
        regions: Vec<Option<Arc<Buffer>>>,
    }

    impl Bench {
        fn new(seed: u64, in_order: bool) -> Bench {
            let timing = MemoryTiming { chunk_min: 8, chunk_max: 64, ..Config::swarm(seed).memory };
            let pipeline = Pipeline::new(timing, Prng::stream(seed, "memory"), in_order);
            Bench { pipeline, regions: vec![Some(Arc::new(Buffer::new(4096)))] }
        }

        fn port(&mut self, now: u64) -> Port<'_> {
            let now = Time::from_nanos(now);
            Port { pipeline: &mut self.pipeline, regions: &self.regions, now, global_atomics: false }
        }

        fn seen(&self, offset: usize, len: usize) -> Vec<u8> {
            let mut out = vec![0; len];
            self.regions[0].as_ref().unwrap().read_at(offset, &mut out);
            out
        }

        fn step(&mut self) -> bool {
            let Some(at) = self.pipeline.next_at() else { return false };
            self.pipeline.advance(at);
            true
        }
    }

    const R: RegionId = RegionId(0);

    #[test]
    fn placements_tear_and_their_last_byte_comes_last() {
        let mut torn = 0;
        for seed in 0..50 {
            let mut b = Bench::new(seed, true);
            b.port(100).place(R, 3, &[7; 1000]).unwrap();
            assert_eq!(b.seen(0, 4096), [0; 4096], "nothing is visible at once");
            while b.step() {
                let seen = b.seen(3, 1000);
                let some = seen.contains(&7);
                torn += u32::from(some && seen.contains(&0));
                assert!(seen[999] == 0 || seen.iter().all(|&x| x == 7), "seed {seed}: last byte first");
            }
            assert_eq!(b.seen(3, 1000), [7; 1000]);
            assert_eq!((b.seen(0, 3), b.seen(1003, 5)), (vec![0; 3], vec![0; 5]));
        }
        assert!(torn > 200, "torn {torn} times");
    }

    #[test]
    fn words_do_not_tear() {
        for seed in 0..50 {
            let mut b = Bench::new(seed, seed % 2 == 0);
            b.port(0).place(R, 5, &[0xff; 300]).unwrap();
            while b.step() {
                for word in 1..37 {
                    let w = b.regions[0].as_ref().unwrap().load(8 * word);
                    assert!(w == 0 || w == u64::MAX, "seed {seed}: {w:x}");
                }
            }
        }
    }

    #[test]
    fn a_fetch_pushes_placements_out_before_it() {
        let mut b = Bench::new(1, true);
        b.port(0).place(R, 0, &[1; 600]).unwrap();
        b.pipeline.then(Time::ZERO, Release::Completion(CqId(3)));
        let mut out = [0; 600];
        b.port(0).fetch(R, 0, &mut out).unwrap();
        assert_eq!(out, [1; 600]);
        assert_eq!(b.seen(0, 600), [1; 600]);
        assert_eq!(b.pipeline.take_released(), [Release::Completion(CqId(3))]);
    }

    #[test]
    fn completions_come_behind_data_in_both_orders() {
        for seed in 0..40 {
            let mut b = Bench::new(seed, seed % 2 == 0);
            b.port(0).place(R, 0, &[1; 600]).unwrap();
            b.pipeline.then(Time::from_nanos(1), Release::Completion(CqId(3)));
            b.port(1).place(R, 700, &[2; 100]).unwrap();
            while b.pipeline.released.is_empty() {
                assert!(b.step());
            }
            assert_eq!(b.seen(0, 600), [1; 600], "seed {seed}");
        }
    }

    #[test]
    fn relaxed_order_lets_later_placements_overtake_others_but_not_themselves() {
        let overtaken = (0..50).filter(|&seed| {
            let mut b = Bench::new(seed, false);
            b.port(0).place(R, 0, &[1; 1000]).unwrap();
            b.port(0).place(R, 2000, &[2; 8]).unwrap();
            b.port(0).place(R, 500, &[3; 8]).unwrap();
            let mut early = false;
            while b.step() {
                early |= b.seen(2000, 1) == [2] && b.seen(999, 1) == [0];
            }
            assert_eq!(b.seen(500, 8), [3; 8], "seed {seed}: the same address keeps its order");
            early
        });
        assert!(overtaken.count() > 10);
        let mut b = Bench::new(1, true);
        b.port(0).place(R, 0, &[1; 1000]).unwrap();
        b.port(0).place(R, 2000, &[2; 8]).unwrap();
        while b.step() {
            assert!(b.seen(2000, 1) == [0] || b.seen(999, 1) == [1]);
        }
    }

    #[test]
    fn two_pipelines_lose_an_increment_one_does_not() {
        let add = AtomicOp::FetchAdd { add: 1 };
        let (mut a, mut b) = (Bench::new(1, true), Bench::new(2, true));
        b.regions = a.regions.clone();
        assert_eq!(a.port(0).atomic(R, 8, add), Ok(0));
        assert_eq!(a.port(0).atomic(R, 8, add), Ok(1), "the same NIC serialises");
        assert_eq!(b.port(0).atomic(R, 8, add), Ok(1), "another does not wait");
        a.pipeline.flush();
        b.pipeline.flush();
        assert_eq!(a.regions[0].as_ref().unwrap().load(8), 2);
    }

    #[test]
    fn global_atomics_lose_nothing() {
        let add = AtomicOp::FetchAdd { add: 1 };
        let (mut a, mut b) = (Bench::new(1, true), Bench::new(2, true));
        b.regions = a.regions.clone();
        for bench in [&mut a, &mut b] {
            let mut port = bench.port(0);
            port.global_atomics = true;
            port.atomic(R, 8, add).unwrap();
        }
        a.pipeline.flush();
        b.pipeline.flush();
        assert_eq!(a.regions[0].as_ref().unwrap().load(8), 2);
    }

    #[test]
    fn frozen_the_nic_sees_its_own_writes_and_the_host_does_not() {
        let mut b = Bench::new(1, true);
        b.pipeline.freeze();
        b.port(0).place(R, 16, &[9; 64]).unwrap();
        assert_eq!(b.port(0).atomic(R, 24, AtomicOp::FetchAdd { add: 1 }), Ok(0x0909_0909_0909_0909));
        let mut out = [0; 24];
        b.port(0).fetch(R, 8, &mut out).unwrap();
        assert_eq!(out[..16], [0, 0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9]);
        assert_eq!(u64::from_ne_bytes(out[16..].try_into().unwrap()), 0x0909_0909_0909_090a);
        b.pipeline.advance(Time::from_nanos(1 << 40));
        assert_eq!(b.seen(0, 100), [0; 100]);
        assert_eq!(b.pipeline.lose(), 72);
        b.pipeline.flush();
        assert_eq!(b.seen(0, 100), [0; 100]);
    }

    #[test]
    #[should_panic(expected = "after it was revoked")]
    fn a_revoked_region_is_never_touched() {
        let _ = Bench::new(1, true).port(0).fetch(RegionId(1), 0, &mut [0]);
    }

    #[test]
    fn bad_ranges_are_faults() {
        let mut b = Bench::new(1, true);
        assert!(b.port(0).place(R, 4090, &[0; 7]).is_err());
        assert!(b.port(0).fetch(R, u64::MAX, &mut [0]).is_err());
        assert!(b.port(0).atomic(R, 4, AtomicOp::FetchAdd { add: 1 }).is_err());
    }
}
