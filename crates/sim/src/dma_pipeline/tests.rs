use mitra_transport::Memory;
use mitra_verbs::RegionId;

use super::*;
use crate::Config;
use crate::dma_memory::DmaMemory;

struct Fixture {
    pipeline: DmaPipeline,
    regions: Vec<Option<Arc<HostBuffer>>>,
}

impl Fixture {
    fn new(seed: u64, in_order: bool) -> Fixture {
        let timing = MemoryTiming { chunk_min: 8, chunk_max: 64, ..Config::swarm(seed).memory };
        let pipeline = DmaPipeline::new(timing, Prng::stream(seed, "memory"), in_order);
        let memory = HostBuffer { buffer: Arc::new(Buffer::new(4096)), changes: Arc::default() };
        Fixture { pipeline, regions: vec![Some(Arc::new(memory))] }
    }

    fn dma_memory(&mut self, now: u64) -> DmaMemory<'_> {
        let now = Time::from_nanos(now);
        DmaMemory { pipeline: &mut self.pipeline, regions: &self.regions, now, global_atomics: false }
    }

    fn visible(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.regions[0].as_ref().unwrap().buffer.read_at(offset, &mut out);
        out
    }

    fn step(&mut self) -> bool {
        let Some(due) = self.pipeline.next_at() else { return false };
        self.pipeline.advance(due);
        true
    }
}

const R: RegionId = RegionId(0);

#[test]
fn placement_tears_and_last_byte_appears_last() {
    let mut torn = 0;
    for seed in 0..50 {
        let mut fixture = Fixture::new(seed, true);
        fixture.dma_memory(100).place(R, 3, &[7; 1000]).unwrap();
        assert_eq!(fixture.visible(0, 4096), [0; 4096], "nothing is visible at once");
        while fixture.step() {
            let visible = fixture.visible(3, 1000);
            let some = visible.contains(&7);
            torn += u32::from(some && visible.contains(&0));
            assert!(visible[999] == 0 || visible.iter().all(|&x| x == 7), "seed {seed}: last byte first");
        }
        assert_eq!(fixture.visible(3, 1000), [7; 1000]);
        assert_eq!((fixture.visible(0, 3), fixture.visible(1003, 5)), (vec![0; 3], vec![0; 5]));
    }
    assert!(torn > 200, "torn {torn} times");
}

#[test]
fn aligned_words_do_not_tear() {
    for seed in 0..50 {
        let mut fixture = Fixture::new(seed, seed % 2 == 0);
        fixture.dma_memory(0).place(R, 5, &[0xff; 300]).unwrap();
        while fixture.step() {
            for word in 1..37 {
                let w = fixture.regions[0].as_ref().unwrap().buffer.load(8 * word);
                assert!(w == 0 || w == u64::MAX, "seed {seed}: {w:x}");
            }
        }
    }
}

#[test]
fn fetch_completes_earlier_placements() {
    let mut fixture = Fixture::new(1, true);
    fixture.dma_memory(0).place(R, 0, &[1; 600]).unwrap();
    fixture.pipeline.push_release(Time::ZERO, Release::Completion(CqId(3)));
    let mut out = [0; 600];
    fixture.dma_memory(0).fetch(R, 0, &mut out).unwrap();
    assert_eq!(out, [1; 600]);
    assert_eq!(fixture.visible(0, 600), [1; 600]);
    assert_eq!(fixture.pipeline.take_released(), [Release::Completion(CqId(3))]);
}

#[test]
fn completion_follows_its_data_in_both_orders() {
    for seed in 0..40 {
        let mut fixture = Fixture::new(seed, seed % 2 == 0);
        fixture.dma_memory(0).place(R, 0, &[1; 600]).unwrap();
        fixture.pipeline.push_release(Time::from_nanos(1), Release::Completion(CqId(3)));
        fixture.dma_memory(1).place(R, 700, &[2; 100]).unwrap();
        while fixture.pipeline.released.is_empty() {
            assert!(fixture.step());
        }
        assert_eq!(fixture.visible(0, 600), [1; 600], "seed {seed}");
    }
}

#[test]
fn relaxed_order_keeps_order_per_address_only() {
    let overtaken = (0..50).filter(|&seed| {
        let mut fixture = Fixture::new(seed, false);
        fixture.dma_memory(0).place(R, 0, &[1; 1000]).unwrap();
        fixture.dma_memory(0).place(R, 2000, &[2; 8]).unwrap();
        fixture.dma_memory(0).place(R, 500, &[3; 8]).unwrap();
        let mut early = false;
        while fixture.step() {
            early |= fixture.visible(2000, 1) == [2] && fixture.visible(999, 1) == [0];
        }
        assert_eq!(fixture.visible(500, 8), [3; 8], "seed {seed}: the same address keeps its order");
        early
    });
    assert!(overtaken.count() > 10);
    let mut fixture = Fixture::new(1, true);
    fixture.dma_memory(0).place(R, 0, &[1; 1000]).unwrap();
    fixture.dma_memory(0).place(R, 2000, &[2; 8]).unwrap();
    while fixture.step() {
        assert!(fixture.visible(2000, 1) == [0] || fixture.visible(999, 1) == [1]);
    }
}

#[test]
fn atomics_of_two_nics_lose_an_increment() {
    let add = AtomicOp::FetchAdd { add: 1 };
    let (mut a, mut b) = (Fixture::new(1, true), Fixture::new(2, true));
    b.regions = a.regions.clone();
    assert_eq!(a.dma_memory(0).atomic(R, 8, add), Ok(0));
    assert_eq!(a.dma_memory(0).atomic(R, 8, add), Ok(1), "atomics of one NIC are serialised");
    assert_eq!(b.dma_memory(0).atomic(R, 8, add), Ok(1), "the other NIC does not wait for the store");
    a.pipeline.flush();
    b.pipeline.flush();
    assert_eq!(a.regions[0].as_ref().unwrap().buffer.load(8), 2);
}

#[test]
fn global_atomics_lose_no_increment() {
    let add = AtomicOp::FetchAdd { add: 1 };
    let (mut a, mut b) = (Fixture::new(1, true), Fixture::new(2, true));
    b.regions = a.regions.clone();
    for fixture in [&mut a, &mut b] {
        let mut dma_memory = fixture.dma_memory(0);
        dma_memory.global_atomics = true;
        dma_memory.atomic(R, 8, add).unwrap();
    }
    a.pipeline.flush();
    b.pipeline.flush();
    assert_eq!(a.regions[0].as_ref().unwrap().buffer.load(8), 2);
}

#[test]
fn frozen_pipeline_shows_writes_to_nic_only() {
    let mut fixture = Fixture::new(1, true);
    fixture.pipeline.freeze();
    fixture.dma_memory(0).place(R, 16, &[9; 64]).unwrap();
    assert_eq!(fixture.dma_memory(0).atomic(R, 24, AtomicOp::FetchAdd { add: 1 }), Ok(0x0909_0909_0909_0909));
    let mut out = [0; 24];
    fixture.dma_memory(0).fetch(R, 8, &mut out).unwrap();
    assert_eq!(out[..16], [0, 0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9]);
    assert_eq!(u64::from_ne_bytes(out[16..].try_into().unwrap()), 0x0909_0909_0909_090a);
    fixture.pipeline.advance(Time::from_nanos(1 << 40));
    assert_eq!(fixture.visible(0, 100), [0; 100]);
    assert_eq!(fixture.pipeline.discard_all(), 72);
    fixture.pipeline.flush();
    assert_eq!(fixture.visible(0, 100), [0; 100]);
}

#[test]
#[should_panic(expected = "after it was revoked")]
fn access_to_revoked_region_panics() {
    let _ = Fixture::new(1, true).dma_memory(0).fetch(RegionId(1), 0, &mut [0]);
}

#[test]
fn out_of_range_access_is_a_fault() {
    let mut fixture = Fixture::new(1, true);
    assert!(fixture.dma_memory(0).place(R, 4090, &[0; 7]).is_err());
    assert!(fixture.dma_memory(0).fetch(R, u64::MAX, &mut [0]).is_err());
    assert!(fixture.dma_memory(0).atomic(R, 4, AtomicOp::FetchAdd { add: 1 }).is_err());
}
