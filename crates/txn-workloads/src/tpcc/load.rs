//! The first content of the tables (§4.3.3.1).

use std::collections::BTreeMap;
use std::iter;

use mitra_prng::Prng;
use mitra_txn::RecordKey;

use super::random::{Constants, LastName, data, digits, letters, zip};
use super::rows::{
    Address, Credit, Customer, CustomersByName, District, DistrictNextOrder, DistrictYtd, History, Item,
    LastOrder, NewOrder, OldestNewOrder, Order, OrderLine, Stock, Time, Warehouse, WarehouseYtd,
};
use super::scale::{MAX_LINES, Scale};
use super::table::{Table, keys};
use super::{Cents, MIN_LINES};
use crate::{Text, Value};

/// C_CREDIT_LIM of all customers, and the payment that each customer has made before the run.
const CREDIT_LIMIT: Cents = 50_000_00;
const FIRST_PAYMENT: Cents = 10_00;

/// A record, with its value.
pub type Loaded = (RecordKey, Vec<u8>);

/// The records of a database before a run. The same scale, seed and time give the same records, in
/// the same order, and the parts can be loaded by different processes.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    scale: Scale,
    seed: u64,
    constants: Constants,
    now: Time,
}

impl Load {
    /// The load of a scale. `now` becomes the date of all orders and payments, and C_SINCE.
    pub fn new(scale: Scale, seed: u64, now: Time) -> Load {
        Load { scale, seed, constants: Constants::new(seed), now }
    }

    /// All records: the items, and warehouse after warehouse.
    pub fn records(self) -> impl Iterator<Item = Loaded> {
        self.parts().flatten()
    }

    /// All records in parts: the items, and each warehouse. A part has all records of its
    /// partitions.
    pub fn parts(self) -> impl Iterator<Item = Box<dyn Iterator<Item = Loaded>>> {
        let warehouses = 1..=self.scale.warehouses();
        iter::once(self.items_part()).chain(warehouses.map(move |warehouse| self.warehouse_part(warehouse)))
    }

    // Both are functions of their own, so that they are compiled with the optimization of this
    // crate, and not with that of the callers of `parts`.
    fn items_part(self) -> Box<dyn Iterator<Item = Loaded>> {
        Box::new(self.items())
    }

    fn warehouse_part(self, warehouse: u16) -> Box<dyn Iterator<Item = Loaded>> {
        Box::new(self.warehouse(warehouse))
    }

    /// The records of ITEM.
    pub fn items(self) -> impl Iterator<Item = Loaded> {
        let mut prng = Prng::stream(self.seed, "tpcc items");
        (1..=self.scale.sizes().items).map(move |item| {
            let prng = &mut prng;
            let row = Item {
                image: prng.between(1, 10_000) as u32,
                name: letters(prng, 14, 24),
                price: prng.between(1_00, 100_00) as Cents,
                data: data(prng),
            };
            (keys::item(item), row.encode())
        })
    }

    /// The records whose home is a warehouse.
    pub fn warehouse(self, warehouse: u16) -> impl Iterator<Item = Loaded> {
        let mut prng = Prng::stream(self.seed, &format!("tpcc warehouse {warehouse}"));
        let row =
            Warehouse { name: letters(&mut prng, 6, 10), address: address(&mut prng), tax: tax(&mut prng) };
        let sizes = self.scale.sizes();
        let payments = self.payments_of_district() * Cents::from(sizes.districts);
        let ytd = WarehouseYtd { payments };
        let stock =
            (1..=sizes.items).map(move |item| (keys::stock(warehouse, item), stock(&mut prng).encode()));
        iter::once((keys::of_warehouse(Table::Warehouse, warehouse), row.encode()))
            .chain(iter::once((keys::of_warehouse(Table::WarehouseYtd, warehouse), ytd.encode())))
            .chain(stock)
            .chain((1..=sizes.districts).flat_map(move |district| self.district(warehouse, district)))
    }

    /// D_YTD: the sum of the customers' first payments, 30,000.00 at full scale.
    fn payments_of_district(&self) -> Cents {
        FIRST_PAYMENT * Cents::from(self.scale.sizes().customers)
    }

    /// The records of a district, with its customers and orders.
    fn district(&self, warehouse: u16, district: u8) -> Vec<Loaded> {
        let prng = &mut Prng::stream(self.seed, &format!("tpcc district {warehouse} {district}"));
        let next_order = u32::from(self.scale.sizes().customers) + 1;
        let oldest = u32::from(self.scale.delivered_orders()) + 1;
        let at = |table| keys::of_district(table, warehouse, district);
        let row = District { name: letters(prng, 6, 10), address: address(prng), tax: tax(prng) };
        let ytd = DistrictYtd { payments: self.payments_of_district() };
        let mut records = vec![
            (at(Table::District), row.encode()),
            (at(Table::DistrictYtd), ytd.encode()),
            (at(Table::DistrictNextOrder), DistrictNextOrder { order: next_order }.encode()),
            (at(Table::OldestNewOrder), OldestNewOrder { order: oldest }.encode()),
        ];
        self.customers(prng, warehouse, district, &mut records);
        self.orders(prng, warehouse, district, &mut records);
        records
    }

    fn customers(&self, prng: &mut Prng, warehouse: u16, district: u8, records: &mut Vec<Loaded>) {
        let mut by_name: BTreeMap<LastName, Vec<(Text<16>, u16)>> = BTreeMap::new();
        for customer in 1..=self.scale.sizes().customers {
            let (name, row) = self.customer(prng, customer, &by_name);
            by_name.entry(name).or_default().push((row.first, customer));
            let payment = History {
                warehouse,
                district,
                date: self.now,
                amount: FIRST_PAYMENT,
                data: letters(prng, 12, 24),
            };
            let history = keys::history(warehouse, district, customer, row.payment_count);
            records.push((keys::of_customer(Table::Customer, warehouse, district, customer), row.encode()));
            records.push((history, payment.encode()));
        }
        for (name, mut customers) in by_name {
            customers.sort_by(|(a, a_id), (b, b_id)| (a.as_str(), a_id).cmp(&(b.as_str(), b_id)));
            let row = CustomersByName { customers: customers.into_iter().map(|(_, id)| id).collect() };
            records.push((keys::customers_by_name(warehouse, district, name), row.encode()));
        }
    }

    fn customer<T>(
        &self,
        prng: &mut Prng,
        customer: u16,
        by_name: &BTreeMap<LastName, Vec<T>>,
    ) -> (LastName, Customer) {
        // Each of the first 1,000 customers has a different name (§4.3.3.1).
        let name = LastName::new(customer - 1).unwrap_or_else(|| {
            loop {
                let name = self.constants.loaded_last_name(prng, &self.scale);
                if by_name.get(&name).is_none_or(|customers| customers.len() < CustomersByName::MAX) {
                    break name;
                }
            }
        });
        let row = Customer {
            first: letters(prng, 8, 16),
            middle: Text::new("OE"),
            last: name.text(),
            address: address(prng),
            phone: digits(prng),
            since: self.now,
            credit: if prng.below(10) == 0 { Credit::Bad } else { Credit::Good },
            credit_limit: CREDIT_LIMIT,
            discount: prng.between(0, 5000) as u16,
            balance: -FIRST_PAYMENT,
            payments: FIRST_PAYMENT,
            payment_count: 1,
            delivery_count: 0,
            data: letters(prng, 300, 500),
        };
        (name, row)
    }

    /// One order for each customer, in a random order of the customers.
    fn orders(&self, prng: &mut Prng, warehouse: u16, district: u8, records: &mut Vec<Loaded>) {
        let mut customers: Vec<u16> = (1..=self.scale.sizes().customers).collect();
        prng.shuffle(&mut customers);
        for (order, customer) in (1_u32..).zip(customers) {
            let delivered = order <= u32::from(self.scale.delivered_orders());
            let lines = prng.between(u64::from(MIN_LINES), u64::from(MAX_LINES)) as u8;
            let row = Order {
                customer,
                entry: self.now,
                carrier: delivered.then(|| prng.between(1, 10) as u8),
                lines,
                all_local: true,
            };
            records.push((keys::of_order(Table::Order, warehouse, district, order), row.encode()));
            let last = keys::of_customer(Table::LastOrder, warehouse, district, customer);
            records.push((last, LastOrder { order, lines }.encode()));
            if !delivered {
                let new_order = keys::of_order(Table::NewOrder, warehouse, district, order);
                records.push((new_order, NewOrder {}.encode()));
            }
            for line in 1..=lines {
                let row = OrderLine {
                    item: prng.between(1, u64::from(self.scale.sizes().items)) as u32,
                    supply_warehouse: warehouse,
                    delivery: delivered.then_some(self.now),
                    quantity: 5,
                    amount: if delivered { 0 } else { prng.between(1, 9999_99) as Cents },
                    district_text: letters(prng, 24, 24),
                };
                records.push((keys::order_line(warehouse, district, order, line), row.encode()));
            }
        }
    }
}

fn address(prng: &mut Prng) -> Address {
    Address {
        street_1: letters(prng, 10, 20),
        street_2: letters(prng, 10, 20),
        city: letters(prng, 10, 20),
        state: letters(prng, 2, 2),
        zip: zip(prng),
    }
}

/// W_TAX or D_TAX: 0 to 20 %.
fn tax(prng: &mut Prng) -> u16 {
    prng.between(0, 2000) as u16
}

fn stock(prng: &mut Prng) -> Stock {
    Stock {
        quantity: prng.between(10, 100) as i16,
        district_texts: [(); 10].map(|()| letters(prng, 24, 24)),
        ordered: 0,
        order_count: 0,
        remote_count: 0,
        data: data(prng),
    }
}
