//! Stock-Level (§2.8), which only reads.

use std::collections::BTreeSet;

use mitra_txn::Access::Read;
use mitra_txn::Transaction;

use super::rows::{DistrictNextOrder, Order, OrderLine, Stock};
use super::scale::MAX_LINES;
use super::table::{Table, keys};
use crate::program::{Failure, read};

/// The number of a district's last orders that a Stock-Level looks at.
const ORDERS: u32 = 20;

/// The inputs of a Stock-Level.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StockLevel {
    /// W_ID.
    pub warehouse: u16,
    /// D_ID.
    pub district: u8,
    /// The quantity below which an item is counted.
    pub threshold: i16,
}

/// The result of a Stock-Level, besides its inputs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StockLevelResult {
    /// The number of items in the district's last 20 orders of which the warehouse has less than
    /// the threshold.
    pub low_stock: usize,
}

impl StockLevel {
    pub(super) async fn run(&self, tx: &mut impl Transaction) -> Result<StockLevelResult, Failure> {
        let StockLevel { warehouse: w, district: d, threshold } = *self;
        let next_at = keys::of_district(Table::DistrictNextOrder, w, d);
        let DistrictNextOrder { order: next } = read(tx, [(next_at, Read)]).await?.required()?;

        let numbers = next.saturating_sub(ORDERS).max(1)..next;
        let orders_at = numbers.clone().map(|order| (keys::of_order(Table::Order, w, d, order), Read));
        let orders: Vec<Order> = read(tx, orders_at).await?.all()?;

        let lines_at = numbers.zip(orders).flat_map(|(order, row)| {
            (1..=row.lines.min(MAX_LINES)).map(move |line| (keys::order_line(w, d, order, line), Read))
        });
        let lines: Vec<OrderLine> = read(tx, lines_at).await?.all()?;

        let items: BTreeSet<u32> = lines.iter().map(|line| line.item).collect();
        let stocks_at = items.into_iter().map(|item| (keys::stock(w, item), Read));
        let stocks: Vec<Stock> = read(tx, stocks_at).await?.all()?;
        Ok(StockLevelResult { low_stock: stocks.iter().filter(|stock| stock.quantity < threshold).count() })
    }
}
