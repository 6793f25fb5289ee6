//! Order-Status (§2.6), which only reads.

use mitra_txn::Access::Read;
use mitra_txn::Transaction;

use super::rows::{Customer, LastOrder, Order, OrderLine};
use super::scale::MAX_LINES;
use super::table::{Table, keys};
use super::{Cents, CustomerBy, customer_by_name};
use crate::Text;
use crate::program::{Failure, read};

/// The inputs of an Order-Status.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OrderStatus {
    /// W_ID.
    pub warehouse: u16,
    /// D_ID.
    pub district: u8,
    /// C_ID or C_LAST.
    pub customer: CustomerBy,
}

/// The result of an Order-Status, besides its inputs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OrderStatusResult {
    /// C_ID.
    pub customer_id: u16,
    /// C_FIRST.
    pub first: Text<16>,
    /// C_MIDDLE.
    pub middle: Text<2>,
    /// C_LAST.
    pub last: Text<16>,
    /// C_BALANCE.
    pub balance: Cents,
    /// O_ID of the customer's last order.
    pub order_id: u32,
    /// The order.
    pub order: Order,
    /// The lines of the order.
    pub lines: Vec<OrderLine>,
}

impl OrderStatus {
    pub(super) async fn run(&self, tx: &mut impl Transaction) -> Result<OrderStatusResult, Failure> {
        let OrderStatus { warehouse: w, district: d, customer } = *self;
        let customer_id = match customer {
            CustomerBy::Id(id) => id,
            CustomerBy::Name(name) => {
                let at = keys::customers_by_name(w, d, name);
                customer_by_name(at, &mut read(tx, [(at, Read)]).await?)?
            }
        };
        let of_customer = |table| (keys::of_customer(table, w, d, customer_id), Read);
        let mut found = read(tx, [Table::Customer, Table::LastOrder].map(of_customer)).await?;
        let customer: Customer = found.required()?;
        let LastOrder { order: order_id, lines } = found.required()?;

        let order_at = keys::of_order(Table::Order, w, d, order_id);
        let lines_at = (1..=lines.min(MAX_LINES)).map(|line| keys::order_line(w, d, order_id, line));
        let mut found = read(tx, std::iter::once(order_at).chain(lines_at).map(|at| (at, Read))).await?;
        Ok(OrderStatusResult {
            customer_id,
            first: customer.first,
            middle: customer.middle,
            last: customer.last,
            balance: customer.balance,
            order_id,
            order: found.required()?,
            lines: found.all()?,
        })
    }
}
