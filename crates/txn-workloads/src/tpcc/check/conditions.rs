//! The twelve consistency conditions (§3.3.2.1 to §3.3.2.12).

use std::collections::BTreeMap;

use mitra_txn::RecordKey;

use super::{Report, Rows, Rule, Tables, of_district, order_number};
use crate::tpcc::Cents;
use crate::tpcc::scale::Scale;
use crate::tpcc::table::{Table, keys};

pub(super) fn check(tables: &Tables, scale: &Scale, report: &mut Report) {
    let payments = Payments::of(tables);
    let delivered = delivered_amounts(tables);
    for warehouse in 1..=scale.warehouses() {
        check_warehouse(tables, warehouse, &payments, report);
    }
    for district in scale.districts() {
        check_next_order(tables, district, report);
        check_new_orders(tables, district, report);
        check_line_count(tables, district, report);
        check_district_payments(tables, district, &payments, report);
        check_deliveries(tables, district, scale, report);
    }
    check_orders(tables, report);
    check_lines(tables, report);
    check_customers(tables, &payments, &delivered, report);
}

/// The sums of H_AMOUNT, by the receivers and by the payers.
#[derive(Default)]
struct Payments {
    by_warehouse: BTreeMap<u16, Cents>,
    by_district: BTreeMap<(u16, u8), Cents>,
    by_customer: BTreeMap<RecordKey, Cents>,
}

impl Payments {
    fn of(tables: &Tables) -> Payments {
        let mut payments = Payments::default();
        for (&at, row) in &tables.history {
            let keys::Parts { warehouse, district, .. } = keys::parts(at);
            let customer =
                keys::of_customer(Table::Customer, warehouse, district, keys::history_customer(at));
            add(&mut payments.by_warehouse, row.warehouse, row.amount);
            add(&mut payments.by_district, (row.warehouse, row.district), row.amount);
            add(&mut payments.by_customer, customer, row.amount);
        }
        payments
    }
}

/// The sums of OL_AMOUNT of the customers' delivered order lines.
fn delivered_amounts(tables: &Tables) -> BTreeMap<RecordKey, Cents> {
    let mut amounts = BTreeMap::new();
    for (&at, line) in &tables.lines {
        let keys::Parts { warehouse, district, .. } = keys::parts(at);
        if line.delivery.is_some()
            && let Some(order) = tables.orders.get(&order_of(at))
        {
            let customer = keys::of_customer(Table::Customer, warehouse, district, order.customer);
            add(&mut amounts, customer, line.amount);
        }
    }
    amounts
}

// The sums wrap: a damaged store may have any amounts.
fn add<K: Ord>(sums: &mut BTreeMap<K, Cents>, key: K, amount: Cents) {
    let sum = sums.entry(key).or_default();
    *sum = sum.wrapping_add(amount);
}

fn sum(amounts: impl Iterator<Item = Cents>) -> Cents {
    amounts.fold(0, Cents::wrapping_add)
}

fn get<K: Ord>(sums: &BTreeMap<K, Cents>, key: &K) -> Cents {
    sums.get(key).copied().unwrap_or(0)
}

/// The order of a row of ORDER-LINE.
fn order_of(line: RecordKey) -> RecordKey {
    let keys::Parts { warehouse, district, .. } = keys::parts(line);
    keys::of_order(Table::Order, warehouse, district, keys::order_and_line(line).0)
}

/// Adds a violation of a condition if two sides differ.
fn compare<T: PartialEq + std::fmt::Debug>(
    report: &mut Report,
    condition: u8,
    records: impl FnOnce() -> Vec<RecordKey>,
    (left_name, left): (&str, T),
    (right_name, right): (&str, T),
) {
    if left != right {
        let detail = format!("{left_name} is {left:?}, {right_name} is {right:?}");
        report.violated(Rule::Condition(condition), records(), detail);
    }
}

/// Conditions 1 and 8: W_YTD is the sum of D_YTD, and of the HISTORY rows' amounts.
fn check_warehouse(tables: &Tables, warehouse: u16, payments: &Payments, report: &mut Report) {
    let at = keys::of_warehouse(Table::WarehouseYtd, warehouse);
    let ytd = tables.warehouse_ytd.get(&at).map(|row| row.payments);
    let districts =
        (0..16).flat_map(|d| of_district(&tables.district_ytd, Table::DistrictYtd, (warehouse, d)));
    let of_districts = sum(districts.map(|(_, row)| row.payments));
    compare(report, 1, || vec![at], ("W_YTD", ytd), ("the sum of D_YTD", Some(of_districts)));
    let of_history = get(&payments.by_warehouse, &warehouse);
    compare(report, 8, || vec![at], ("W_YTD", ytd), ("the sum of H_AMOUNT", Some(of_history)));
}

/// Condition 2: D_NEXT_O_ID - 1 is the highest O_ID and the highest NO_O_ID.
fn check_next_order(tables: &Tables, district: (u16, u8), report: &mut Report) {
    let at = keys::of_district(Table::DistrictNextOrder, district.0, district.1);
    let before = tables.next_order(district.0, district.1).map(|order| order.wrapping_sub(1));
    let order = highest(&tables.orders, Table::Order, district);
    compare(report, 2, || vec![at], ("D_NEXT_O_ID - 1", before), ("the highest O_ID", order));
    match highest(&tables.new_orders, Table::NewOrder, district) {
        None => report.without_new_orders.push(district),
        Some(new_order) => {
            let new_order = ("the highest NO_O_ID", Some(new_order));
            compare(report, 2, || vec![at], ("D_NEXT_O_ID - 1", before), new_order);
        }
    }
}

fn highest<V>(rows: &Rows<V>, table: Table, district: (u16, u8)) -> Option<u32> {
    of_district(rows, table, district).next_back().map(|(at, _)| order_number(at))
}

/// Condition 3: the numbers of a district's new orders follow one another.
fn check_new_orders(tables: &Tables, district: (u16, u8), report: &mut Report) {
    let mut rows = of_district(&tables.new_orders, Table::NewOrder, district).map(|(at, _)| at);
    let count = rows.clone().count() as u64;
    if let (Some(first), Some(last)) = (rows.clone().next(), rows.next_back()) {
        let span = u64::from(order_number(last)) - u64::from(order_number(first)) + 1;
        let span = ("the highest less the lowest NO_O_ID + 1", span);
        compare(report, 3, || vec![first, last], span, ("the number of rows in NEW-ORDER", count));
    }
}

/// Condition 4: the sum of a district's O_OL_CNT is the number of its rows in ORDER-LINE.
fn check_line_count(tables: &Tables, district: (u16, u8), report: &mut Report) {
    let sum: u64 =
        of_district(&tables.orders, Table::Order, district).map(|(_, row)| u64::from(row.lines)).sum();
    let rows = of_district(&tables.lines, Table::OrderLine, district).count() as u64;
    let at = keys::of_district(Table::District, district.0, district.1);
    compare(report, 4, || vec![at], ("the sum of O_OL_CNT", sum), ("the number of rows in ORDER-LINE", rows));
}

/// Condition 9: D_YTD is the sum of the HISTORY rows' amounts.
fn check_district_payments(tables: &Tables, district: (u16, u8), payments: &Payments, report: &mut Report) {
    let at = keys::of_district(Table::DistrictYtd, district.0, district.1);
    let ytd = tables.district_ytd.get(&at).map(|row| row.payments);
    let of_history = get(&payments.by_district, &district);
    compare(report, 9, || vec![at], ("D_YTD", ytd), ("the sum of H_AMOUNT", Some(of_history)));
}

/// Condition 11, as [`Rule::Condition`] says.
fn check_deliveries(tables: &Tables, district: (u16, u8), scale: &Scale, report: &mut Report) {
    let orders = of_district(&tables.orders, Table::Order, district).count() as i64;
    let new_orders = of_district(&tables.new_orders, Table::NewOrder, district).count() as i64;
    let customers = of_district(&tables.customers, Table::Customer, district);
    let delivered: i64 = customers.map(|(_, row)| i64::from(row.delivery_count)).sum();
    let at = keys::of_district(Table::District, district.0, district.1);
    let left = ("the number of rows in ORDER less that in NEW-ORDER", orders - new_orders);
    let right = i64::from(scale.delivered_orders()) + delivered;
    compare(report, 11, || vec![at], left, ("the number of delivered orders", right));
}

/// Conditions 5 and 6: O_CARRIER_ID is null exactly for new orders, and O_OL_CNT is the order's
/// number of rows in ORDER-LINE.
fn check_orders(tables: &Tables, report: &mut Report) {
    for (&at, order) in &tables.orders {
        let keys::Parts { warehouse, district, .. } = keys::parts(at);
        let number = order_number(at);
        let new_order = keys::of_order(Table::NewOrder, warehouse, district, number);
        let is_new = ("a row in NEW-ORDER", tables.new_orders.contains_key(&new_order));
        compare(report, 5, || vec![at], ("null in O_CARRIER_ID", order.carrier.is_none()), is_new);
        let line = |line| keys::order_line(warehouse, district, number, line);
        let lines = tables.lines.range(line(0)..=line(15)).count();
        let rows = ("the number of rows in ORDER-LINE", lines);
        compare(report, 6, || vec![at], ("O_OL_CNT", usize::from(order.lines)), rows);
    }
}

/// Condition 7: OL_DELIVERY_D is null exactly where the order's O_CARRIER_ID is.
fn check_lines(tables: &Tables, report: &mut Report) {
    for (&at, line) in &tables.lines {
        if let Some(order) = tables.orders.get(&order_of(at)) {
            let carrier = ("null in O_CARRIER_ID", order.carrier.is_none());
            compare(report, 7, || vec![at], ("null in OL_DELIVERY_D", line.delivery.is_none()), carrier);
        }
    }
}

/// Conditions 10 and 12: C_BALANCE is the amount delivered to the customer, less the payments in
/// HISTORY (10), or less C_YTD_PAYMENT (12).
fn check_customers(
    tables: &Tables,
    payments: &Payments,
    delivered: &BTreeMap<RecordKey, Cents>,
    report: &mut Report,
) {
    for (&at, customer) in &tables.customers {
        let amounts = get(delivered, &at);
        let less_history = amounts.wrapping_sub(get(&payments.by_customer, &at));
        let right = ("the sum of OL_AMOUNT less that of H_AMOUNT", less_history);
        compare(report, 10, || vec![at], ("C_BALANCE", customer.balance), right);
        let with_payments = customer.balance.wrapping_add(customer.payments);
        let right = ("the sum of OL_AMOUNT", amounts);
        compare(report, 12, || vec![at], ("C_BALANCE + C_YTD_PAYMENT", with_payments), right);
    }
}
