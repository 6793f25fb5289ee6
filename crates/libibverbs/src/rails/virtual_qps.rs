//! The virtual queue pairs of a device with several rails: creation, lookup by number, and orderly destruction.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use mitra_control::Settings;
use mitra_failover::{Config, VirtualQp};
use mitra_softnic::SoftNic;
use mitra_verbs::{Error, Qpn, Result};

use super::multi_rail_domain::{LINGER, MultiRailDomain, random};
use super::multi_rail_qp::{CreateParams, MultiRailQp};
use super::rendezvous::Subject;
use super::srq_arrival_ring;
use crate::common::lock::lock;

/// Time that an exiting process waits until the progress thread has told its peers.
const EXIT_WAIT: Duration = Duration::from_millis(100);

/// A device with several rails.
pub(crate) struct MultiRail {
    domain: Arc<MultiRailDomain>,
    qps: Mutex<HashMap<Qpn, Weak<MultiRailQp>>>,
    /// Queue pairs that the program has destroyed, kept for [`LINGER`], with the time of their destruction.
    lingering: Mutex<Vec<(Instant, Arc<MultiRailQp>)>>,
    /// Set when the process exits: the progress thread is to tell the peers.
    exiting: AtomicBool,
    /// Set when the progress thread has told the peers.
    peers_notified: AtomicBool,
}

impl MultiRail {
    /// Creates the device over at least two NICs.
    ///
    /// # Errors
    /// As [`MultiRailDomain::new`].
    pub(super) fn new(nics: &[Arc<SoftNic>], settings: &Settings) -> Result<Arc<MultiRail>> {
        Ok(MultiRail::with_domain(MultiRailDomain::new(nics, settings)?))
    }

    pub(super) fn with_domain(domain: MultiRailDomain) -> Arc<MultiRail> {
        Arc::new(MultiRail {
            domain: Arc::new(domain),
            qps: Mutex::default(),
            lingering: Mutex::default(),
            exiting: AtomicBool::new(false),
            peers_notified: AtomicBool::new(false),
        })
    }

    /// Returns what the queue pairs share.
    pub(crate) fn domain(&self) -> &Arc<MultiRailDomain> {
        &self.domain
    }

    /// Creates a queue pair in RESET.
    ///
    /// # Errors
    /// `Limit` if a capacity exceeds the device's, or the error of a NIC that refuses.
    pub(crate) fn create_qp(&self, params: CreateParams) -> Result<Arc<MultiRailQp>> {
        let secret = [random()?, random()?];
        let (cap, limits) = (&params.init.cap, self.domain.limits());
        for (attribute, requested, limit) in [
            ("gather entries of a send", cap.send_sges, limits.sges),
            ("scatter entries of a receive", cap.recv_sges, limits.sges),
            ("bytes of inline data", cap.inline, limits.inline),
        ] {
            if requested > limit {
                return Err(Error::Limit { attribute, requested: requested.into(), limit: limit.into() });
            }
        }
        let config = Config {
            send_wrs: cap.send_wrs.max(1),
            recv_wrs: if params.srq.is_some() { srq_arrival_ring::MAX_SLOTS as u32 } else { cap.recv_wrs },
            ..self.domain.config()
        };
        let vqp = VirtualQp::new(Arc::clone(self.domain.failover()), config, secret)?;
        let qp = MultiRailQp::new(Arc::clone(&self.domain), vqp, params);
        lock(&self.qps).insert(qp.qpn(), Arc::downgrade(&qp));
        Ok(qp)
    }

    /// Destroys a queue pair. Its rails are freed after [`LINGER`].
    pub(crate) fn destroy_qp(&self, qp: Arc<MultiRailQp>) {
        qp.destroy();
        lock(&self.qps).remove(&qp.qpn());
        lock(&self.lingering).push((Instant::now(), qp));
    }

    /// Returns the queue pairs that are not destroyed.
    pub(super) fn qps(&self) -> Vec<Arc<MultiRailQp>> {
        lock(&self.qps).values().filter_map(Weak::upgrade).collect()
    }

    fn qp(&self, qpn: Qpn) -> Option<Arc<MultiRailQp>> {
        lock(&self.qps).get(&qpn).and_then(Weak::upgrade)
    }

    /// Answers the queries of peers. A sender that is no peer gets the answer for an object that does not exist.
    pub(super) fn answer_queries(&self, qps: &[Arc<MultiRailQp>]) {
        let rendezvous = &self.domain.rendezvous;
        for query in rendezvous.take_received() {
            let answer = match query.subject {
                Subject::Connection(qpn) => {
                    let qp = self.qp(qpn).filter(|qp| qp.accepts_peer(query.from));
                    if qp.as_ref().is_some_and(|qp| qp.has_ended()) {
                        continue; // The program may reset the queue pair before the peer's query times out.
                    }
                    qp.and_then(|qp| qp.local_info().ok()).map(|info| info.encode())
                }
                Subject::Region(key) => qps
                    .iter()
                    .any(|qp| qp.accepts_peer(query.from))
                    .then(|| self.domain.region(key))
                    .flatten()
                    .map(|region| region.encode()),
            };
            rendezvous.answer(&query, answer);
        }
    }

    /// Drives destroyed and replaced queue pairs, and frees those whose time is over.
    pub(super) fn close_lingering(&self) {
        let expired: Vec<_> = {
            let mut lingering = lock(&self.lingering);
            lingering.iter().for_each(|(_, qp)| qp.drive_after_destroy());
            lingering.extract_if(.., |(since, _)| since.elapsed() > LINGER).collect()
        };
        for (_, qp) in expired {
            // Closing fails only on a dead NIC, whose objects are gone.
            let _ = qp.close();
        }
        self.domain.close_retired();
    }

    /// Has the progress thread tell all peers that the process exits, and waits up to [`EXIT_WAIT`]. The exiting thread cannot tell
    /// them itself: `exit` may have interrupted it under a queue pair's lock.
    pub(super) fn shut_down_at_exit(&self) {
        self.exiting.store(true, Ordering::Release);
        let started = Instant::now();
        while !self.peers_notified.load(Ordering::Acquire) && started.elapsed() < EXIT_WAIT {
            thread::sleep(EXIT_WAIT / 100);
        }
    }

    /// Tells all peers, once, if the process exits.
    pub(super) fn notify_peers_at_exit(&self) {
        if self.exiting.load(Ordering::Acquire) && !self.peers_notified.load(Ordering::Relaxed) {
            self.qps().iter().for_each(|qp| qp.try_shutdown());
            self.peers_notified.store(true, Ordering::Release);
        }
    }
}
