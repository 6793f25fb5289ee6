//! New-Order (§2.4).

use std::collections::{BTreeMap, BTreeSet};

use mitra_txn::Access::{Read, Update};
use mitra_txn::{Abort, Transaction};

use super::Cents;
use super::random::ORIGINAL;
use super::rows::{
    self, Credit, Customer, District, DistrictNextOrder, Item, LastOrder, Order, OrderLine, Rate, Stock,
    Time, Warehouse,
};
use super::table::{Table, keys};
use crate::program::{Failure, read};
use crate::{Text, Value};

/// The inputs of a New-Order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NewOrder {
    /// W_ID.
    pub warehouse: u16,
    /// D_ID, 1 to 10.
    pub district: u8,
    /// C_ID.
    pub customer: u16,
    /// The lines of the order, 5 to 15. An item that does not exist rolls the transaction back.
    pub items: Vec<OrderedItem>,
    /// O_ENTRY_D.
    pub entry: Time,
}

/// The input for one line of an order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OrderedItem {
    /// OL_I_ID.
    pub item: u32,
    /// OL_SUPPLY_W_ID.
    pub supply_warehouse: u16,
    /// OL_QUANTITY, 1 to 10.
    pub quantity: u8,
}

/// The result of a committed New-Order, besides its inputs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewOrderResult {
    /// O_ID.
    pub order: u32,
    /// C_LAST.
    pub last: Text<16>,
    /// C_CREDIT.
    pub credit: Credit,
    /// C_DISCOUNT.
    pub discount: Rate,
    /// W_TAX.
    pub warehouse_tax: Rate,
    /// D_TAX.
    pub district_tax: Rate,
    /// The lines, in the order of the inputs.
    pub lines: Vec<NewOrderLine>,
    /// The sum of the amounts less the discount and with both taxes, rounded to the nearest cent.
    pub total: Cents,
}

/// The result of a New-Order for a line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewOrderLine {
    /// I_NAME.
    pub name: Text<24>,
    /// S_QUANTITY after the order.
    pub stock: i16,
    /// Whether brand-generic is "B": I_DATA and S_DATA both contain "ORIGINAL".
    pub is_brand: bool,
    /// I_PRICE.
    pub price: Cents,
    /// OL_AMOUNT.
    pub amount: Cents,
}

impl NewOrder {
    pub(super) async fn run(&self, tx: &mut impl Transaction) -> Result<NewOrderResult, Failure> {
        let NewOrder { warehouse: w, district: d, customer: c, .. } = *self;
        let next_at = keys::of_district(Table::DistrictNextOrder, w, d);
        let last_at = keys::of_customer(Table::LastOrder, w, d, c);

        // An order may name an item twice. The records of an item are read and written once.
        let items: BTreeSet<u32> = self.items.iter().map(|line| line.item).collect();
        let stocks: BTreeSet<(u16, u32)> =
            self.items.iter().map(|line| (line.supply_warehouse, line.item)).collect();
        let rows = [
            (keys::of_warehouse(Table::Warehouse, w), Read),
            (keys::of_district(Table::District, w, d), Read),
            (keys::of_customer(Table::Customer, w, d, c), Read),
            (next_at, Update),
            (last_at, Update),
        ];
        let item_rows = items.iter().map(|&item| (keys::item(item), Read));
        let stock_rows = stocks.iter().map(|&(supply, item)| (keys::stock(supply, item), Update));
        let mut found = read(tx, rows.into_iter().chain(item_rows).chain(stock_rows)).await?;

        let warehouse: Warehouse = found.required()?;
        let district: District = found.required()?;
        let customer: Customer = found.required()?;
        let order = found.required::<DistrictNextOrder>()?.order;
        let _: LastOrder = found.required()?;
        let mut rows_of_items = BTreeMap::new();
        for item in items {
            rows_of_items.insert(item, found.optional::<Item>()?.ok_or(Abort::RolledBack)?);
        }
        let mut rows_of_stock = BTreeMap::new();
        for stock in stocks {
            rows_of_stock.insert(stock, found.required::<Stock>()?);
        }

        let mut lines = Vec::with_capacity(self.items.len());
        for (number, line) in (1_u8..).zip(&self.items) {
            let item = &rows_of_items[&line.item];
            let stock =
                rows_of_stock.get_mut(&(line.supply_warehouse, line.item)).expect("was inserted above");
            take_from_stock(stock, line.quantity, line.supply_warehouse != w);
            let amount = item.price * Cents::from(line.quantity);
            let row = OrderLine {
                item: line.item,
                supply_warehouse: line.supply_warehouse,
                delivery: None,
                quantity: line.quantity,
                amount,
                district_text: stock.district_texts[usize::from(d) - 1],
            };
            tx.insert(keys::order_line(w, d, order, number), row.encode());
            lines.push(NewOrderLine {
                name: item.name,
                stock: stock.quantity,
                is_brand: item.data.as_str().contains(ORIGINAL) && stock.data.as_str().contains(ORIGINAL),
                price: item.price,
                amount,
            });
        }
        for ((supply, item), stock) in rows_of_stock {
            tx.put(keys::stock(supply, item), stock.encode());
        }
        let count = self.items.len() as u8;
        let row = Order {
            customer: c,
            entry: self.entry,
            carrier: None,
            lines: count,
            all_local: self.items.iter().all(|line| line.supply_warehouse == w),
        };
        tx.insert(keys::of_order(Table::Order, w, d, order), row.encode());
        tx.insert(keys::of_order(Table::NewOrder, w, d, order), rows::NewOrder {}.encode());
        tx.put(next_at, DistrictNextOrder { order: order + 1 }.encode());
        tx.put(last_at, LastOrder { order, lines: count }.encode());

        let sum: Cents = lines.iter().map(|line| line.amount).sum();
        Ok(NewOrderResult {
            order,
            last: customer.last,
            credit: customer.credit,
            discount: customer.discount,
            warehouse_tax: warehouse.tax,
            district_tax: district.tax,
            lines,
            total: total(sum, customer.discount, [warehouse.tax, district.tax]),
        })
    }
}

/// S_QUANTITY, S_YTD, S_ORDER_CNT and S_REMOTE_CNT after a line (§2.4.2.2).
fn take_from_stock(stock: &mut Stock, quantity: u8, is_remote: bool) {
    let ordered = i16::from(quantity);
    stock.quantity += if stock.quantity >= ordered + 10 { -ordered } else { 91 - ordered };
    stock.ordered += u32::from(quantity);
    stock.order_count += 1;
    stock.remote_count += u32::from(is_remote);
}

/// sum × (1 − discount) × (1 + taxes), to the nearest cent.
fn total(sum: Cents, discount: Rate, taxes: [Rate; 2]) -> Cents {
    const ONE: i128 = 10_000;
    let factor = (ONE - i128::from(discount)) * (ONE + taxes.map(i128::from).iter().sum::<i128>());
    let scaled = i128::from(sum) * factor;
    ((scaled + ONE * ONE / 2).div_euclid(ONE * ONE)) as Cents
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn total_has_discount_and_taxes_and_is_rounded() {
        assert_eq!(total(100_00, 0, [0, 0]), 100_00);
        assert_eq!(total(100_00, 5000, [1000, 2000]), 65_00);
        // 0.15 less 50 % is 7.5 cents.
        assert_eq!(total(15, 5000, [0, 0]), 8);
    }

    #[test]
    fn stock_is_filled_up_when_it_runs_low() {
        let stock = |quantity| Stock {
            quantity,
            district_texts: [Text::new("x"); 10],
            ordered: 7,
            order_count: 1,
            remote_count: 0,
            data: Text::new(""),
        };
        let after = |quantity, ordered, is_remote| {
            let mut stock = stock(quantity);
            take_from_stock(&mut stock, ordered, is_remote);
            (stock.quantity, stock.ordered, stock.order_count, stock.remote_count)
        };
        assert_eq!(after(15, 5, false), (10, 12, 2, 0));
        assert_eq!(after(14, 5, true), (100, 12, 2, 1));
    }
}
