//! The numbers of rows of the tables.

/// The limits of the key format: districts of a warehouse, lines of an order, and customers of a
/// district.
pub(crate) const MAX_DISTRICTS: u8 = 10;
pub(crate) const MAX_LINES: u8 = 15;
pub(crate) const MAX_CUSTOMERS: u16 = 4095;

/// The number of rows after the load (§1.2.1 and §4.3.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Scale {
    warehouses: u16,
    sizes: Sizes,
}

/// The sizes of a [`Scale`]. A workload with other sizes than [`Sizes::TPCC`] is not TPC-C; it is
/// for tests and for the simulator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sizes {
    /// The rows of ITEM, which are also the rows of STOCK of a warehouse. At least 1.
    pub items: u32,
    /// The districts of a warehouse, 1 to 10.
    pub districts: u8,
    /// The customers of a district, 1 to 4095. Each has one order after the load.
    pub customers: u16,
    /// The number of a district's last orders that are new orders after the load. At most
    /// `customers`.
    pub new_orders: u16,
}

impl Sizes {
    /// The sizes that the specification asks for.
    pub const TPCC: Sizes = Sizes { items: 100_000, districts: 10, customers: 3000, new_orders: 900 };
}

/// A scale outside the limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{0:?} is outside the limits: 1 to 65535 warehouses, 1 to 10 districts, 1 to 4095 customers, \
     no more new orders than customers, and 1 to 2^32 - 2 items"
)]
pub struct InvalidScale(Scale);

impl Scale {
    /// TPC-C with a number of warehouses.
    ///
    /// # Errors
    /// If `warehouses` is 0.
    pub fn full(warehouses: u16) -> Result<Scale, InvalidScale> {
        Scale::reduced(warehouses, Sizes::TPCC)
    }

    /// A number of warehouses with other sizes, which is not TPC-C.
    ///
    /// # Errors
    /// If a number is outside the limits that [`Sizes`] names.
    pub fn reduced(warehouses: u16, sizes: Sizes) -> Result<Scale, InvalidScale> {
        let valid = warehouses > 0
            && (1..u32::MAX).contains(&sizes.items)
            && (1..=MAX_DISTRICTS).contains(&sizes.districts)
            && (1..=MAX_CUSTOMERS).contains(&sizes.customers)
            && sizes.new_orders <= sizes.customers;
        let scale = Scale { warehouses, sizes };
        if valid { Ok(scale) } else { Err(InvalidScale(scale)) }
    }

    /// The number of warehouses.
    pub fn warehouses(&self) -> u16 {
        self.warehouses
    }

    /// The sizes other than the number of warehouses.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Whether the sizes are the sizes of the specification.
    pub fn is_full(&self) -> bool {
        self.sizes == Sizes::TPCC
    }

    /// The districts, as warehouse and district.
    pub fn districts(&self) -> impl Iterator<Item = (u16, u8)> + use<> {
        let Scale { warehouses, sizes } = *self;
        (1..=warehouses)
            .flat_map(move |warehouse| (1..=sizes.districts).map(move |district| (warehouse, district)))
    }

    /// The number of a district's orders that are delivered after the load, 2,100 in TPC-C.
    pub(crate) fn delivered_orders(&self) -> u16 {
        self.sizes.customers - self.sizes.new_orders
    }

    pub(crate) fn last_names(&self) -> u16 {
        self.sizes.customers.min(1000)
    }
}
