//! The values of the records. Columns that are part of a record's key are not repeated in its
//! value.

use super::Cents;
use crate::value::{Damaged, Fault, Text, Value, record};

/// A rate in 1/10000, for taxes and discounts.
pub type Rate = u16;

/// A date and time in microseconds since the Unix epoch. The caller of this crate supplies it.
pub type Time = u64;

/// The ten columns S_DIST_01 to S_DIST_10.
pub type DistrictTexts = [Text<24>; 10];

/// C_CREDIT.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Credit {
    /// Good credit, "GC".
    Good,
    /// Bad credit, "BC".
    Bad,
}

impl Value for Credit {
    const MAX_LEN: usize = 2;

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(match self {
            Credit::Good => b"GC",
            Credit::Bad => b"BC",
        });
    }

    fn read(bytes: &mut &[u8]) -> Result<Self, Damaged> {
        match &<[u8; 2]>::read(bytes)? {
            b"GC" => Ok(Credit::Good),
            b"BC" => Ok(Credit::Bad),
            _ => Err(Fault::Code.into()),
        }
    }
}

record! {
    /// The address of a warehouse, a district or a customer.
    pub struct Address {
        /// STREET_1.
        pub street_1: Text<20>,
        /// STREET_2.
        pub street_2: Text<20>,
        /// CITY.
        pub city: Text<20>,
        /// STATE.
        pub state: Text<2>,
        /// ZIP.
        pub zip: Text<9>,
    }

    /// A row of ITEM.
    pub struct Item {
        /// I_IM_ID, the image of the item.
        pub image: u32,
        /// I_NAME.
        pub name: Text<24>,
        /// I_PRICE.
        pub price: Cents,
        /// I_DATA.
        pub data: Text<50>,
    }

    /// A row of WAREHOUSE without W_YTD, which [`WarehouseYtd`] has.
    pub struct Warehouse {
        /// W_NAME.
        pub name: Text<10>,
        /// W_STREET_1 to W_ZIP.
        pub address: Address,
        /// W_TAX.
        pub tax: Rate,
    }

    /// W_YTD of a row of WAREHOUSE.
    pub struct WarehouseYtd {
        /// W_YTD, the sum of the year's payments.
        pub payments: Cents,
    }

    /// A row of DISTRICT without D_YTD and D_NEXT_O_ID, which [`DistrictYtd`] and
    /// [`DistrictNextOrder`] have.
    pub struct District {
        /// D_NAME.
        pub name: Text<10>,
        /// D_STREET_1 to D_ZIP.
        pub address: Address,
        /// D_TAX.
        pub tax: Rate,
    }

    /// D_YTD of a row of DISTRICT.
    pub struct DistrictYtd {
        /// D_YTD, the sum of the year's payments.
        pub payments: Cents,
    }

    /// D_NEXT_O_ID of a row of DISTRICT.
    pub struct DistrictNextOrder {
        /// D_NEXT_O_ID, the number of the next order.
        pub order: u32,
    }

    /// A row of CUSTOMER.
    pub struct Customer {
        /// C_FIRST.
        pub first: Text<16>,
        /// C_MIDDLE.
        pub middle: Text<2>,
        /// C_LAST.
        pub last: Text<16>,
        /// C_STREET_1 to C_ZIP.
        pub address: Address,
        /// C_PHONE.
        pub phone: Text<16>,
        /// C_SINCE.
        pub since: Time,
        /// C_CREDIT.
        pub credit: Credit,
        /// C_CREDIT_LIM.
        pub credit_limit: Cents,
        /// C_DISCOUNT.
        pub discount: Rate,
        /// C_BALANCE.
        pub balance: Cents,
        /// C_YTD_PAYMENT.
        pub payments: Cents,
        /// C_PAYMENT_CNT.
        pub payment_count: u32,
        /// C_DELIVERY_CNT.
        pub delivery_count: u32,
        /// C_DATA.
        pub data: Text<500>,
    }

    /// A row of HISTORY. Its key has H_C_W_ID, H_C_D_ID and H_C_ID.
    pub struct History {
        /// H_W_ID, the warehouse that took the payment.
        pub warehouse: u16,
        /// H_D_ID, the district that took the payment.
        pub district: u8,
        /// H_DATE.
        pub date: Time,
        /// H_AMOUNT.
        pub amount: Cents,
        /// H_DATA.
        pub data: Text<24>,
    }

    /// A row of ORDER.
    pub struct Order {
        /// O_C_ID.
        pub customer: u16,
        /// O_ENTRY_D.
        pub entry: Time,
        /// O_CARRIER_ID, null until the order is delivered.
        pub carrier: Option<u8>,
        /// O_OL_CNT.
        pub lines: u8,
        /// O_ALL_LOCAL.
        pub all_local: bool,
    }

    /// A row of NEW-ORDER. All of its columns are in its key, so its value has no bytes.
    pub struct NewOrder {}

    /// A row of ORDER-LINE.
    pub struct OrderLine {
        /// OL_I_ID.
        pub item: u32,
        /// OL_SUPPLY_W_ID.
        pub supply_warehouse: u16,
        /// OL_DELIVERY_D, null until the order is delivered.
        pub delivery: Option<Time>,
        /// OL_QUANTITY.
        pub quantity: u8,
        /// OL_AMOUNT.
        pub amount: Cents,
        /// OL_DIST_INFO.
        pub district_text: Text<24>,
    }

    /// A row of STOCK.
    pub struct Stock {
        /// S_QUANTITY.
        pub quantity: i16,
        /// S_DIST_01 to S_DIST_10.
        pub district_texts: DistrictTexts,
        /// S_YTD, the sum of the quantities of the year's orders.
        pub ordered: u32,
        /// S_ORDER_CNT.
        pub order_count: u32,
        /// S_REMOTE_CNT.
        pub remote_count: u32,
        /// S_DATA.
        pub data: Text<50>,
    }

    /// An index record: the last order of a customer.
    pub struct LastOrder {
        /// O_ID of the customer's order with the highest number.
        pub order: u32,
        /// O_OL_CNT of that order, so that the order and its lines can be read together.
        pub lines: u8,
    }

    /// An index record: the oldest new order of a district.
    pub struct OldestNewOrder {
        /// The least NO_O_ID of the district. If there is none, D_NEXT_O_ID, the number that the
        /// next new order will have.
        pub order: u32,
    }
}

/// An index record: the customers of a district that have one last name, in the order of C_FIRST,
/// and of C_ID among equals. The value is two bytes for each customer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CustomersByName {
    /// C_ID of each customer.
    pub customers: Vec<u16>,
}

impl CustomersByName {
    /// The largest number of customers of an index record. The load stays far below this number: of
    /// the 3,000 customers of a district, 1,000 have different names. Among the other 2,000
    /// customers, no name has a share above 2.6 %.
    pub const MAX: usize = 128;

    /// The customer at ⌈n/2⌉, counted from 1 (§2.5.2.2), or `None` if there are no customers.
    pub fn middle(&self) -> Option<u16> {
        self.customers.get(self.customers.len().div_ceil(2).checked_sub(1)?).copied()
    }
}

impl Value for CustomersByName {
    const MAX_LEN: usize = Self::MAX * u16::MAX_LEN;

    fn write(&self, out: &mut Vec<u8>) {
        self.customers.iter().for_each(|customer| customer.write(out));
    }

    fn read(bytes: &mut &[u8]) -> Result<Self, Damaged> {
        if bytes.len() > Self::MAX_LEN {
            return Err(Damaged { record: "CustomersByName", column: "customers", fault: Fault::Long });
        }
        let mut customers = Vec::with_capacity(bytes.len() / u16::MAX_LEN);
        while !bytes.is_empty() {
            customers.push(u16::read(bytes).map_err(|damaged| Damaged {
                record: "CustomersByName",
                column: "customers",
                ..damaged
            })?);
        }
        Ok(CustomersByName { customers })
    }
}
