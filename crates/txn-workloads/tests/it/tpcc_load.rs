//! The first content of the tables.

use std::collections::BTreeMap;

use mitra_txn_workloads::Value;
use mitra_txn_workloads::tpcc::rows::{Credit, Customer, CustomersByName, Item, NewOrder, Order, OrderLine};
use mitra_txn_workloads::tpcc::{Load, Scale, Sizes, Table, check, home, keys};

use crate::{SEED, TINY, loaded, scale};

/// Loads one warehouse of TPC-C, counts the rows, and checks their values and the conditions.
#[test]
fn full_load_is_consistent_and_has_the_rows_and_the_shares_of_the_specification() {
    let scale = Scale::full(1).unwrap();
    assert!(scale.is_full());
    let mut counts: BTreeMap<Table, u64> = BTreeMap::new();
    let (mut bad_credit, mut original, mut named) = (0, 0, 0);
    let store = loaded(scale);
    let report = check(store.records(), &scale);
    assert_eq!((report.conditions(), report.violations), ([true; 12], vec![]));
    for (&at, value) in store.records() {
        let table = Table::of(at.table).unwrap();
        *counts.entry(table).or_default() += 1;
        assert!(value.len() <= table.max_value_len());
        assert_eq!(home(at), (table != Table::Item).then_some(1));
        match table {
            Table::Item => {
                let item = Item::decode(value).unwrap();
                original += u32::from(item.data.as_str().contains("ORIGINAL"));
                assert!((1_00..=100_00).contains(&item.price));
            }
            Table::Customer => {
                let customer = Customer::decode(value).unwrap();
                bad_credit += u32::from(customer.credit == Credit::Bad);
                assert_eq!((customer.balance, customer.payments, customer.payment_count), (-10_00, 10_00, 1));
                assert!((300..=500).contains(&customer.data.as_str().len()));
            }
            Table::Order => {
                let (order, row) = (keys::parts(at).rest, Order::decode(value).unwrap());
                assert_eq!(row.carrier.is_some(), order <= 2100);
                assert!((5..=15).contains(&row.lines));
            }
            Table::NewOrder => {
                assert!((2101..=3000).contains(&keys::parts(at).rest));
                assert_eq!(NewOrder::decode(value), Ok(NewOrder {}));
            }
            Table::OrderLine => {
                let (order, row) = (keys::order_and_line(at).0, OrderLine::decode(value).unwrap());
                assert_eq!(row.delivery.is_some(), order <= 2100);
                assert_eq!(row.amount == 0, order <= 2100);
                assert_eq!(row.district_text.as_str().len(), 24);
            }
            Table::CustomersByName => named += CustomersByName::decode(value).unwrap().customers.len(),
            _ => (),
        }
    }
    let lines = counts.remove(&Table::OrderLine).unwrap();
    assert!((298_000..302_000).contains(&lines), "{lines} order lines; 300,000 are expected");
    for (table, count) in &counts {
        assert_eq!(*count, table.loaded_records(&scale), "{table:?}");
    }
    assert_eq!(counts.len(), Table::ALL.len() - 1);
    assert_eq!(counts[&Table::Stock], 100_000);
    assert_eq!([Table::Customer, Table::Order, Table::History].map(|table| counts[&table]), [30_000; 3]);
    assert_eq!([Table::NewOrder, Table::CustomersByName].map(|table| counts[&table]), [9_000, 10_000]);
    assert_eq!(named, 30_000);
    assert!((9_600..10_400).contains(&original), "{original} of 100,000 items");
    assert!((2_800..3_200).contains(&bad_credit), "{bad_credit} of 30,000 customers");
    assert!(lines <= Table::OrderLine.loaded_records(&scale));
    assert_eq!(Table::OrderLine.records_after(&scale, 10, 3), 450_000 + 150);
    assert_eq!(Table::History.records_after(&scale, 10, 3), 30_003);
}

#[test]
fn load_repeats_and_its_parts_are_the_whole() {
    let scale = scale(2, TINY);
    let load = Load::new(scale, SEED, 5);
    let whole: Vec<_> = load.records().collect();
    assert_eq!(whole, Load::new(scale, SEED, 5).records().collect::<Vec<_>>());
    let parts: Vec<_> = load.items().chain(load.warehouse(1)).chain(load.warehouse(2)).collect();
    assert_eq!(whole, parts);
    assert_ne!(whole, Load::new(scale, SEED + 1, 5).records().collect::<Vec<_>>());
    let distinct: BTreeMap<_, _> = whole.iter().cloned().collect();
    assert_eq!(distinct.len(), whole.len(), "no key is loaded twice");
}

#[test]
fn damaged_values_are_errors_in_every_table() {
    for (at, value) in loaded(scale(1, TINY)).records() {
        let decode = |bytes: &[u8]| -> Result<(), mitra_txn_workloads::Damaged> {
            use mitra_txn_workloads::tpcc::rows as r;
            match Table::of(at.table).unwrap() {
                Table::Item => r::Item::decode(bytes).map(drop),
                Table::Warehouse => r::Warehouse::decode(bytes).map(drop),
                Table::WarehouseYtd => r::WarehouseYtd::decode(bytes).map(drop),
                Table::District => r::District::decode(bytes).map(drop),
                Table::DistrictYtd => r::DistrictYtd::decode(bytes).map(drop),
                Table::DistrictNextOrder => r::DistrictNextOrder::decode(bytes).map(drop),
                Table::Customer => r::Customer::decode(bytes).map(drop),
                Table::History => r::History::decode(bytes).map(drop),
                Table::Order => r::Order::decode(bytes).map(drop),
                Table::NewOrder => r::NewOrder::decode(bytes).map(drop),
                Table::OrderLine => r::OrderLine::decode(bytes).map(drop),
                Table::Stock => r::Stock::decode(bytes).map(drop),
                Table::CustomersByName => r::CustomersByName::decode(bytes).map(drop),
                Table::LastOrder => r::LastOrder::decode(bytes).map(drop),
                Table::OldestNewOrder => r::OldestNewOrder::decode(bytes).map(drop),
            }
        };
        assert_eq!(decode(value), Ok(()), "{at:?}");
        assert!(value.is_empty() || decode(&value[..value.len() - 1]).is_err(), "{at:?} is too short");
        assert!(decode(&[value.as_slice(), &[7; 257]].concat()).is_err(), "{at:?} is too long");
    }
}

#[test]
fn scales_outside_the_limits_are_refused() {
    let refused = |warehouses, sizes| Scale::reduced(warehouses, sizes).is_err();
    assert!(!refused(u16::MAX, Sizes::TPCC));
    assert!(refused(0, Sizes::TPCC));
    assert!(refused(1, Sizes { items: 0, ..TINY }));
    assert!(refused(1, Sizes { items: u32::MAX, ..TINY }), "no number is left for the unused item");
    assert!(refused(1, Sizes { districts: 11, ..TINY }));
    assert!(refused(1, Sizes { districts: 0, ..TINY }));
    assert!(refused(1, Sizes { customers: 4096, ..TINY }));
    assert!(refused(1, Sizes { new_orders: 31, ..TINY }));
}
