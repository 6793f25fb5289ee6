//! The schema and the partitions of a store for the tables.

use mitra_txn::{RecordKey, TableSchema};

use super::scale::Scale;
use super::table::{Table, home, keys};

/// The schema of all tables, in the order of their numbers: a partition for each warehouse, with
/// place for `orders` New-Orders and `payments` Payments of a warehouse.
pub fn schema(scale: &Scale, orders: u64, payments: u64) -> Vec<TableSchema> {
    let partitions = u32::from(scale.warehouses());
    let table = |table: Table| {
        let records = match table {
            // The items are spread over the partitions.
            Table::Item => table.loaded_records(scale).div_ceil(partitions.into()),
            _ => table.records_after(scale, orders, payments),
        };
        TableSchema {
            max_value_bytes: table.max_value_len() as u32,
            partitions,
            records: u32::try_from(records).unwrap_or(u32::MAX),
            group_bits: if table == Table::OrderLine { keys::LINE_BITS as u8 } else { 0 },
        }
    };
    Table::ALL.map(table).to_vec()
}

/// The partition of a record, for [`Layout::new`](mitra_txn::Layout::new) with a [`schema`].
pub fn partition(at: RecordKey) -> u32 {
    home(at).map_or(at.key as u32, |warehouse| u32::from(warehouse) - 1)
}
