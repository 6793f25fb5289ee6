//! Two rails between two ends of this machine.

use std::sync::Arc;

use mitra_failover::Domain;
use mitra_hardnic::HardNic;
use mitra_qualify::QualificationStore;
use mitra_verbs::Provider;

/// The domains of two ends. Rail k leads from device 2k to device 2k + 1.
pub struct Ends {
    pub client: Arc<Domain>,
    pub server: Arc<Domain>,
    pub nics: Vec<Arc<HardNic>>,
}

impl Ends {
    /// Opens the devices. `wrap` may put another NIC around each.
    pub fn open(
        names: &[String],
        store: &QualificationStore,
        wrap: impl Fn(Arc<HardNic>) -> Arc<dyn Provider>,
    ) -> Ends {
        let nics: Vec<_> = names.iter().map(|name| open(name, store)).collect();
        let end = |first: usize| domain(nics.iter().skip(first).step_by(2).cloned(), &wrap);
        Ends { client: end(0), server: end(1), nics }
    }

    /// Opens the devices of one end alone: 0 is the client's.
    pub fn open_one(
        end: usize,
        names: &[String],
        store: &QualificationStore,
        wrap: impl Fn(Arc<HardNic>) -> Arc<dyn Provider>,
    ) -> Arc<Domain> {
        domain(names.iter().skip(end).step_by(2).map(|name| open(name, store)), wrap)
    }
}

fn open(name: &str, store: &QualificationStore) -> Arc<HardNic> {
    HardNic::open_qualified(name, store).unwrap_or_else(|error| panic!("{error}"))
}

fn domain(
    nics: impl Iterator<Item = Arc<HardNic>>,
    wrap: impl Fn(Arc<HardNic>) -> Arc<dyn Provider>,
) -> Arc<Domain> {
    Domain::new(nics.map(wrap).collect()).expect("the NICs have the resources of a domain")
}
