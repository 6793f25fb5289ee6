use std::sync::Arc;

use crate::{Config, HostId, NicId, SimNic, World};

/// A world with two hosts, `a` and `b`, each with one NIC per rail.
pub struct Testbed {
    /// The world.
    pub world: World,
    /// The hosts `a` and `b`.
    pub hosts: [HostId; 2],
    /// The NICs of each host, by rail.
    pub nics: [Vec<Arc<SimNic>>; 2],
}

impl Testbed {
    /// Creates a testbed with the configuration that [`Config::swarm`] draws from the seed.
    pub fn new(seed: u64, rails: u8) -> Testbed {
        Testbed::with_config(seed, Config::swarm(seed), rails)
    }

    /// Creates a testbed with this configuration.
    pub fn with_config(seed: u64, config: Config, rails: u8) -> Testbed {
        Testbed::from_world(World::with_config(seed, config), rails)
    }

    /// Adds two hosts and their NICs to this world.
    pub fn from_world(mut world: World, rails: u8) -> Testbed {
        let hosts = ["a", "b"].map(|name| world.add_host(name));
        let nics = hosts.map(|host| (0..rails).map(|rail| world.add_nic(host, rail)).collect());
        Testbed { world, hosts, nics }
    }

    /// Returns both hosts' NICs on a rail.
    pub fn rail(&self, rail: usize) -> [NicId; 2] {
        [self.nics[0][rail].id(), self.nics[1][rail].id()]
    }
}
