//! The state that all virtual queue pairs of a device share: the NICs, the registered memory, the
//! rendezvous, and the configuration.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mitra_control::Settings;
use mitra_failover::{
    CompletionLogConfig, Config, DetectorConfig, Domain, Failback, Policy, Service, VirtualQp,
};
use mitra_os_util::poll_loop::PollLoop;
use mitra_verbs::{Access, Limits, QpType, Result, Time};

use super::drive_queue::{DriveQueue, Driven};
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
/// program's objects are in other failover domains, one for each protection domain
/// ([`MultiRailPd`]).
pub(crate) struct MultiRailDomain {
    /// The failover domain of the device, in which no memory of the program is registered.
    pub(super) failover: Arc<Domain>,
    pub(super) rendezvous: Arc<Rendezvous>,
    config: Config,
    pub(super) drive_queue: Arc<DriveQueue>,
    /// The number of completion queues of the program that are armed.
    pub(super) armed_cqs: AtomicUsize,
    /// The program's polls since a completion queue was last armed.
    polls: PollLoop,
    /// The virtual queue pairs that `ibv_modify_qp` to RESET has replaced, each with the time of
    /// the reset. They are kept for [`LINGER`].
    retired: Mutex<Vec<(Instant, VirtualQp)>>,
}

impl MultiRailDomain {
    pub(super) fn new(
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
        MultiRailDomain {
            failover,
            rendezvous,
            config,
            drive_queue: DriveQueue::new(),
            armed_cqs: AtomicUsize::new(0),
            polls: PollLoop::default(),
            retired: Mutex::default(),
        }
    }

    /// Returns the configuration of virtual queue pairs of this type (RC, UC or XRC).
    /// `MultiRail::create_qp` sets the queue depths. The baseline policies, which replay
    /// operations, apply to RC only.
    pub(super) fn config(&self, qp_type: QpType) -> Config {
        let policy = if self.config.policy == Policy::None { Policy::None } else { Policy::Exact };
        match qp_type {
            QpType::Uc => {
                // On a NIC, a UC queue pair does not fail if its peer never connects.
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

    pub(crate) fn limits(&self) -> Limits {
        limits(&self.failover, self.config.completion_log.is_some())
    }

    /// # Errors
    /// The errors of [`MultiRailPd::new`].
    pub(crate) fn alloc_pd(&self) -> Result<Arc<MultiRailPd>> {
        MultiRailPd::new(&self.failover, &self.drive_queue)
    }

    /// Prepares for the peers' atomics if `access` permits them: from now on, all virtual queue
    /// pairs of the device are on one rail ([`Domain::share_atomics`]). The caller grants the
    /// access afterwards. The rule does not apply to the baseline policies, because they fence no
    /// rail.
    ///
    /// # Errors
    /// `DeviceFatal` if the virtual queue pairs are on several rails and a NIC can be neither
    /// fenced nor reset.
    pub(super) fn share_atomics(&self, access: Access) -> Result<()> {
        if access.contains(Access::REMOTE_ATOMIC) && self.config.policy == Policy::Exact {
            self.failover.share_atomics()?;
        }
        Ok(())
    }

    /// Drives the NICs, and the queue pairs that have something to do. Waits for other threads that
    /// drive queue pairs for which `awaits` returns true.
    pub(super) fn drive(&self, awaits: impl Fn(&dyn Driven) -> bool) {
        let now = self.failover.poll();
        self.polls.record_poll(now.as_nanos());
        self.drive_queue.drive(now, awaits);
    }

    /// Does the same as [`MultiRailDomain::drive`]. `poll` polls one virtual queue pair, whether or
    /// not it has something to do.
    pub(super) fn drive_beside(&self, awaits: impl Fn(&dyn Driven) -> bool, poll: impl FnOnce()) {
        let now = self.failover.poll_beside_vqp();
        self.polls.record_poll(now.as_nanos());
        poll();
        self.drive_queue.drive(now, awaits);
    }

    /// Does the same as [`MultiRailDomain::drive`] for the progress thread, in case the program
    /// does not poll. Waits for no other thread, and detects dead NICs.
    pub(super) fn drive_in_background(&self) {
        let now = self.failover.poll_and_query();
        self.drive_queue.drive(now, |_| false);
    }

    /// Requests an event of the NICs at the next completion, so that the progress thread wakes. The
    /// caller must then drive the queue pairs, because a completion that arrived before the request
    /// causes no event.
    ///
    /// # Errors
    /// The error of a NIC that is not dead.
    pub(super) fn arm(&self) -> Result<()> {
        self.polls.end(self.now().as_nanos());
        self.failover.arm()
    }

    /// Requests the next event of the NICs if a completion queue of the program is still armed. A
    /// queue stays armed if the last event brought no completion that the program waits for. While
    /// the program polls in a loop, its polls report the events of all queues, and no event of a
    /// NIC is requested.
    pub(super) fn rearm(&self) {
        if self.polls.is_running(self.now().as_nanos()) {
            return;
        }
        if self.armed_cqs.load(Ordering::Relaxed) > 0 {
            // Only a NIC that is failing refuses, and the virtual queue pairs detect the failure.
            let _ = self.failover.arm();
            self.drive(|_| false);
        }
    }

    /// The time on the clock of rail 0's NIC, which is also that of [`Domain::poll`].
    fn now(&self) -> Time {
        self.failover.nics()[0].provider.now()
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

impl Drop for MultiRailDomain {
    fn drop(&mut self) {
        self.drive_queue.clear();
    }
}

/// The NIC objects that [`Rendezvous::new`] creates.
const OF_RENDEZVOUS: ObjectCounts = ObjectCounts { qps: 1, cqs: 2, mrs: 1 };
/// The numbers of NIC objects that are reserved for a virtual queue pair. Data and control messages
/// have a queue pair and a completion queue each. The regions are for control messages, a
/// completion log and a bounce ring. A virtual queue pair that binds windows of type 1 has one more
/// queue pair and completion queue.
const OF_QP: ObjectCounts = ObjectCounts { qps: 2, cqs: 2, mrs: 3 };

/// The maximum number of virtual queue pairs. Each has completion channels, and each channel is a
/// descriptor.
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
    // Virtual queue pairs use at most half of the completion queues.
    let room = (limits.qps.saturating_sub(OF_RENDEZVOUS.qps) / OF_QP.qps).min(limits.cqs / 2 / OF_QP.cqs);
    let qps = room.min(MAX_QPS);
    Limits {
        wrs,
        pds: limits.pds.saturating_sub(1),
        qps,
        cqs: limits.cqs.saturating_sub(OF_RENDEZVOUS.cqs + OF_QP.cqs * qps),
        mrs: limits.mrs.saturating_sub(OF_RENDEZVOUS.mrs + OF_QP.mrs * qps),
        ..limits
    }
}
