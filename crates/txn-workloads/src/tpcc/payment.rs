//! Payment (§2.5).

use mitra_txn::Access::{Read, Update};
use mitra_txn::Transaction;

use super::rows::{Credit, Customer, District, DistrictYtd, History, Time, Warehouse, WarehouseYtd};
use super::table::{Table, keys};
use super::{Cents, CustomerBy, customer_by_name};
use crate::program::{Failure, read};
use crate::{Text, Value};

/// The inputs of a Payment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Payment {
    /// W_ID, the warehouse that takes the payment.
    pub warehouse: u16,
    /// D_ID, the district that takes the payment.
    pub district: u8,
    /// C_W_ID.
    pub customer_warehouse: u16,
    /// C_D_ID.
    pub customer_district: u8,
    /// C_ID or C_LAST.
    pub customer: CustomerBy,
    /// H_AMOUNT.
    pub amount: Cents,
    /// H_DATE.
    pub date: Time,
}

/// The result of a committed Payment, besides its inputs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PaymentResult {
    /// The warehouse.
    pub warehouse: Warehouse,
    /// The district.
    pub district: District,
    /// C_ID.
    pub customer_id: u16,
    /// The customer after the payment.
    pub customer: Customer,
}

impl Payment {
    pub(super) async fn run(&self, tx: &mut impl Transaction) -> Result<PaymentResult, Failure> {
        let Payment { customer_warehouse: cw, customer_district: cd, amount, .. } = *self;
        let warehouse_ytd_at = keys::of_warehouse(Table::WarehouseYtd, self.warehouse);
        let district_ytd_at = keys::of_district(Table::DistrictYtd, self.warehouse, self.district);
        let customer_at = |id| keys::of_customer(Table::Customer, cw, cd, id);
        let written = |id| [(warehouse_ytd_at, Update), (district_ytd_at, Update), (customer_at(id), Update)];

        // The hot records are locked only when the customer is known.
        let mut items = vec![
            (keys::of_warehouse(Table::Warehouse, self.warehouse), Read),
            (keys::of_district(Table::District, self.warehouse, self.district), Read),
        ];
        let index_at = |name| keys::customers_by_name(cw, cd, name);
        match self.customer {
            CustomerBy::Id(id) => items.extend(written(id)),
            CustomerBy::Name(name) => items.push((index_at(name), Read)),
        }
        let mut found = read(tx, items).await?;
        let warehouse: Warehouse = found.required()?;
        let district: District = found.required()?;
        let customer_id = match self.customer {
            CustomerBy::Id(id) => id,
            CustomerBy::Name(name) => {
                let id = customer_by_name(index_at(name), &mut found)?;
                found = read(tx, written(id)).await?;
                id
            }
        };
        let warehouse_ytd: WarehouseYtd = found.required()?;
        let district_ytd: DistrictYtd = found.required()?;
        let mut customer: Customer = found.required()?;

        customer.balance -= amount;
        customer.payments += amount;
        customer.payment_count += 1;
        if customer.credit == Credit::Bad {
            let Payment { warehouse: w, district: d, .. } = self;
            let (whole, cents) = (amount / 100, amount % 100);
            customer.data =
                Text::new(&format!("{customer_id} {cd} {cw} {d} {w} {whole}.{cents:02} {}", customer.data));
        }
        let history = History {
            warehouse: self.warehouse,
            district: self.district,
            date: self.date,
            amount,
            data: Text::new(&format!("{}    {}", warehouse.name, district.name)),
        };
        tx.put(warehouse_ytd_at, WarehouseYtd { payments: warehouse_ytd.payments + amount }.encode());
        tx.put(district_ytd_at, DistrictYtd { payments: district_ytd.payments + amount }.encode());
        tx.put(customer_at(customer_id), customer.encode());
        tx.insert(keys::history(cw, cd, customer_id, customer.payment_count), history.encode());
        Ok(PaymentResult { warehouse, district, customer_id, customer })
    }
}
