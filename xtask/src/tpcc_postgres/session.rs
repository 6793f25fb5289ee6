//! A connection that runs transactions: each is one call of a prepared function.

use std::error::Error;

use anyhow::{Context, Result, ensure};
use mitra_txn::Abort;
use mitra_txn_workloads::Text;
use mitra_txn_workloads::tpcc::rows::{Credit, Order, OrderLine};
use mitra_txn_workloads::tpcc::{
    CustomerBy, Delivered, Input, Kind, NewOrderLine, NewOrderResult, OrderStatusResult, Output,
    PaymentResult, StockLevelResult,
};
use postgres::error::SqlState;
use postgres::types::{FromSql, ToSql};
use postgres::{Client, Config, NoTls, Row, Statement};

use super::columns::{Cell, Columns};

/// The isolation level of all transactions of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Isolation {
    Serializable,
    ReadCommitted,
}

impl Isolation {
    pub(super) const ALL: [Isolation; 2] = [Isolation::Serializable, Isolation::ReadCommitted];

    /// The level as PostgreSQL names it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Isolation::Serializable => "serializable",
            Isolation::ReadCommitted => "read committed",
        }
    }
}

pub(super) struct Session {
    client: Client,
    /// In the order of [`Kind`].
    functions: [Statement; 5],
}

pub(super) enum Outcome {
    /// The transaction is committed, and has returned this row.
    Committed(Row),
    /// The program has rolled the transaction back.
    RolledBack,
    /// PostgreSQL has rolled the transaction back, because it could not be serialized or for a
    /// deadlock. It is to be run again.
    Conflict,
}

impl Session {
    pub(super) fn connect(mut config: Config, isolation: Isolation) -> Result<Session> {
        // A sequential scan of a small table would make the transaction conflict with each change
        // of the table.
        config.options(&format!(
            "-c enable_seqscan=off -c default_transaction_isolation={}",
            isolation.name().replace(' ', "\\ ")
        ));
        let mut client = config.connect(NoTls).context("cannot connect to PostgreSQL")?;
        let found: String = client.query_one("SHOW transaction_isolation", &[])?.get(0);
        ensure!(found == isolation.name(), "the isolation level is {found}");
        let mut function = |call| client.prepare(call).with_context(|| format!("cannot prepare {call}"));
        let functions = [
            function("SELECT * FROM new_order($1, $2, $3, $4, $5, $6, $7)")?,
            function(
                "SELECT (p.w).*, (p.d).*, (p.c).* FROM payment($1, $2, $3, $4, $5, $6, $7, $8) AS p (w, d, c)",
            )?,
            function("SELECT * FROM order_status($1, $2, $3, $4)")?,
            function("SELECT * FROM delivery($1, $2, $3, $4)")?,
            function("SELECT stock_level($1, $2, $3)")?,
        ];
        Ok(Session { client, functions })
    }

    /// Runs a transaction once.
    ///
    /// # Errors
    /// The transaction has ended in a way that [`Outcome`] does not name.
    pub(super) fn run(&mut self, input: &Input) -> Result<Outcome> {
        let row = match input {
            Input::NewOrder(input) => {
                let items: Vec<i32> = input.items.iter().map(|line| line.item as i32).collect();
                let supplies: Vec<i16> =
                    input.items.iter().map(|line| line.supply_warehouse as i16).collect();
                let quantities: Vec<i16> = input.items.iter().map(|line| line.quantity.into()).collect();
                let (warehouse, district) = (input.warehouse as i16, i16::from(input.district));
                self.call(
                    Kind::NewOrder,
                    &[
                        &warehouse,
                        &district,
                        &i32::from(input.customer),
                        &items,
                        &supplies,
                        &quantities,
                        &(input.entry as i64),
                    ],
                )
            }
            Input::Payment(input) => {
                let (id, last) = id_or_last_name(input.customer);
                self.call(
                    Kind::Payment,
                    &[
                        &(input.warehouse as i16),
                        &i16::from(input.district),
                        &(input.customer_warehouse as i16),
                        &i16::from(input.customer_district),
                        &id,
                        &last,
                        &input.amount,
                        &(input.date as i64),
                    ],
                )
            }
            Input::OrderStatus(input) => {
                let (id, last) = id_or_last_name(input.customer);
                let at = (input.warehouse as i16, i16::from(input.district));
                self.call(Kind::OrderStatus, &[&at.0, &at.1, &id, &last])
            }
            Input::Delivery(input) => {
                let at = (input.warehouse as i16, i16::from(input.district));
                let carrier = i16::from(input.carrier);
                self.call(Kind::Delivery, &[&at.0, &at.1, &carrier, &(input.date as i64)])
            }
            Input::StockLevel(input) => {
                let at = (input.warehouse as i16, i16::from(input.district));
                self.call(Kind::StockLevel, &[&at.0, &at.1, &input.threshold])
            }
        };
        match row {
            Ok(row) => Ok(Outcome::Committed(row)),
            Err(error) => match error.code() {
                // `schema.sql` raises this code for a rollback by the program.
                Some(code) if code.code() == "TC001" => Ok(Outcome::RolledBack),
                Some(&SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED) => {
                    Ok(Outcome::Conflict)
                }
                _ => Err(error).with_context(|| format!("{input:?} has failed")),
            },
        }
    }

    fn call(&mut self, kind: Kind, arguments: &[&(dyn ToSql + Sync)]) -> Result<Row, postgres::Error> {
        self.client.query_one(&self.functions[kind as usize], arguments)
    }

    /// Runs a transaction, and returns its output.
    pub(super) fn output(&mut self, input: &Input) -> Result<Result<Output, Abort>> {
        Ok(match self.run(input)? {
            Outcome::Committed(row) => Ok(output(input, &row)?),
            Outcome::RolledBack => Err(Abort::RolledBack),
            Outcome::Conflict => {
                anyhow::bail!("{input:?} has a conflict, although no other transaction runs")
            }
        })
    }
}

fn id_or_last_name(customer: CustomerBy) -> (Option<i32>, Option<String>) {
    match customer {
        CustomerBy::Id(id) => (Some(id.into()), None),
        CustomerBy::Name(name) => (None, Some(name.to_string())),
    }
}

/// The output of a committed transaction, from the row that its function has returned.
fn output(input: &Input, row: &Row) -> Result<Output> {
    Ok(match input {
        Input::NewOrder(_) => {
            let credit = vec![Cell::Text(row.try_get("credit")?)];
            let (names, stocks) = (texts(row, "names")?, row.try_get::<_, Vec<i16>>("stocks")?);
            let are_brands: Vec<bool> = row.try_get("are_brands")?;
            let (prices, amounts): (Vec<i64>, Vec<i64>) = (row.try_get("prices")?, row.try_get("amounts")?);
            let lines = (0..names.len()).map(|line| NewOrderLine {
                name: names[line],
                stock: stocks[line],
                is_brand: are_brands[line],
                price: prices[line],
                amount: amounts[line],
            });
            Output::NewOrder(NewOrderResult {
                order: number::<i32, _>(row, "order_id")?,
                last: Text::new(row.try_get("last")?),
                credit: Credit::take(&mut credit.into_iter())?,
                discount: number::<i16, _>(row, "discount")?,
                warehouse_tax: number::<i16, _>(row, "warehouse_tax")?,
                district_tax: number::<i16, _>(row, "district_tax")?,
                lines: lines.collect(),
                total: row.try_get("total")?,
            })
        }
        Input::Payment(_) => {
            let cells: Vec<Cell> =
                (0..row.len()).map(|column| row.try_get(column)).collect::<Result<_, _>>()?;
            let cells = &mut cells.into_iter();
            let _: u16 = Columns::take(cells)?;
            let warehouse = Columns::take(cells)?;
            let _: [u16; 2] = Columns::take(cells)?;
            let district = Columns::take(cells)?;
            let [_, _, customer_id]: [u16; 3] = Columns::take(cells)?;
            let customer = Columns::take(cells)?;
            Output::Payment(Box::new(PaymentResult { warehouse, district, customer_id, customer }))
        }
        Input::OrderStatus(_) => {
            let (items, supplies): (Vec<i32>, Vec<i16>) =
                (row.try_get("item_ids")?, row.try_get("supplies")?);
            let deliveries: Vec<Option<i64>> = row.try_get("deliveries")?;
            let quantities: Vec<i16> = row.try_get("quantities")?;
            let amounts: Vec<i64> = row.try_get("amounts")?;
            let district_texts = texts(row, "dist_infos")?;
            let lines = (0..items.len()).map(|line| {
                Ok(OrderLine {
                    item: items[line].try_into()?,
                    supply_warehouse: supplies[line].try_into()?,
                    delivery: deliveries[line].map(u64::try_from).transpose()?,
                    quantity: quantities[line].try_into()?,
                    amount: amounts[line],
                    district_text: district_texts[line],
                })
            });
            let carrier: Option<i16> = row.try_get("carrier")?;
            Output::OrderStatus(Box::new(OrderStatusResult {
                customer_id: number::<i32, _>(row, "c")?,
                first: Text::new(row.try_get("first")?),
                middle: Text::new(row.try_get("middle")?),
                last: Text::new(row.try_get("last")?),
                balance: row.try_get("balance")?,
                order_id: number::<i32, _>(row, "order_id")?,
                order: Order {
                    customer: number::<i32, _>(row, "c")?,
                    entry: number::<i64, _>(row, "entry")?,
                    carrier: carrier.map(u8::try_from).transpose()?,
                    lines: number::<i16, _>(row, "line_count")?,
                    all_local: row.try_get::<_, i16>("all_local")? != 0,
                },
                lines: lines.collect::<Result<_>>()?,
            }))
        }
        Input::Delivery(_) => Output::Delivery(match row.try_get::<_, Option<i32>>("order_id")? {
            None => None,
            Some(order) => Some(Delivered {
                order: order.try_into()?,
                customer: number::<i32, _>(row, "c")?,
                amount: row.try_get("amount")?,
            }),
        }),
        Input::StockLevel(_) => {
            Output::StockLevel(StockLevelResult { low_stock: number::<i64, _>(row, "stock_level")? })
        }
    })
}

/// A number of a type that PostgreSQL does not have.
fn number<'a, F: FromSql<'a>, T: TryFrom<F, Error: Error + Send + Sync + 'static>>(
    row: &'a Row,
    column: &str,
) -> Result<T> {
    Ok(row.try_get::<_, F>(column)?.try_into()?)
}

fn texts(row: &Row, column: &str) -> Result<Vec<Text<24>>> {
    Ok(row.try_get::<_, Vec<&str>>(column)?.into_iter().map(Text::new).collect())
}
