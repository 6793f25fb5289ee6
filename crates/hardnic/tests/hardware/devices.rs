//! The devices of the tests.

use std::env;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use mitra_hardnic::HardNic;
use mitra_qualify::{QualificationStore, QualifyConfig, qualify};

/// Two devices that reach each other.
#[derive(Debug)]
pub struct Devices {
    pub names: [String; 2],
    nics: OnceLock<[Arc<HardNic>; 2]>,
}

impl Devices {
    /// Returns the first pair of devices that the environment names. `None` if it names none.
    pub fn named() -> Option<Devices> {
        let names = env::var("MITRA_DEVICES").ok()?;
        let mut names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
        let first = names.next()?.to_owned();
        let second = names.next().map_or_else(|| first.clone(), str::to_owned);
        Some(Devices { names: [first, second], nics: OnceLock::new() })
    }

    /// Returns both NICs, qualified. A device that is its own peer is opened once.
    pub fn nics(&self) -> &[Arc<HardNic>; 2] {
        self.nics.get_or_init(|| {
            let mut store = QualificationStore::load(Path::new("/nonexistent")).expect("an empty store");
            let [first, second] = &self.names;
            let open = |name: &str, store: &QualificationStore| {
                HardNic::open_qualified(name, store).unwrap_or_else(|error| panic!("{error}"))
            };
            {
                let [nic, peer] = [open(first, &store), open(second, &store)];
                println!("{first}: {:?}; {}", nic.hardware(), nic.probe());
                let result = qualify(&*nic, &*peer, QualifyConfig::default(), &mut |_, _| {});
                let result = result.unwrap_or_else(|error| panic!("{first}: {error}"));
                println!("{first}: {result:?}: {:?}", result.verdict());
                store.insert(nic.hardware().clone(), result);
            }
            let nic = open(first, &store);
            let peer = if first == second { Arc::clone(&nic) } else { open(second, &store) };
            [nic, peer]
        })
    }

    pub fn are_rxe(&self) -> bool {
        self.nics().iter().any(|nic| nic.hardware().driver.starts_with("rxe"))
    }
}
