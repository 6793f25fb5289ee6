//! The state that all virtual queue pairs of a device share: the NICs, the registered memory, the
//! rendezvous, and the configuration.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mitra_control::Settings;
use mitra_failover::telemetry::Telemetry;
use mitra_failover::{
    CompletionLogConfig, Config, DetectorConfig, Domain, Failback, LocalNic, Policy, Service, VirtualQp,
};
use mitra_softnic::SoftNic;
use mitra_verbs::{Access, AsyncEvent, CompletionChannel, Limits, Provider, QpType, Result};

use super::protection_domain::MultiRailPd;
use super::rendezvous::Rendezvous;
use crate::common::lock::lock;

/// The time from the end of a virtual queue pair, by destruction or reset, until its queue pairs on
/// the rails are destroyed. In this time the virtual queue pair can still tell its peer that the
/// connection has ended.
pub(super) const LINGER: Duration = Duration::from_millis(200);

/// The time between two heartbeats. An event reports a failed link or NIC at once, so heartbeats
/// are needed only to detect a path that fails silently. Their timeout (`HEARTBEAT` ·
/// [`HEARTBEAT_MISSES`]) is long, because a process on a busy machine may not run for a while.
const HEARTBEAT: Duration = Duration::from_millis(100);
/// The number of consecutive heartbeats that may be missed before a rail is considered failed.
const HEARTBEAT_MISSES: u32 = 20;

/// The time after connecting within which the first heartbeat of the peer must arrive. It is long,
/// because one end of a connection may be ready long before the other end.
const FIRST_CONTACT_TIMEOUT: Duration = Duration::from_secs(60);

/// The failover domain over all rails, and the state that all virtual queue pairs share. The
/// program's objects are in domains of their own ([`MultiRailPd`]).
pub(crate) struct MultiRailDomain {
    failover: Arc<Domain>,
    pub(super) rendezvous: Arc<Rendezvous>,
    config: Config,
    /// The virtual queue pairs that `ibv_modify_qp` to RESET has replaced, each with the time of
    /// the reset. They are kept for [`LINGER`].
    retired: Mutex<Vec<(Instant, VirtualQp)>>,
}

impl MultiRailDomain {
    /// Creates the domain over at least two NICs.
    ///
    /// # Errors
    /// `Limit` if there are too many NICs, or the error of a NIC that refuses to create an object.
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
            failback: settings.prefer.map(Failback::to),
            completion_log: settings.completion_log.then(|| CompletionLogConfig {
                entries: Some(limits(&failover, true).wrs),
                ..CompletionLogConfig::default()
            }),
            detector: DetectorConfig {
                heartbeat_interval: HEARTBEAT,
                max_missed_heartbeats: HEARTBEAT_MISSES,
                first_contact_timeout: FIRST_CONTACT_TIMEOUT,
                ..DetectorConfig::default()
            },
            // A queue pair permits nothing before the program sets its access flags.
            access: Access::empty(),
            ..Config::default()
        };
        MultiRailDomain { failover, rendezvous, config, retired: Mutex::default() }
    }

    /// Returns the NICs, rail 0 first.
    pub(super) fn nics(&self) -> &[LocalNic] {
        self.failover.nics()
    }

    /// Returns what the virtual queue pairs have done and do.
    pub(super) fn telemetry(&self) -> &Telemetry {
        self.failover.telemetry()
    }

    /// Passes the events about objects of the NIC of rail 0 to `deliver`, which returns false for
    /// an object of a virtual queue pair. The program has no objects on the other NICs.
    pub(super) fn deliver_events(&self, deliver: impl Fn(AsyncEvent) -> bool + Send + Sync + 'static) {
        self.failover.claim_events(move |rail, event| rail == 0 && deliver(event));
    }

    /// Returns the configuration of the virtual queue pairs for queue pairs of this type, RC, UC or
    /// XRC. `MultiRail::create_qp` sets the depths of the queues in a copy. The policies of RC that
    /// replay operations do not apply to UC and XRC.
    pub(super) fn config(&self, qp_type: QpType) -> Config {
        let policy = if self.config.policy == Policy::None { Policy::None } else { Policy::Exact };
        match qp_type {
            QpType::Uc => {
                // A queue pair of a NIC never learns that its peer does not connect.
                let detector =
                    DetectorConfig { first_contact_timeout: Duration::MAX, ..self.config.detector };
                let service = Service::Unreliable;
                Config { service, policy, completion_log: None, detector, ..self.config }
            }
            QpType::XrcSend => Config { service: Service::XrcSend, policy, ..self.config },
            QpType::XrcRecv(_) => Config { service: Service::XrcReceive, policy, ..self.config },
            QpType::Rc | QpType::Ud | QpType::Gsi => self.config,
        }
    }

    /// Returns the failover domain of the device, in which no memory of the program is registered.
    pub(super) fn failover(&self) -> &Arc<Domain> {
        &self.failover
    }

    /// Returns the limits of virtual queue pairs.
    pub(crate) fn limits(&self) -> Limits {
        limits(&self.failover, self.config.completion_log.is_some())
    }

    /// Allocates a protection domain of the program.
    ///
    /// # Errors
    /// The errors of [`MultiRailPd::new`].
    pub(crate) fn alloc_pd(&self) -> Result<Arc<MultiRailPd>> {
        MultiRailPd::new(&self.failover, self.config.policy)
    }

    /// Returns the completion channel on rail 0. The program's completion queues are created with
    /// this channel, so that their events wake the progress thread.
    pub(crate) fn channel(&self) -> Option<&Arc<dyn CompletionChannel>> {
        self.nics()[0].channel.as_ref()
    }

    /// Creates a virtual queue pair with the configuration of `vqp`, for a queue pair that is
    /// connected to itself.
    ///
    /// # Errors
    /// The errors of [`VirtualQpBuilder::build`](mitra_failover::VirtualQpBuilder::build).
    pub(super) fn duplicate(&self, vqp: &VirtualQp) -> Result<VirtualQp> {
        Ok(VirtualQp::builder(vqp.domain()).config(vqp.config()).build()?)
    }

    /// Shuts down a virtual queue pair that a reset has replaced, and keeps it for [`LINGER`].
    pub(super) fn retire(&self, mut vqp: VirtualQp) {
        vqp.shutdown();
        vqp.release_windows();
        lock(&self.retired).push((Instant::now(), vqp));
    }

    /// Drives the retired virtual queue pairs, and closes those that were retired at least `age`
    /// ago.
    pub(super) fn close_retired(&self, age: Duration) {
        let mut retired = lock(&self.retired);
        retired.iter_mut().for_each(|(_, vqp)| vqp.progress());
        for (_, mut vqp) in retired.extract_if(.., |(since, _)| since.elapsed() >= age) {
            // Closing fails only on a dead NIC, whose objects no longer exist.
            let _ = vqp.close();
        }
    }
}

/// The objects of a NIC that the rendezvous takes ([`Rendezvous::new`]).
const OF_RENDEZVOUS: ObjectCounts = ObjectCounts { qps: 1, cqs: 2, mrs: 1 };
/// The maximum numbers of objects of a NIC that a virtual queue pair takes: for data and for
/// control messages, and memory for control messages, a completion log and a bounce ring. A queue
/// pair that binds windows of type 1 takes one more queue pair and completion queue.
const OF_QP: ObjectCounts = ObjectCounts { qps: 2, cqs: 2, mrs: 3 };

/// The maximum number of virtual queue pairs. Each has completion channels of its own, which take
/// descriptors.
const MAX_QPS: u32 = 1 << 10;

struct ObjectCounts {
    qps: u32,
    cqs: u32,
    mrs: u32,
}

/// Returns the limits of virtual queue pairs: the domain's limits, with half as many work requests
/// if there is a completion log, because each request then takes two entries of a send queue. The
/// device itself uses one protection domain. A program can have the maximum numbers of queue pairs,
/// completion queues and regions at the same time.
fn limits(failover: &Domain, log: bool) -> Limits {
    let limits = failover.limits();
    let wrs = if log { limits.wrs / 2 } else { limits.wrs };
    let left = |all: u32, taken: u32| all.saturating_sub(taken);
    // At most half of the completion queues are those of virtual queue pairs.
    let room = (left(limits.qps, OF_RENDEZVOUS.qps) / OF_QP.qps).min(limits.cqs / 2 / OF_QP.cqs);
    let qps = room.min(MAX_QPS);
    Limits {
        wrs,
        pds: left(limits.pds, 1),
        qps,
        cqs: left(limits.cqs, OF_RENDEZVOUS.cqs + OF_QP.cqs * qps),
        mrs: left(limits.mrs, OF_RENDEZVOUS.mrs + OF_QP.mrs * qps),
        ..limits
    }
}
