//! Each rule of a consistent database, violated alone.

use std::collections::BTreeSet;

use mitra_txn::{Model, RecordKey};
use mitra_txn_workloads::tpcc::rows::{
    Customer, CustomersByName, DistrictNextOrder, DistrictYtd, History, LastOrder, OldestNewOrder, Order,
    OrderLine, WarehouseYtd,
};
use mitra_txn_workloads::tpcc::{LastName, Rule, Scale, Table, check, keys};
use mitra_txn_workloads::{Text, Value};

use crate::{TINY, loaded, scale};

fn tiny() -> (Model, Scale) {
    let scale = scale(1, TINY);
    (loaded(scale), scale)
}

fn row<V: Value>(store: &Model, at: RecordKey) -> V {
    V::decode(&store.records()[&at]).unwrap()
}

fn change<V: Value>(store: &mut Model, at: RecordKey, change: impl FnOnce(&mut V)) {
    let mut value = row(store, at);
    change(&mut value);
    store.load(at, value.encode());
}

fn delete(store: &mut Model, at: RecordKey) {
    let mut records = store.records().clone();
    records.remove(&at).expect("the record exists");
    *store = Model::new();
    records.into_iter().for_each(|(at, value)| store.load(at, value));
}

/// Checks that a changed store violates exactly these rules, and that a violation of the first
/// names the record `at`.
fn assert_violates(rules: &[Rule], at: RecordKey, damage: impl FnOnce(&mut Model)) {
    let (mut store, scale) = tiny();
    damage(&mut store);
    let report = check(store.records(), &scale);
    let violated: BTreeSet<Rule> = report.violations.iter().map(|violation| violation.rule).collect();
    assert_eq!(violated, rules.iter().copied().collect(), "{:#?}", report.violations);
    let mut of_first = report.violations.iter().filter(|violation| violation.rule == rules[0]);
    assert!(of_first.any(|violation| violation.records.contains(&at)), "{:#?}", report.violations);
    assert!(!report.holds(rules[0]) && !report.is_consistent());
    for (index, holds) in report.conditions().into_iter().enumerate() {
        assert_eq!(holds, !violated.contains(&Rule::Condition(index as u8 + 1)));
    }
}

fn of_district(table: Table, district: u8) -> RecordKey {
    keys::of_district(table, 1, district)
}

fn order(number: u32) -> RecordKey {
    keys::of_order(Table::Order, 1, 1, number)
}

fn customer(id: u16) -> RecordKey {
    keys::of_customer(Table::Customer, 1, 1, id)
}

/// A payment of a customer who does not exist, at a district that does not exist, so that only
/// W_YTD is concerned.
fn stray_payment(store: &mut Model) {
    let data = Text::new("");
    let row = History { warehouse: 1, district: 3, date: 0, amount: 5, data };
    store.load(keys::history(1, 1, 31, 1), row.encode());
}

const W_YTD: RecordKey = RecordKey { table: Table::WarehouseYtd.id(), key: 1 << 48 };

#[test]
fn condition_1_warehouse_and_districts() {
    assert_violates(&[Rule::Condition(1)], W_YTD, |store| {
        stray_payment(store);
        change(store, W_YTD, |row: &mut WarehouseYtd| row.payments += 5);
    });
    let both = [Rule::Condition(1), Rule::Condition(8)];
    assert_violates(&both, W_YTD, |store| change(store, W_YTD, |row: &mut WarehouseYtd| row.payments += 1));
    assert_violates(&both, W_YTD, |store| delete(store, W_YTD));
}

#[test]
fn condition_2_next_order() {
    let at = of_district(Table::DistrictNextOrder, 2);
    let next =
        |store: &mut Model, add: u32| change(store, at, |row: &mut DistrictNextOrder| row.order += add);
    assert_violates(&[Rule::Condition(2)], at, |store| next(store, 1));
    assert_violates(&[Rule::Condition(2)], at, |store| delete(store, at));
}

#[test]
fn condition_3_gap_in_new_orders() {
    // A delivery that has not taken the oldest order.
    let new_order = |number| keys::of_order(Table::NewOrder, 1, 1, number);
    assert_violates(&[Rule::Condition(3)], new_order(22), |store| {
        delete(store, new_order(25));
        let mut delivered: Order = row(store, order(25));
        delivered.carrier = Some(1);
        store.load(order(25), delivered.encode());
        let mut amount = 0;
        for line in 1..=delivered.lines {
            change(store, keys::order_line(1, 1, 25, line), |row: &mut OrderLine| {
                row.delivery = Some(1);
                amount += row.amount;
            });
        }
        change(store, customer(delivered.customer), |row: &mut Customer| {
            row.balance += amount;
            row.delivery_count += 1;
        });
    });
}

#[test]
fn condition_4_order_lines_of_a_district() {
    assert_violates(&[Rule::Condition(4)], of_district(Table::District, 1), |store| {
        let line: OrderLine = row(store, keys::order_line(1, 1, 1, 1));
        store.load(keys::order_line(1, 1, 999, 1), line.encode());
    });
    let both = [Rule::Condition(4), Rule::Condition(6)];
    assert_violates(&both, of_district(Table::District, 1), |store| {
        delete(store, keys::order_line(1, 1, 1, 1));
    });
}

#[test]
fn condition_5_carrier_of_new_orders() {
    assert_violates(&[Rule::Condition(5)], order(21), |store| {
        change(store, order(21), |row: &mut Order| row.carrier = None);
        for line in 1..=row::<Order>(store, order(21)).lines {
            change(store, keys::order_line(1, 1, 21, line), |row: &mut OrderLine| row.delivery = None);
        }
    });
}

#[test]
fn condition_6_order_lines_of_an_order() {
    assert_violates(&[Rule::Condition(6)], order(2), |store| {
        let has_room = |&number: &u32| row::<Order>(store, order(number)).lines < 15;
        let longer = (3..=30).find(has_room).expect("an order with fewer than 15 lines");
        for (number, change_of_lines) in [(longer, 1), (2, -1)] {
            let mut changed: Order = row(store, order(number));
            changed.lines = changed.lines.checked_add_signed(change_of_lines).unwrap();
            store.load(order(number), changed.encode());
            let last = keys::of_customer(Table::LastOrder, 1, 1, changed.customer);
            change(store, last, |row: &mut LastOrder| row.lines = changed.lines);
        }
    });
}

#[test]
fn condition_7_delivery_of_lines() {
    let at = keys::order_line(1, 1, 1, 1);
    assert_violates(&[Rule::Condition(7)], at, |store| {
        change(store, at, |row: &mut OrderLine| row.delivery = None);
    });
}

#[test]
fn condition_8_warehouse_and_payments() {
    assert_violates(&[Rule::Condition(8)], W_YTD, stray_payment);
}

#[test]
fn condition_9_district_and_payments() {
    let at = |district| of_district(Table::DistrictYtd, district);
    assert_violates(&[Rule::Condition(9)], at(2), |store| {
        change(store, at(1), |row: &mut DistrictYtd| row.payments -= 7);
        change(store, at(2), |row: &mut DistrictYtd| row.payments += 7);
    });
}

#[test]
fn condition_10_balance_and_history() {
    assert_violates(&[Rule::Condition(10)], customer(8), |store| {
        change(store, customer(8), |row: &mut Customer| {
            row.balance += 3;
            row.payments -= 3;
        });
    });
    let payment = [10, 8, 9].map(Rule::Condition);
    assert_violates(&payment, customer(8), |store| {
        change(store, keys::history(1, 1, 8, 1), |row: &mut History| row.amount += 3);
    });
}

#[test]
fn condition_11_deliveries() {
    assert_violates(&[Rule::Condition(11)], of_district(Table::District, 1), |store| {
        change(store, customer(8), |row: &mut Customer| row.delivery_count += 1);
    });
}

#[test]
fn condition_12_balance_and_payments() {
    assert_violates(&[Rule::Condition(12)], customer(8), |store| {
        change(store, customer(8), |row: &mut Customer| row.payments += 1);
    });
    let both = [Rule::Condition(12), Rule::Condition(10)];
    assert_violates(&both, customer(8), |store| {
        change(store, customer(8), |row: &mut Customer| row.balance += 1);
    });
}

#[test]
fn index_records_are_compared_with_the_tables() {
    let by_name = keys::customers_by_name(1, 1, LastName::new(4).unwrap());
    let rule = [Rule::Index(Table::CustomersByName)];
    assert_violates(&rule, by_name, |store| {
        change(store, by_name, |row: &mut CustomersByName| row.customers.push(1));
    });
    assert_violates(&rule, by_name, |store| delete(store, by_name));

    let last = keys::of_customer(Table::LastOrder, 1, 1, 4);
    assert_violates(&[Rule::Index(Table::LastOrder)], last, |store| {
        change(store, last, |row: &mut LastOrder| row.order += 1);
    });

    let oldest = of_district(Table::OldestNewOrder, 1);
    assert_violates(&[Rule::Index(Table::OldestNewOrder)], oldest, |store| {
        change(store, oldest, |row: &mut OldestNewOrder| row.order += 1);
    });
}

#[test]
fn damaged_value_is_named() {
    let at = keys::item(3);
    assert_violates(&[Rule::Undamaged], at, |store| store.load(at, vec![0; 9]));
}

#[test]
fn any_numbers_in_a_damaged_store_are_compared_without_overflow() {
    let (mut store, scale) = tiny();
    change(&mut store, customer(8), |row: &mut Customer| {
        (row.balance, row.payments, row.delivery_count) = (i64::MIN, i64::MIN, u32::MAX);
    });
    change(&mut store, keys::history(1, 1, 9, 1), |row: &mut History| row.amount = i64::MIN);
    change(&mut store, keys::order_line(1, 1, 1, 1), |row: &mut OrderLine| row.amount = i64::MAX);
    change(&mut store, of_district(Table::DistrictNextOrder, 1), |row: &mut DistrictNextOrder| row.order = 0);
    change(&mut store, of_district(Table::DistrictYtd, 1), |row: &mut DistrictYtd| row.payments = i64::MIN);
    change(&mut store, W_YTD, |row: &mut WarehouseYtd| row.payments = i64::MAX);
    assert!(!check(store.records(), &scale).is_consistent());
}
