//! The records of `mitra_txn_workloads::tpcc` as rows of PostgreSQL's tables, and back.

use std::error::Error;

use anyhow::{Result, anyhow, bail};
use mitra_txn::RecordKey;
use mitra_txn_workloads::tpcc::rows::{
    Address, Credit, Customer, District, DistrictNextOrder, DistrictYtd, History, Item, NewOrder, Order,
    OrderLine, Stock, Warehouse, WarehouseYtd,
};
use mitra_txn_workloads::tpcc::{Table, keys};
use mitra_txn_workloads::{Text, Value};
use postgres::types::private::BytesMut;
use postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

/// A value of a column, of any of the types that `schema.sql` uses in tables.
#[derive(Clone, Debug)]
pub(super) enum Cell {
    Null,
    Number(i64),
    Text(String),
}

impl ToSql for Cell {
    fn to_sql(&self, column: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self {
            Cell::Null => Ok(IsNull::Yes),
            Cell::Number(number) if *column == Type::INT2 => i16::try_from(*number)?.to_sql(column, out),
            Cell::Number(number) if *column == Type::INT4 => i32::try_from(*number)?.to_sql(column, out),
            Cell::Number(number) => number.to_sql(column, out),
            Cell::Text(text) => text.to_sql(column, out),
        }
    }

    fn accepts(column: &Type) -> bool {
        [Type::INT2, Type::INT4, Type::INT8, Type::VARCHAR].contains(column)
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Cell {
    fn from_sql(column: &Type, bytes: &'a [u8]) -> Result<Cell, Box<dyn Error + Sync + Send>> {
        Ok(match *column {
            Type::INT2 => Cell::Number(i16::from_sql(column, bytes)?.into()),
            Type::INT4 => Cell::Number(i32::from_sql(column, bytes)?.into()),
            Type::INT8 => Cell::Number(i64::from_sql(column, bytes)?),
            _ => Cell::Text(String::from_sql(column, bytes)?),
        })
    }

    fn from_sql_null(_: &Type) -> Result<Cell, Box<dyn Error + Sync + Send>> {
        Ok(Cell::Null)
    }

    fn accepts(column: &Type) -> bool {
        <Cell as ToSql>::accepts(column)
    }
}

/// The cells of a row that are not taken yet.
pub(super) type Cells = std::vec::IntoIter<Cell>;

/// A value in one or more columns.
pub(super) trait Columns: Sized {
    fn push_to(&self, cells: &mut Vec<Cell>);

    /// Takes the value from the front of `cells`.
    fn take(cells: &mut Cells) -> Result<Self>;
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Columns for $type {
            fn push_to(&self, cells: &mut Vec<Cell>) {
                cells.push(Cell::Number(*self as i64));
            }

            fn take(cells: &mut Cells) -> Result<Self> {
                match cells.next() {
                    Some(Cell::Number(number)) => Ok(number.try_into()?),
                    other => bail!("{other:?} is no number"),
                }
            }
        }
    )*};
}

numbers!(u8 u16 u32 u64 i16 i64);

impl Columns for bool {
    fn push_to(&self, cells: &mut Vec<Cell>) {
        u8::from(*self).push_to(cells);
    }

    fn take(cells: &mut Cells) -> Result<bool> {
        Ok(u8::take(cells)? != 0)
    }
}

impl<T: Columns> Columns for Option<T> {
    fn push_to(&self, cells: &mut Vec<Cell>) {
        match self {
            Some(value) => value.push_to(cells),
            None => cells.push(Cell::Null),
        }
    }

    fn take(cells: &mut Cells) -> Result<Option<T>> {
        if let Some(Cell::Null) = cells.as_slice().first() {
            cells.next();
            return Ok(None);
        }
        T::take(cells).map(Some)
    }
}

impl<const N: usize> Columns for Text<N> {
    fn push_to(&self, cells: &mut Vec<Cell>) {
        cells.push(Cell::Text(self.as_str().to_owned()));
    }

    fn take(cells: &mut Cells) -> Result<Text<N>> {
        match cells.next() {
            Some(Cell::Text(text)) => Ok(Text::new(&text)),
            other => bail!("{other:?} is no text"),
        }
    }
}

impl<T: Columns, const N: usize> Columns for [T; N] {
    fn push_to(&self, cells: &mut Vec<Cell>) {
        self.iter().for_each(|column| column.push_to(cells));
    }

    fn take(cells: &mut Cells) -> Result<[T; N]> {
        let columns = (0..N).map(|_| T::take(cells)).collect::<Result<Vec<T>>>()?;
        columns.try_into().map_err(|_| anyhow!("there are {N} columns"))
    }
}

impl Columns for Credit {
    fn push_to(&self, cells: &mut Vec<Cell>) {
        let code = match self {
            Credit::Good => "GC",
            Credit::Bad => "BC",
        };
        cells.push(Cell::Text(code.to_owned()));
    }

    fn take(cells: &mut Cells) -> Result<Credit> {
        match Text::<2>::take(cells)?.as_str() {
            "GC" => Ok(Credit::Good),
            "BC" => Ok(Credit::Bad),
            code => bail!("{code} is no credit"),
        }
    }
}

macro_rules! rows {
    ($($row:ident { $($column:ident)* })*) => {$(
        impl Columns for $row {
            fn push_to(&self, cells: &mut Vec<Cell>) {
                let _ = cells;
                $(self.$column.push_to(cells);)*
            }

            fn take(cells: &mut Cells) -> Result<Self> {
                let _ = cells;
                Ok($row { $($column: Columns::take(cells)?,)* })
            }
        }
    )*};
}

rows! {
    Address { street_1 street_2 city state zip }
    Item { image name price data }
    Warehouse { name address tax }
    WarehouseYtd { payments }
    District { name address tax }
    DistrictYtd { payments }
    DistrictNextOrder { order }
    Customer {
        first middle last address phone since credit credit_limit discount balance payments payment_count
        delivery_count data
    }
    History { warehouse district date amount data }
    Order { customer entry carrier lines all_local }
    NewOrder {}
    OrderLine { item supply_warehouse delivery quantity amount district_text }
    Stock { quantity district_texts ordered order_count remote_count data }
}

/// Calls a function of the row type of a table. `None` for the tables of index records, which
/// PostgreSQL does not have.
macro_rules! for_row_of {
    ($table:expr, $function:ident($($argument:expr),*)) => {
        match $table {
            Table::Item => Some($function::<Item>($($argument),*)),
            Table::Warehouse => Some($function::<Warehouse>($($argument),*)),
            Table::WarehouseYtd => Some($function::<WarehouseYtd>($($argument),*)),
            Table::District => Some($function::<District>($($argument),*)),
            Table::DistrictYtd => Some($function::<DistrictYtd>($($argument),*)),
            Table::DistrictNextOrder => Some($function::<DistrictNextOrder>($($argument),*)),
            Table::Customer => Some($function::<Customer>($($argument),*)),
            Table::History => Some($function::<History>($($argument),*)),
            Table::Order => Some($function::<Order>($($argument),*)),
            Table::NewOrder => Some($function::<NewOrder>($($argument),*)),
            Table::OrderLine => Some($function::<OrderLine>($($argument),*)),
            Table::Stock => Some($function::<Stock>($($argument),*)),
            Table::CustomersByName | Table::LastOrder | Table::OldestNewOrder => None,
        }
    };
}

/// The tables that PostgreSQL has, with their names there.
pub(super) const TABLES: [(Table, &str); 12] = [
    (Table::Item, "item"),
    (Table::Warehouse, "warehouse"),
    (Table::WarehouseYtd, "warehouse_ytd"),
    (Table::District, "district"),
    (Table::DistrictYtd, "district_ytd"),
    (Table::DistrictNextOrder, "district_next_order"),
    (Table::Customer, "customer"),
    (Table::History, "history"),
    (Table::Order, "orders"),
    (Table::NewOrder, "new_order"),
    (Table::OrderLine, "order_line"),
    (Table::Stock, "stock"),
];

/// The row of a record of one of [`TABLES`].
pub(super) fn row(table: Table, at: RecordKey, value: &[u8]) -> Result<Vec<Cell>> {
    let mut cells = Vec::new();
    let keys::Parts { warehouse, district, rest } = keys::parts(at);
    match table {
        Table::Item => at.key.push_to(&mut cells),
        _ => warehouse.push_to(&mut cells),
    }
    match table {
        Table::Item | Table::Warehouse | Table::WarehouseYtd | Table::Stock => {}
        _ => district.push_to(&mut cells),
    }
    match table {
        Table::Customer | Table::Order | Table::NewOrder | Table::Stock => rest.push_to(&mut cells),
        Table::History => keys::history_customer(at).push_to(&mut cells),
        Table::OrderLine => {
            let (order, line) = keys::order_and_line(at);
            order.push_to(&mut cells);
            line.push_to(&mut cells);
        }
        _ => {}
    }
    for_row_of!(table, write_value(value, &mut cells)).expect("one of TABLES")?;
    Ok(cells)
}

/// The record of a row of one of [`TABLES`]. A row of HISTORY has the number of the customer's
/// payment behind the customer.
pub(super) fn record(table: Table, cells: Vec<Cell>) -> Result<(RecordKey, Vec<u8>)> {
    let cells = &mut cells.into_iter();
    let at = read_key(table, cells)?;
    let value = for_row_of!(table, read_value(cells)).expect("one of TABLES")?;
    Ok((at, value))
}

fn read_key(table: Table, cells: &mut Cells) -> Result<RecordKey> {
    if table == Table::Item {
        return Ok(keys::item(u32::take(cells)?));
    }
    let warehouse = u16::take(cells)?;
    match table {
        Table::Warehouse | Table::WarehouseYtd => return Ok(keys::of_warehouse(table, warehouse)),
        Table::Stock => return Ok(keys::stock(warehouse, u32::take(cells)?)),
        _ => {}
    }
    let district = u8::take(cells)?;
    Ok(match table {
        Table::Customer => keys::of_customer(table, warehouse, district, u16::take(cells)?),
        Table::Order | Table::NewOrder => keys::of_order(table, warehouse, district, u32::take(cells)?),
        Table::History => keys::history(warehouse, district, u16::take(cells)?, u32::take(cells)?),
        Table::OrderLine => keys::order_line(warehouse, district, u32::take(cells)?, u8::take(cells)?),
        _ => keys::of_district(table, warehouse, district),
    })
}

fn write_value<R: Columns + Value>(value: &[u8], cells: &mut Vec<Cell>) -> Result<()> {
    R::decode(value)?.push_to(cells);
    Ok(())
}

fn read_value<R: Columns + Value>(cells: &mut Cells) -> Result<Vec<u8>> {
    Ok(R::take(cells)?.encode())
}
