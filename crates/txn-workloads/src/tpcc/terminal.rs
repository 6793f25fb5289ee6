//! The inputs of transactions (§2.4.1, §2.5.1, §2.6.1, §2.7.1, §2.8.1), and the mix of them (§5.2).

use mitra_prng::Prng;

use super::delivery::Delivery;
use super::new_order::{NewOrder, OrderedItem};
use super::order_status::OrderStatus;
use super::payment::Payment;
use super::random::{Constants, LastName};
use super::rows::Time;
use super::scale::{MAX_LINES, Scale};
use super::stock_level::StockLevel;
use super::{Cents, Input, MIN_LINES};

/// One of the five transactions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// New-Order.
    NewOrder,
    /// Payment.
    Payment,
    /// Order-Status.
    OrderStatus,
    /// Delivery.
    Delivery,
    /// Stock-Level.
    StockLevel,
}

impl Kind {
    /// A deck of 100 cards, with the number of cards of each transaction. The shares are the
    /// minimum of §5.2.3, and New-Order has the rest.
    pub const DECK: [(Kind, usize); 5] = [
        (Kind::NewOrder, 45),
        (Kind::Payment, 43),
        (Kind::OrderStatus, 4),
        (Kind::Delivery, 4),
        (Kind::StockLevel, 4),
    ];
}

/// How a transaction names a customer of a district.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CustomerBy {
    /// By C_ID.
    Id(u16),
    /// By C_LAST: of the customers with the name, the middle one in the order of C_FIRST.
    Name(LastName),
}

/// A terminal, which asks for transactions at one warehouse.
#[derive(Clone, Debug)]
pub struct Terminal {
    scale: Scale,
    constants: Constants,
    warehouse: u16,
    district: u8,
    prng: Prng,
    deck: Vec<Kind>,
}

impl Terminal {
    /// A terminal of a warehouse and, for Stock-Level, of a district. A warehouse of TPC-C has ten
    /// terminals, one at each district. `constants` come from the load's seed; each terminal has
    /// its own stream `prng`.
    pub fn new(scale: Scale, constants: Constants, warehouse: u16, district: u8, prng: Prng) -> Terminal {
        Terminal { scale, constants, warehouse, district, prng, deck: Vec::new() }
    }

    /// Terminal `number` of a run, counted from 0. The numbers are spread over the warehouses, and
    /// then over the districts. `starts` is the number of earlier starts of the terminal: each
    /// start draws other inputs. The same scale, seed, number and `starts` give the same inputs in
    /// each store.
    pub fn numbered(scale: Scale, seed: u64, number: u32, starts: u64) -> Terminal {
        let warehouses = u32::from(scale.warehouses());
        let warehouse = 1 + (number % warehouses) as u16;
        let district = 1 + (number / warehouses % u32::from(scale.sizes().districts)) as u8;
        let prng = Prng::stream(seed, &format!("tpcc terminal {number} {starts}"));
        Terminal::new(scale, Constants::new(seed), warehouse, district, prng)
    }

    /// The database transactions of the next transaction: one, or for a Delivery one for each
    /// district. They may run in sequence or concurrently. `now` is the date that they write.
    ///
    /// The terminal draws cards from a shuffled deck (§5.2.4.2), and shuffles a new deck when all
    /// cards are drawn. There are no keying and no think times: the caller runs the next
    /// transaction at once.
    pub fn next(&mut self, now: Time) -> Vec<Input> {
        let card = self.deck.pop().unwrap_or_else(|| {
            self.deck = Kind::DECK.iter().flat_map(|&(kind, count)| vec![kind; count]).collect();
            self.prng.shuffle(&mut self.deck);
            self.deck.pop().expect("a deck has cards")
        });
        match card {
            Kind::NewOrder => vec![Input::NewOrder(self.new_order(now))],
            Kind::Payment => vec![Input::Payment(self.payment(now))],
            Kind::OrderStatus => vec![Input::OrderStatus(self.order_status())],
            Kind::Delivery => self.delivery(now).into_iter().map(Input::Delivery).collect(),
            Kind::StockLevel => vec![Input::StockLevel(self.stock_level())],
        }
    }

    fn number(&mut self, low: u64, high: u64) -> u64 {
        self.prng.between(low, high)
    }

    fn any_district(&mut self) -> u8 {
        self.number(1, self.scale.sizes().districts.into()) as u8
    }

    fn percent(&mut self, share: u64) -> bool {
        self.number(1, 100) <= share
    }

    /// Returns a warehouse other than the terminal's with a chance of `share` percent, if there is
    /// another. Otherwise returns the terminal's warehouse.
    fn remote_or_home(&mut self, share: u64) -> u16 {
        let others = self.scale.warehouses() - 1;
        if !self.percent(share) || others == 0 {
            return self.warehouse;
        }
        let other = self.number(1, others.into()) as u16;
        if other < self.warehouse { other } else { other + 1 }
    }

    fn customer(&mut self) -> CustomerBy {
        if self.percent(60) {
            CustomerBy::Name(self.constants.last_name(&mut self.prng, &self.scale))
        } else {
            CustomerBy::Id(self.constants.customer(&mut self.prng, &self.scale))
        }
    }

    fn new_order(&mut self, now: Time) -> NewOrder {
        let district = self.any_district();
        let customer = self.constants.customer(&mut self.prng, &self.scale);
        let lines = self.number(MIN_LINES.into(), MAX_LINES.into()) as usize;
        let rolls_back = self.percent(1);
        let mut items: Vec<OrderedItem> = (0..lines)
            .map(|_| OrderedItem {
                item: self.constants.item(&mut self.prng, &self.scale),
                supply_warehouse: self.remote_or_home(1),
                quantity: self.number(1, 10) as u8,
            })
            .collect();
        if rolls_back && let Some(last) = items.last_mut() {
            last.item = self.scale.sizes().items + 1;
        }
        NewOrder { warehouse: self.warehouse, district, customer, items, entry: now }
    }

    fn payment(&mut self, now: Time) -> Payment {
        let district = self.any_district();
        // A customer who pays away from home belongs to any district of another warehouse. If there
        // is no other warehouse, the customer belongs to any district of this one.
        let (customer_warehouse, customer_district) = if self.percent(15) {
            (self.remote_or_home(100), self.any_district())
        } else {
            (self.warehouse, district)
        };
        Payment {
            warehouse: self.warehouse,
            district,
            customer_warehouse,
            customer_district,
            customer: self.customer(),
            amount: self.number(1_00, 5000_00) as Cents,
            date: now,
        }
    }

    fn order_status(&mut self) -> OrderStatus {
        OrderStatus { warehouse: self.warehouse, district: self.any_district(), customer: self.customer() }
    }

    fn delivery(&mut self, now: Time) -> Vec<Delivery> {
        let carrier = self.number(1, 10) as u8;
        let warehouse = self.warehouse;
        (1..=self.scale.sizes().districts)
            .map(|district| Delivery { warehouse, district, carrier, date: now })
            .collect()
    }

    fn stock_level(&mut self) -> StockLevel {
        let threshold = self.number(10, 20) as i16;
        StockLevel { warehouse: self.warehouse, district: self.district, threshold }
    }
}
