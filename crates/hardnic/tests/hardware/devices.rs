//! The devices of the tests.

use std::env;
use std::sync::Arc;

use mitra_hardnic::HardNic;

/// The names of two devices that reach each other.
#[derive(Clone, Debug)]
pub struct Devices {
    pub names: [String; 2],
}

impl Devices {
    /// Returns the first pair of devices that the environment names. `None` if it names none.
    pub fn named() -> Option<Devices> {
        let names = env::var("MITRA_DEVICES").ok()?;
        let mut names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
        let first = names.next()?.to_owned();
        let second = names.next().map_or_else(|| first.clone(), str::to_owned);
        Some(Devices { names: [first, second] })
    }

    /// Opens both devices. A device that is its own peer is opened once.
    pub fn open(&self) -> [Arc<HardNic>; 2] {
        let open = |name: &str| HardNic::open(name).unwrap_or_else(|error| panic!("{error}"));
        let first = open(&self.names[0]);
        let second = if self.names[0] == self.names[1] { Arc::clone(&first) } else { open(&self.names[1]) };
        [first, second]
    }
}
