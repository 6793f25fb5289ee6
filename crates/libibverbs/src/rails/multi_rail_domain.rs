//! What all virtual queue pairs of a device share: the NICs, registered memory, the rendezvous, and their configuration.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mitra_control::Settings;
use mitra_failover::{Config, DetectorConfig, Domain, LocalNic, RemoteRegion, VirtualMr, VirtualQp};
use mitra_softnic::SoftNic;
use mitra_verbs::{Access, Buffer, CompletionChannel, Key, Limits, PdId, Provider, Result};

use super::rendezvous::Rendezvous;
use crate::common::errno::system_error;
use crate::common::lock::lock;

/// Time that the rails of a destroyed queue pair are kept, so that its peer is told that it has ended.
pub(super) const LINGER: Duration = Duration::from_millis(200);

/// Time between two heartbeats. A failed link or NIC is detected at once, by its event. Heartbeats detect paths that fail silently.
/// Their time-out is long because a program may not run for a while on a busy machine.
const HEARTBEAT: Duration = Duration::from_millis(100);
/// Heartbeats that may be missed before a rail counts as failed.
const HEARTBEAT_MISSES: u32 = 20;

/// Time until a connected peer must be heard for the first time. One end of a connection may be ready long before the other.
const FIRST_CONTACT_TIMEOUT: Duration = Duration::from_secs(60);

/// The failover domain of all rails, and what belongs to it.
pub(crate) struct MultiRailDomain {
    failover: Arc<Domain>,
    pub(super) rendezvous: Arc<Rendezvous>,
    config: Config,
    /// The program's memory regions by their rkey on rail 0, for queries of peers.
    regions: Mutex<HashMap<Key, RemoteRegion>>,
    /// Virtual queue pairs that `ibv_modify_qp` to RESET replaced, with the time of the reset.
    retired: Mutex<Vec<(Instant, VirtualQp)>>,
}

impl MultiRailDomain {
    /// Creates the domain over at least two NICs.
    ///
    /// # Errors
    /// The error of the first NIC that refuses, or `Limit` if there are too many NICs.
    pub(super) fn new(nics: &[Arc<SoftNic>], settings: &Settings) -> Result<MultiRailDomain> {
        let providers: Vec<Arc<dyn Provider>> =
            nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
        let failover = Domain::with_completion_channels(providers)?;
        let rendezvous = Rendezvous::new(failover.nics())?;
        Ok(MultiRailDomain::with_rendezvous(failover, rendezvous, settings))
    }

    pub(super) fn with_rendezvous(
        failover: Arc<Domain>,
        rendezvous: Arc<Rendezvous>,
        settings: &Settings,
    ) -> MultiRailDomain {
        let config = Config {
            policy: settings.policy,
            write_policy: settings.writes,
            completion_log: settings.completion_log,
            completion_log_entries: Some(limits(&failover, settings.completion_log).wrs),
            detector: DetectorConfig {
                heartbeat_interval: HEARTBEAT,
                max_missed_heartbeats: HEARTBEAT_MISSES,
                first_contact_timeout: FIRST_CONTACT_TIMEOUT,
                ..DetectorConfig::default()
            },
            ..Config::default()
        };
        MultiRailDomain { failover, rendezvous, config, regions: Mutex::default(), retired: Mutex::default() }
    }

    /// Returns the failover domain.
    pub(super) fn failover(&self) -> &Arc<Domain> {
        &self.failover
    }

    /// Returns the NICs, rail 0 first.
    pub(super) fn nics(&self) -> &[LocalNic] {
        self.failover.nics()
    }

    /// Returns the configuration of virtual queue pairs, without a queue pair's depths.
    pub(super) fn config(&self) -> Config {
        self.config
    }

    /// Returns the limits of virtual queue pairs.
    pub(crate) fn limits(&self) -> Limits {
        limits(&self.failover, self.config.completion_log)
    }

    /// Returns the protection domain on rail 0. The device has one, which all domains of the program stand for.
    pub(crate) fn pd(&self) -> PdId {
        self.nics()[0].pd
    }

    /// Returns the completion channel on rail 0, by which the progress thread hears of completions in the program's queues.
    pub(crate) fn channel(&self) -> Option<&Arc<dyn CompletionChannel>> {
        self.nics()[0].channel.as_ref()
    }

    /// Registers memory on all rails.
    ///
    /// # Errors
    /// The error of a NIC that refuses, or `DeviceFatal` if all NICs are dead.
    pub(crate) fn register(&self, memory: &Arc<Buffer>, access: Access) -> Result<VirtualMr> {
        let mr = self.failover.register(memory, access)?;
        lock(&self.regions).insert(mr.primary().rkey, mr.remote());
        Ok(mr)
    }

    /// Revokes memory on all rails. On return no NIC accesses it.
    ///
    /// # Errors
    /// The error of a NIC that does not confirm, and may still access the memory.
    pub(crate) fn deregister(&self, mr: &VirtualMr) -> Result<()> {
        lock(&self.regions).remove(&mr.primary().rkey);
        self.failover.deregister(mr)
    }

    /// Returns a region of the program by its rkey on rail 0.
    pub(super) fn region(&self, key: Key) -> Option<RemoteRegion> {
        lock(&self.regions).get(&key).cloned()
    }

    /// Creates a virtual queue pair with the configuration of another, for a queue pair that is connected to itself.
    ///
    /// # Errors
    /// As [`VirtualQp::new`].
    pub(super) fn duplicate(&self, vqp: &VirtualQp) -> Result<VirtualQp> {
        VirtualQp::new(Arc::clone(&self.failover), vqp.config(), [random()?, random()?])
    }

    /// Shuts down a virtual queue pair, and keeps it for [`LINGER`].
    pub(super) fn retire(&self, mut vqp: VirtualQp) {
        vqp.shutdown();
        lock(&self.retired).push((Instant::now(), vqp));
    }

    /// Drives the retired virtual queue pairs, and closes those whose time is over.
    pub(super) fn close_retired(&self) {
        let mut retired = lock(&self.retired);
        retired.iter_mut().for_each(|(_, vqp)| vqp.progress());
        for (_, mut vqp) in retired.extract_if(.., |(since, _)| since.elapsed() > LINGER) {
            // Closing fails only on a dead NIC, whose objects are gone.
            let _ = vqp.close();
        }
    }
}

/// Returns the limits of the weakest rail. With a completion log each request takes two entries of a send queue.
fn limits(failover: &Domain, log: bool) -> Limits {
    let limits = failover.limits();
    Limits { wrs: if log { limits.wrs / 2 } else { limits.wrs }, ..limits }
}

/// Returns eight unpredictable bytes.
///
/// # Errors
/// `System` if the system's random source cannot be read.
pub(super) fn random() -> Result<u64> {
    getrandom::u64().map_err(|e| system_error("reading the system's random source")(&e))
}
