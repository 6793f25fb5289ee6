//! Loading and inspecting a store.

use std::num::NonZeroU64;
use std::rc::Rc;

use mitra_txn::{Layout, RecordKey, Schema, TableId, TableSchema};
use mitra_txn_rdma::{LoadError, QpKind, inspect, load};

use crate::common::{BYTES, connect, links_config, start_nodes};

const PARTITIONS: u32 = 4;

fn layout() -> Rc<Layout> {
    let table = TableSchema { max_value_bytes: 100, partitions: PARTITIONS, records: 60, group_bits: 0 };
    let schema =
        Schema { tables: vec![table], nodes: 2, backups: 1, coordinators: 2, slots: 2, slot_bytes: 512 };
    let layout = Layout::new(schema, |at| at.key as u32 % PARTITIONS).expect("the schema is valid");
    assert!(layout.bytes() <= BYTES as u64);
    Rc::new(layout)
}

fn part(partition: u64) -> Vec<(RecordKey, Vec<u8>)> {
    let key = move |number| partition + number * u64::from(PARTITIONS);
    let record = |key| (RecordKey { table: TableId(0), key }, vec![key as u8; 1 + key as usize % 100]);
    (0..40).map(key).map(record).collect()
}

#[test]
fn inspection_finds_what_was_loaded() {
    let nodes = start_nodes(2, 1, QpKind::Virtual);
    let (mut links, _nics) = connect(&links_config(1, &nodes, QpKind::Virtual), 1);
    let layout = layout();
    let mut calls = Vec::new();
    let parts = (0..u64::from(PARTITIONS)).map(part);
    load(&mut links, &layout, NonZeroU64::MIN, parts, |written, bytes| calls.push((written, bytes)))
        .expect("all records have places");
    assert!(calls.is_sorted(), "{calls:?}");
    let mut written: Vec<usize> = calls.iter().map(|(written, _)| *written).collect();
    written.dedup();
    assert!((0..=PARTITIONS as usize).eq(written), "{calls:?}");
    let (inspection, found) = inspect(&mut links, &layout).expect("links");
    assert!(inspection.is_clean(), "{inspection}");
    assert_eq!(found, (0..u64::from(PARTITIONS)).flat_map(part).collect());
}

#[test]
fn part_that_comes_late_is_refused() {
    let nodes = start_nodes(2, 1, QpKind::Virtual);
    let (mut links, _nics) = connect(&links_config(1, &nodes, QpKind::Virtual), 1);
    let layout = layout();
    let halves = [part(0)[..10].to_vec(), part(0)[10..].to_vec()];
    let refused = load(&mut links, &layout, NonZeroU64::MIN, halves, |_, _| ());
    assert!(matches!(refused, Err(LoadError::Record(mitra_txn::LoadError::Late { .. }))), "{refused:?}");
}
