//! TPC-C 5.11: schema, load, inputs, the five transactions, and the twelve consistency conditions.
//!
//! # What differs from the specification
//! - The terminals have no keying and no think times, so the number of new orders a minute is not a
//!   tpmC, and nothing here is audited.
//! - A Delivery is one database transaction for each district, as §2.7 allows, so it locks little
//!   at a time. This crate does not queue a Delivery. The caller may run its transactions later.
//! - A New-Order that rolls back returns [`Abort::RolledBack`] and no screen. It reads and locks
//!   the same records as any other New-Order.
//! - W_YTD, D_YTD and D_NEXT_O_ID are records of their own, and three kinds of index records exist
//!   (§1.4 allows both).
//!
//! # Round trips
//! Each transaction reads all records with known keys together. New-Order reads once. Payment reads
//! once, and Order-Status reads twice. Both read once more if they name the customer by last name.
//! A Delivery of a district reads three times, a Stock-Level four times.

mod check;
mod delivery;
mod load;
mod new_order;
mod order_status;
mod payment;
mod random;
pub mod rows;
mod scale;
mod stock_level;
mod store;
mod table;
mod terminal;

use mitra_txn::{Abort, RecordKey, Transaction};

pub use check::{Report, Rule, Violation, check};
pub use delivery::{Delivered, Delivery};
pub use load::{Load, Loaded};
pub use new_order::{NewOrder, NewOrderLine, NewOrderResult, OrderedItem};
pub use order_status::{OrderStatus, OrderStatusResult};
pub use payment::{Payment, PaymentResult};
pub use random::{Constants, LastName, non_uniform};
pub use scale::{InvalidScale, Scale, Sizes};
pub use stock_level::{StockLevel, StockLevelResult};
pub use store::{partition, schema};
pub use table::{Table, describe, home, keys};
pub use terminal::{CustomerBy, Kind, Terminal};

use crate::program::{Corrupt, Failure, Found, Program, outcome};

/// An amount of money in cents.
pub type Cents = i64;

const MIN_LINES: u8 = 5;

/// A database transaction with its inputs.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Input {
    /// New-Order.
    NewOrder(NewOrder),
    /// Payment.
    Payment(Payment),
    /// Order-Status.
    OrderStatus(OrderStatus),
    /// A Delivery's part in one district.
    Delivery(Delivery),
    /// Stock-Level.
    StockLevel(StockLevel),
}

/// The result of a committed transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// New-Order.
    NewOrder(NewOrderResult),
    /// Payment.
    Payment(Box<PaymentResult>),
    /// Order-Status.
    OrderStatus(Box<OrderStatusResult>),
    /// A Delivery's part in one district. `None` if the district had no new order: the delivery
    /// skipped it.
    Delivery(Option<Delivered>),
    /// Stock-Level.
    StockLevel(StockLevelResult),
}

impl Input {
    /// Which of the five transactions this input is, or is a part of.
    pub fn kind(&self) -> Kind {
        match self {
            Input::NewOrder(_) => Kind::NewOrder,
            Input::Payment(_) => Kind::Payment,
            Input::OrderStatus(_) => Kind::OrderStatus,
            Input::Delivery(_) => Kind::Delivery,
            Input::StockLevel(_) => Kind::StockLevel,
        }
    }

    async fn run(&self, tx: &mut impl Transaction) -> Result<Output, Failure> {
        Ok(match self {
            Input::NewOrder(input) => Output::NewOrder(input.run(tx).await?),
            Input::Payment(input) => Output::Payment(Box::new(input.run(tx).await?)),
            Input::OrderStatus(input) => Output::OrderStatus(Box::new(input.run(tx).await?)),
            Input::Delivery(input) => Output::Delivery(input.run(tx).await?),
            Input::StockLevel(input) => Output::StockLevel(input.run(tx).await?),
        })
    }
}

impl Program for Input {
    type Output = Output;

    async fn execute<T: Transaction>(&self, tx: &mut T) -> Result<Result<Output, Corrupt>, Abort> {
        outcome(self.run(tx).await)
    }
}

/// C_ID of the middle customer in the index record `at`. The value of this record is the next value
/// of `found`.
fn customer_by_name(at: RecordKey, found: &mut Found) -> Result<u16, Corrupt> {
    found.required::<rows::CustomersByName>()?.middle().ok_or(Corrupt::Missing(at))
}
