//! Checks whether the records of a store at rest are a consistent database.

mod conditions;
mod indexes;

use std::collections::BTreeMap;
use std::fmt;

use mitra_txn::RecordKey;

use super::rows::{
    Customer, CustomersByName, District, DistrictNextOrder, DistrictYtd, History, Item, LastOrder, NewOrder,
    OldestNewOrder, Order, OrderLine, Stock, Warehouse, WarehouseYtd,
};
use super::scale::Scale;
use super::table::{Table, describe, keys};
use crate::Value;

/// A rule of a consistent database.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Rule {
    /// Consistency condition 1 to 12 of §3.3.2. In the specification, condition 11 holds after the
    /// load only. The check here holds at any time: in each district, the number of orders that are
    /// not new is the number of orders that the load has delivered (2,100 at full scale) plus the
    /// sum of the customers' delivery counts.
    Condition(u8),
    /// The records of an index match the tables.
    Index(Table),
    /// The value of a record is a value of its table.
    Undamaged,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Condition(number) => write!(f, "consistency condition {number}"),
            Rule::Index(table) => write!(f, "index {table:?}"),
            Rule::Undamaged => f.write_str("undamaged values"),
        }
    }
}

/// A rule that does not hold.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{rule} is violated at {}: {detail}", records.iter().map(|at| describe(*at)).collect::<Vec<_>>().join(" and "))]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// The records that violate the rule. If the rule is about a sum or a number of rows, the
    /// record that has the total, or the record of the district.
    pub records: Vec<RecordKey>,
    /// The two sides that differ.
    pub detail: String,
}

/// The result of a [`check`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// All violations. Violations by damaged values come first.
    pub violations: Vec<Violation>,
    /// The districts without a new order, as warehouse and district. Condition 3, and the part of
    /// condition 2 about NO_O_ID, say nothing about them.
    pub without_new_orders: Vec<(u16, u8)>,
}

impl Report {
    /// Whether there are no violations.
    pub fn is_consistent(&self) -> bool {
        self.violations.is_empty()
    }

    /// Whether a rule has no violations. All rules but [`Rule::Undamaged`] treat a damaged record
    /// as missing.
    pub fn holds(&self, rule: Rule) -> bool {
        self.violations.iter().all(|violation| violation.rule != rule)
    }

    /// For each of the twelve conditions, whether it holds.
    pub fn conditions(&self) -> [bool; 12] {
        std::array::from_fn(|index| self.holds(Rule::Condition(index as u8 + 1)))
    }

    fn violated(&mut self, rule: Rule, records: Vec<RecordKey>, detail: String) {
        self.violations.push(Violation { rule, records, detail });
    }
}

/// Checks the records of a store of this scale. Records of other tables than TPC-C's are ignored.
pub fn check(records: &BTreeMap<RecordKey, Vec<u8>>, scale: &Scale) -> Report {
    let mut report = Report::default();
    let tables = Tables::decode(records, &mut report);
    conditions::check(&tables, scale, &mut report);
    indexes::check(&tables, scale, &mut report);
    report
}

/// The rows of a table, in the order of their keys.
type Rows<V> = BTreeMap<RecordKey, V>;

/// The tables that conditions are about.
struct Tables {
    warehouse_ytd: Rows<WarehouseYtd>,
    district_ytd: Rows<DistrictYtd>,
    next_order: Rows<DistrictNextOrder>,
    customers: Rows<Customer>,
    history: Rows<History>,
    orders: Rows<Order>,
    new_orders: Rows<NewOrder>,
    lines: Rows<OrderLine>,
    by_name: Rows<CustomersByName>,
    last_order: Rows<LastOrder>,
    oldest_new_order: Rows<OldestNewOrder>,
}

impl Tables {
    fn decode(records: &BTreeMap<RecordKey, Vec<u8>>, report: &mut Report) -> Tables {
        for_each::<Item>(records, Table::Item, report, |_, _| ());
        for_each::<Warehouse>(records, Table::Warehouse, report, |_, _| ());
        for_each::<District>(records, Table::District, report, |_, _| ());
        for_each::<Stock>(records, Table::Stock, report, |_, _| ());
        Tables {
            warehouse_ytd: rows(records, Table::WarehouseYtd, report),
            district_ytd: rows(records, Table::DistrictYtd, report),
            next_order: rows(records, Table::DistrictNextOrder, report),
            customers: rows(records, Table::Customer, report),
            history: rows(records, Table::History, report),
            orders: rows(records, Table::Order, report),
            new_orders: rows(records, Table::NewOrder, report),
            lines: rows(records, Table::OrderLine, report),
            by_name: rows(records, Table::CustomersByName, report),
            last_order: rows(records, Table::LastOrder, report),
            oldest_new_order: rows(records, Table::OldestNewOrder, report),
        }
    }

    /// D_NEXT_O_ID.
    fn next_order(&self, warehouse: u16, district: u8) -> Option<u32> {
        let at = keys::of_district(Table::DistrictNextOrder, warehouse, district);
        self.next_order.get(&at).map(|row| row.order)
    }
}

fn rows<V: Value>(records: &BTreeMap<RecordKey, Vec<u8>>, table: Table, report: &mut Report) -> Rows<V> {
    let mut rows = Rows::new();
    for_each(records, table, report, |at, row| _ = rows.insert(at, row));
    rows
}

fn for_each<V: Value>(
    records: &BTreeMap<RecordKey, Vec<u8>>,
    table: Table,
    report: &mut Report,
    mut visit: impl FnMut(RecordKey, V),
) {
    let key = |key| RecordKey { table: table.id(), key };
    for (&at, value) in records.range(key(0)..=key(u64::MAX)) {
        match V::decode(value) {
            Ok(row) => visit(at, row),
            Err(damaged) => report.violated(Rule::Undamaged, vec![at], damaged.to_string()),
        }
    }
}

fn of_district<V>(
    rows: &Rows<V>,
    table: Table,
    (warehouse, district): (u16, u8),
) -> impl DoubleEndedIterator<Item = (RecordKey, &V)> + Clone {
    let first = keys::of_district(table, warehouse, district);
    let last = keys::last_of_district(table, warehouse, district);
    rows.range(first..=last).map(|(at, row)| (*at, row))
}

/// The number of the order of a row of ORDER or NEW-ORDER.
fn order_number(at: RecordKey) -> u32 {
    keys::parts(at).rest as u32
}
