//! The public interface of the crate.

#![allow(clippy::inconsistent_digit_grouping, reason = "amounts in cents have their last two digits apart")]

mod smallbank;
mod tpcc_conditions;
mod tpcc_coordinators;
mod tpcc_inputs;
mod tpcc_load;
mod tpcc_round_trips;
mod tpcc_run;

use mitra_txn::Model;
use mitra_txn_workloads::tpcc::{Load, Scale, Sizes};

const SEED: u64 = 31;

/// A tenth of TPC-C's customers, orders and items.
const TENTH: Sizes = Sizes { items: 10_000, districts: 10, customers: 300, new_orders: 90 };

/// A few hundred rows.
const TINY: Sizes = Sizes { items: 100, districts: 2, customers: 30, new_orders: 9 };

fn scale(warehouses: u16, sizes: Sizes) -> Scale {
    Scale::reduced(warehouses, sizes).expect("a valid scale")
}

fn loaded(scale: Scale) -> Model {
    let mut store = Model::new();
    for (at, value) in Load::new(scale, SEED, 1_000).records() {
        store.load(at, value);
    }
    store
}
