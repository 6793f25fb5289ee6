//! The devices of the tests.

use std::env;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use mitra_hardnic::HardNic;
use mitra_qualify::{QualificationStore, QualifyConfig, qualify};

/// The devices that the environment names.
#[derive(Debug)]
pub struct Devices {
    names: Vec<String>,
    qualified: OnceLock<QualificationStore>,
    nics: OnceLock<[Arc<HardNic>; 2]>,
}

impl Devices {
    /// Returns the devices, or `None` if the environment names none.
    pub fn named() -> Option<Devices> {
        let names = env::var("MITRA_DEVICES").ok()?;
        let names: Vec<_> = names.split(',').map(|name| name.trim().to_owned()).collect();
        let names: Vec<_> = names.into_iter().filter(|name| !name.is_empty()).collect();
        let (qualified, nics) = (OnceLock::new(), OnceLock::new());
        (!names.is_empty()).then_some(Devices { names, qualified, nics })
    }

    /// Returns the names of the first two devices, which reach each other. A single device is its
    /// own peer.
    pub fn pair(&self) -> [&str; 2] {
        [&self.names[0], self.names.get(1).unwrap_or(&self.names[0])]
    }

    /// Returns the names of the devices of all rails: those of rail k are at 2k and 2k + 1.
    pub fn rails(&self) -> &[String] {
        &self.names[..self.names.len() / 2 * 2]
    }

    /// Returns the result of the qualification of the first device, which holds for all devices of
    /// the same part and firmware.
    pub fn store(&self) -> &QualificationStore {
        self.qualified.get_or_init(|| {
            let mut store = QualificationStore::load(Path::new("/nonexistent")).expect("there is no file");
            let [nic, peer] = self.pair().map(|name| open(name, &store));
            println!("{}: {:?}; {}", self.names[0], nic.hardware(), nic.probe());
            let config = QualifyConfig { write_fences: 20, atomic_fences: 8, ..QualifyConfig::default() };
            let result = qualify(&*nic, &*peer, config, &mut |_, _| {});
            let result = result.unwrap_or_else(|error| panic!("{}: {error}", self.names[0]));
            println!("{}: {result:?}: {}", self.names[0], result.verdict());
            store.insert(nic.hardware().clone(), result);
            store
        })
    }

    /// Returns the NICs of [`Devices::pair`], qualified.
    pub fn nics(&self) -> &[Arc<HardNic>; 2] {
        self.nics.get_or_init(|| {
            let [first, second] = self.pair();
            let nic = open(first, self.store());
            let peer = if first == second { Arc::clone(&nic) } else { open(second, self.store()) };
            [nic, peer]
        })
    }

    pub fn are_rxe(&self) -> bool {
        self.nics().iter().any(|nic| nic.hardware().driver.starts_with("rxe"))
    }
}

fn open(name: &str, store: &QualificationStore) -> Arc<HardNic> {
    HardNic::open_qualified(name, store).unwrap_or_else(|error| panic!("{error}"))
}
