//! Checks whether the index records match the tables.

use std::collections::HashMap;
use std::fmt::Debug;

use mitra_txn::RecordKey;

use super::{Report, Rows, Rule, Tables, of_district, order_number};
use crate::tpcc::random::LastName;
use crate::tpcc::rows::{CustomersByName, LastOrder, OldestNewOrder};
use crate::tpcc::scale::Scale;
use crate::tpcc::table::{Table, keys};

pub(super) fn check(tables: &Tables, scale: &Scale, report: &mut Report) {
    compare(report, Table::CustomersByName, &tables.by_name, &customers_by_name(tables));
    compare(report, Table::LastOrder, &tables.last_order, &last_orders(tables));
    compare(report, Table::OldestNewOrder, &tables.oldest_new_order, &oldest_new_orders(tables, scale));
}

fn compare<V: PartialEq + Debug>(report: &mut Report, table: Table, found: &Rows<V>, asked: &Rows<V>) {
    for (at, row) in found {
        if asked.get(at) != Some(row) {
            let detail = format!("the record is {row:?}, the tables ask for {:?}", asked.get(at));
            report.violated(Rule::Index(table), vec![*at], detail);
        }
    }
    for at in asked.keys().filter(|at| !found.contains_key(at)) {
        report.violated(Rule::Index(table), vec![*at], "the record does not exist".to_owned());
    }
}

/// A customer whose name is none of the 1,000 is in no index record.
fn customers_by_name(tables: &Tables) -> Rows<CustomersByName> {
    let names: HashMap<String, LastName> =
        (0..1000).filter_map(LastName::new).map(|name| (name.to_string(), name)).collect();
    let mut customers: Vec<(RecordKey, &str, u16)> = Vec::new();
    for (&at, row) in &tables.customers {
        let keys::Parts { warehouse, district, rest } = keys::parts(at);
        if let Some(&name) = names.get(row.last.as_str()) {
            let index = keys::customers_by_name(warehouse, district, name);
            customers.push((index, row.first.as_str(), rest as u16));
        }
    }
    customers.sort_unstable();
    let mut asked = Rows::new();
    for (at, _, id) in customers {
        asked.entry(at).or_insert(CustomersByName { customers: Vec::new() }).customers.push(id);
    }
    asked
}

fn last_orders(tables: &Tables) -> Rows<LastOrder> {
    let mut asked = Rows::new();
    for (&at, row) in &tables.orders {
        let keys::Parts { warehouse, district, .. } = keys::parts(at);
        let index = keys::of_customer(Table::LastOrder, warehouse, district, row.customer);
        // The orders of a district come in the order of their numbers, so the last one remains.
        asked.insert(index, LastOrder { order: order_number(at), lines: row.lines });
    }
    asked
}

fn oldest_new_orders(tables: &Tables, scale: &Scale) -> Rows<OldestNewOrder> {
    let oldest = |(warehouse, district)| {
        let mut new_orders = of_district(&tables.new_orders, Table::NewOrder, (warehouse, district));
        let first = new_orders.next().map(|(at, _)| order_number(at));
        let order = first.or_else(|| tables.next_order(warehouse, district))?;
        Some((keys::of_district(Table::OldestNewOrder, warehouse, district), OldestNewOrder { order }))
    };
    scale.districts().filter_map(oldest).collect()
}
