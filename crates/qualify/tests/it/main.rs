//! The tests of the crate's public interface, over software NICs.

mod probe;
mod qualify;
mod store;

use std::sync::Arc;

use mitra_qualify::testing::{FaultyNic, NicFault};
use mitra_softnic::{Config, SoftNic};
use mitra_verbs::Provider;

fn nic() -> Arc<dyn Provider> {
    SoftNic::open(Config::loopback()).expect("an address is free")
}

fn faulty(fault: NicFault) -> FaultyNic {
    FaultyNic::new(nic(), fault)
}
