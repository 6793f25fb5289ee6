//! Delivery (§2.7), of one district.

use mitra_txn::Access::Update;
use mitra_txn::Transaction;

use super::Cents;
use super::rows::{Customer, NewOrder, OldestNewOrder, Order, OrderLine, Time};
use super::scale::MAX_LINES;
use super::table::{Table, keys};
use crate::Value;
use crate::program::{Failure, read};

/// The inputs of a Delivery, and the district.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Delivery {
    /// W_ID.
    pub warehouse: u16,
    /// D_ID.
    pub district: u8,
    /// O_CARRIER_ID, 1 to 10.
    pub carrier: u8,
    /// OL_DELIVERY_D.
    pub date: Time,
}

/// The order that was delivered: the district's oldest new order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Delivered {
    /// O_ID.
    pub order: u32,
    /// O_C_ID.
    pub customer: u16,
    /// The sum of OL_AMOUNT, by which the customer's balance has grown.
    pub amount: Cents,
}

impl Delivery {
    /// Delivers the oldest new order, or returns `None` if there is none.
    pub(super) async fn run(&self, tx: &mut impl Transaction) -> Result<Option<Delivered>, Failure> {
        let Delivery { warehouse: w, district: d, .. } = *self;
        let oldest_at = keys::of_district(Table::OldestNewOrder, w, d);
        let OldestNewOrder { order } = read(tx, [(oldest_at, Update)]).await?.required()?;

        let new_order_at = keys::of_order(Table::NewOrder, w, d, order);
        let order_at = keys::of_order(Table::Order, w, d, order);
        let mut found = read(tx, [(new_order_at, Update), (order_at, Update)]).await?;
        if found.optional::<NewOrder>()?.is_none() {
            return Ok(None);
        }
        let mut row: Order = found.required()?;

        let customer_at = keys::of_customer(Table::Customer, w, d, row.customer);
        let lines_at = (1..=row.lines.min(MAX_LINES)).map(|line| keys::order_line(w, d, order, line));
        let mut found =
            read(tx, std::iter::once(customer_at).chain(lines_at.clone()).map(|at| (at, Update))).await?;
        let mut customer: Customer = found.required()?;
        let lines: Vec<OrderLine> = found.all()?;

        let amount = lines.iter().map(|line| line.amount).sum();
        for (at, line) in lines_at.zip(lines) {
            tx.put(at, OrderLine { delivery: Some(self.date), ..line }.encode());
        }
        row.carrier = Some(self.carrier);
        customer.balance += amount;
        customer.delivery_count += 1;
        tx.delete(new_order_at);
        tx.put(oldest_at, OldestNewOrder { order: order + 1 }.encode());
        tx.put(order_at, row.encode());
        tx.put(customer_at, customer.encode());
        Ok(Some(Delivered { order, customer: row.customer, amount }))
    }
}
