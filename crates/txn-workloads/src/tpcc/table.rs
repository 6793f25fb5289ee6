//! The tables, the keys of their records, and their sizes.

use mitra_txn::{RecordKey, TableId};

use super::random::LastName;
use super::rows::{
    Customer, CustomersByName, District, DistrictNextOrder, DistrictYtd, History, Item, LastOrder, NewOrder,
    OldestNewOrder, Order, OrderLine, Stock, Warehouse, WarehouseYtd,
};
use super::scale::{MAX_LINES, Scale};
use crate::Value;

/// A table of the store: the nine tables of TPC-C, three tables of columns that are written often
/// (W_YTD, D_YTD and D_NEXT_O_ID), and three tables of index records.
///
/// Except for ITEM, the key of a record has the warehouse in its upper 16 bits, and the district or
/// 0 in the next 4 bits. Each variant describes its lower 44 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u16)]
pub enum Table {
    /// ITEM. The key is I_ID.
    Item,
    /// WAREHOUSE without W_YTD. The lower bits are 0.
    Warehouse,
    /// W_YTD. The lower bits are 0.
    WarehouseYtd,
    /// DISTRICT without D_YTD and D_NEXT_O_ID. The lower bits are 0.
    District,
    /// D_YTD. The lower bits are 0.
    DistrictYtd,
    /// D_NEXT_O_ID. The lower bits are 0.
    DistrictNextOrder,
    /// CUSTOMER. The lower bits are C_ID.
    Customer,
    /// HISTORY, which has no primary key in TPC-C. The record is at the customer's warehouse and
    /// district, and the lower bits are C_ID (12 bits) and the C_PAYMENT_CNT of the customer after
    /// the payment (32 bits). So no two payments of a customer have the same key.
    History,
    /// ORDER. The lower bits are O_ID, which has 32 bits.
    Order,
    /// NEW-ORDER. The lower bits are NO_O_ID.
    NewOrder,
    /// ORDER-LINE. The lower bits are OL_O_ID (32 bits) and OL_NUMBER, 1 to 15 (4 bits).
    OrderLine,
    /// STOCK. The district is 0, and the lower bits are S_I_ID.
    Stock,
    /// The customers of a last name. The lower bits are the number of the name, 0 to 999.
    CustomersByName,
    /// A customer's last order. The lower bits are C_ID.
    LastOrder,
    /// A district's oldest new order. The lower bits are 0.
    OldestNewOrder,
}

impl Table {
    /// All tables.
    pub const ALL: [Table; 15] = [
        Table::Item,
        Table::Warehouse,
        Table::WarehouseYtd,
        Table::District,
        Table::DistrictYtd,
        Table::DistrictNextOrder,
        Table::Customer,
        Table::History,
        Table::Order,
        Table::NewOrder,
        Table::OrderLine,
        Table::Stock,
        Table::CustomersByName,
        Table::LastOrder,
        Table::OldestNewOrder,
    ];

    /// The number of the table in a store.
    pub const fn id(self) -> TableId {
        TableId(self as u16)
    }

    /// The table with a number in a store.
    pub fn of(id: TableId) -> Option<Table> {
        Table::ALL.get(usize::from(id.0)).copied()
    }

    /// The number of bytes of the longest value. The values of [`Table::CustomersByName`] may be
    /// shorter. All values of the other tables have this length.
    pub const fn max_value_len(self) -> usize {
        match self {
            Table::Item => Item::MAX_LEN,
            Table::Warehouse => Warehouse::MAX_LEN,
            Table::WarehouseYtd => WarehouseYtd::MAX_LEN,
            Table::District => District::MAX_LEN,
            Table::DistrictYtd => DistrictYtd::MAX_LEN,
            Table::DistrictNextOrder => DistrictNextOrder::MAX_LEN,
            Table::Customer => Customer::MAX_LEN,
            Table::History => History::MAX_LEN,
            Table::Order => Order::MAX_LEN,
            Table::NewOrder => NewOrder::MAX_LEN,
            Table::OrderLine => OrderLine::MAX_LEN,
            Table::Stock => Stock::MAX_LEN,
            Table::CustomersByName => CustomersByName::MAX_LEN,
            Table::LastOrder => LastOrder::MAX_LEN,
            Table::OldestNewOrder => OldestNewOrder::MAX_LEN,
        }
    }

    /// The number of records after the load: for ITEM in total, for every other table at one
    /// warehouse. For ORDER-LINE, with 5 to 15 records for each order, the number is the upper
    /// bound.
    pub fn loaded_records(self, scale: &Scale) -> u64 {
        let sizes = scale.sizes();
        let of_district = match self {
            Table::Item | Table::Stock => return u64::from(sizes.items),
            Table::Warehouse | Table::WarehouseYtd => return 1,
            Table::District | Table::DistrictYtd | Table::DistrictNextOrder | Table::OldestNewOrder => 1,
            Table::Customer | Table::History | Table::Order | Table::LastOrder => u64::from(sizes.customers),
            Table::NewOrder => u64::from(sizes.new_orders),
            Table::OrderLine => u64::from(sizes.customers) * u64::from(MAX_LINES),
            Table::CustomersByName => u64::from(scale.last_names()),
        };
        of_district * u64::from(sizes.districts)
    }

    /// An upper bound of the number of records of a run, counted as in [`Table::loaded_records`],
    /// after `orders` committed New-Orders of the warehouse and `payments` committed Payments of
    /// its customers.
    pub fn records_after(self, scale: &Scale, orders: u64, payments: u64) -> u64 {
        let growth = match self {
            Table::Order | Table::NewOrder => orders,
            Table::OrderLine => orders * u64::from(MAX_LINES),
            Table::History => payments,
            _ => 0,
        };
        self.loaded_records(scale) + growth
    }
}

/// The warehouse that a record belongs to, so that a store can place the records of a transaction
/// together. `None` for ITEM, whose records are only read: a store spreads them over its memory
/// nodes by their keys. Also `None` for a record that does not belong to TPC-C.
pub fn home(at: RecordKey) -> Option<u16> {
    match Table::of(at.table)? {
        Table::Item => None,
        _ => Some(keys::parts(at).warehouse),
    }
}

/// A record in words, such as `Order of warehouse 1, district 2: 3001`, for messages.
pub fn describe(at: RecordKey) -> String {
    let Some(table) = Table::of(at.table) else { return format!("{at:?}") };
    let keys::Parts { warehouse, district, rest } = keys::parts(at);
    let of_district = format!("{table:?} of warehouse {warehouse}, district {district}");
    match table {
        Table::Item => format!("{table:?} {}", at.key),
        Table::Warehouse | Table::WarehouseYtd => format!("{table:?} {warehouse}"),
        Table::Stock => format!("{table:?} of warehouse {warehouse}: {rest}"),
        Table::OrderLine => {
            let (order, line) = keys::order_and_line(at);
            format!("{of_district}: {order}, line {line}")
        }
        Table::History => {
            let (customer, payment) = (keys::history_customer(at), rest as u32);
            format!("{of_district}: customer {customer}, payment {payment}")
        }
        Table::District | Table::DistrictYtd | Table::DistrictNextOrder | Table::OldestNewOrder => {
            of_district
        }
        Table::Customer | Table::Order | Table::NewOrder | Table::CustomersByName | Table::LastOrder => {
            format!("{of_district}: {rest}")
        }
    }
}

/// The keys of records.
pub mod keys {
    use mitra_txn::RecordKey;

    use super::{LastName, Table};

    const WAREHOUSE_SHIFT: u32 = 48;
    const DISTRICT_SHIFT: u32 = 44;
    const PAYMENT_BITS: u32 = 32;
    pub(crate) const LINE_BITS: u32 = 4;

    /// The parts of a key.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
    pub struct Parts {
        /// The warehouse.
        pub warehouse: u16,
        /// The district, or 0.
        pub district: u8,
        /// The lower 44 bits.
        pub rest: u64,
    }

    /// The parts of a record's key, for all tables but ITEM.
    pub fn parts(at: RecordKey) -> Parts {
        Parts {
            warehouse: (at.key >> WAREHOUSE_SHIFT) as u16,
            district: (at.key >> DISTRICT_SHIFT & 0xf) as u8,
            rest: at.key & ((1 << DISTRICT_SHIFT) - 1),
        }
    }

    fn key(table: Table, warehouse: u16, district: u8, rest: u64) -> RecordKey {
        debug_assert!(district < 16 && rest < 1 << DISTRICT_SHIFT, "{table:?} {warehouse} {district} {rest}");
        let key = u64::from(warehouse) << WAREHOUSE_SHIFT | u64::from(district) << DISTRICT_SHIFT | rest;
        RecordKey { table: table.id(), key }
    }

    /// A row of ITEM.
    pub fn item(item: u32) -> RecordKey {
        RecordKey { table: Table::Item.id(), key: u64::from(item) }
    }

    /// The record of a warehouse in [`Table::Warehouse`] or [`Table::WarehouseYtd`].
    pub fn of_warehouse(table: Table, warehouse: u16) -> RecordKey {
        key(table, warehouse, 0, 0)
    }

    /// The record of a district in a table with one record for each district.
    pub fn of_district(table: Table, warehouse: u16, district: u8) -> RecordKey {
        key(table, warehouse, district, 0)
    }

    /// The highest key that a record of a district has.
    pub(crate) fn last_of_district(table: Table, warehouse: u16, district: u8) -> RecordKey {
        key(table, warehouse, district, (1 << DISTRICT_SHIFT) - 1)
    }

    /// The record of a customer in [`Table::Customer`] or [`Table::LastOrder`].
    pub fn of_customer(table: Table, warehouse: u16, district: u8, customer: u16) -> RecordKey {
        key(table, warehouse, district, u64::from(customer))
    }

    /// The record of an order in [`Table::Order`] or [`Table::NewOrder`].
    pub fn of_order(table: Table, warehouse: u16, district: u8, order: u32) -> RecordKey {
        key(table, warehouse, district, u64::from(order))
    }

    /// A row of ORDER-LINE.
    pub fn order_line(warehouse: u16, district: u8, order: u32, line: u8) -> RecordKey {
        key(Table::OrderLine, warehouse, district, u64::from(order) << LINE_BITS | u64::from(line))
    }

    /// The order and the number of a row of ORDER-LINE.
    pub fn order_and_line(at: RecordKey) -> (u32, u8) {
        let rest = parts(at).rest;
        ((rest >> LINE_BITS) as u32, (rest & 0xf) as u8)
    }

    /// A row of HISTORY: the `payment_count`-th payment of a customer.
    pub fn history(warehouse: u16, district: u8, customer: u16, payment_count: u32) -> RecordKey {
        let rest = u64::from(customer) << PAYMENT_BITS | u64::from(payment_count);
        key(Table::History, warehouse, district, rest)
    }

    /// H_C_ID of a row of HISTORY.
    pub fn history_customer(at: RecordKey) -> u16 {
        (parts(at).rest >> PAYMENT_BITS) as u16
    }

    /// A row of STOCK.
    pub fn stock(warehouse: u16, item: u32) -> RecordKey {
        key(Table::Stock, warehouse, 0, u64::from(item))
    }

    /// The index record of the customers with one last name.
    pub fn customers_by_name(warehouse: u16, district: u8, name: LastName) -> RecordKey {
        key(Table::CustomersByName, warehouse, district, u64::from(name.number()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_numbered_as_listed() {
        for (number, table) in Table::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(table.id().0), number);
            assert_eq!(Table::of(table.id()), Some(table));
        }
        assert_eq!(Table::of(TableId(15)), None);
    }

    #[test]
    fn largest_numbers_fit_in_keys() {
        let parts = |at| {
            let keys::Parts { warehouse, district, .. } = keys::parts(at);
            (warehouse, district, home(at))
        };
        let line = keys::order_line(u16::MAX, 10, u32::MAX, 15);
        assert_eq!(parts(line), (u16::MAX, 10, Some(u16::MAX)));
        assert_eq!(keys::order_and_line(line), (u32::MAX, 15));
        let history = keys::history(u16::MAX, 10, 4095, u32::MAX);
        assert_eq!(parts(history), (u16::MAX, 10, Some(u16::MAX)));
        assert_eq!(keys::history_customer(history), 4095);
        let stock = keys::stock(7, u32::MAX);
        assert_eq!((parts(stock), keys::parts(stock).rest), ((7, 0, Some(7)), u64::from(u32::MAX)));
        assert_eq!(home(keys::item(u32::MAX)), None);
        assert_eq!(home(RecordKey { table: TableId(99), key: 1 << 48 }), None);
    }

    #[test]
    fn records_are_described_in_words() {
        let order = keys::of_order(Table::Order, 1, 2, 3001);
        assert_eq!(describe(order), "Order of warehouse 1, district 2: 3001");
        let line = keys::order_line(1, 2, 3001, 15);
        assert_eq!(describe(line), "OrderLine of warehouse 1, district 2: 3001, line 15");
        let payment = keys::history(1, 2, 7, 3);
        assert_eq!(describe(payment), "History of warehouse 1, district 2: customer 7, payment 3");
        assert_eq!(describe(keys::item(9)), "Item 9");
        assert_eq!(describe(keys::stock(4, 9)), "Stock of warehouse 4: 9");
        assert_eq!(describe(keys::of_warehouse(Table::WarehouseYtd, 4)), "WarehouseYtd 4");
    }
}
