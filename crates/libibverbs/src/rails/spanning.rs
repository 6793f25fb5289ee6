//! What a device with several rails has beside its NICs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use mitra_control::Settings;
use mitra_failover::{Config, DetectorConfig, Domain, RemoteRegion, VirtualMr, VirtualQp};
use mitra_softnic::SoftNic;
use mitra_verbs::{Access, Buffer, CompletionChannel, Error, Key, Limits, PdId, Provider, Qpn, Result};

use super::bounce;
use super::meeting::Meeting;
use super::pair::{Made, Pair};
use crate::common::errno::system_error;
use crate::common::lock::lock;

/// How long the rails of a queue pair that was destroyed stay, so that its peer hears that it has ended.
const LINGER: Duration = Duration::from_millis(200);

/// How long a process that ends waits until its peers are told.
const FAREWELL: Duration = Duration::from_millis(100);

/// Programs share processors with each other and with what runs beside them: one that does not run for a while has not
/// failed. A link or a NIC that does is seen at once, by its event; this is for a path that is silent for other reasons.
const HEARTBEAT: Duration = Duration::from_millis(100);
/// See [`HEARTBEAT`].
const MISSES: u32 = 20;

/// One end of a connection may be ready long before the other.
const MEET_WITHIN: Duration = Duration::from_secs(60);

/// The domain of all rails, and the queue pairs in it.
pub(crate) struct Spanning {
    pub(super) domain: Arc<Domain>,
    pub(super) meeting: Meeting,
    config: Config,
    pairs: Mutex<HashMap<Qpn, Weak<Pair>>>,
    /// Destroyed, and not yet gone.
    leaving: Mutex<Vec<(Instant, Arc<Pair>)>>,
    /// What queue pairs were before they were reset, and not yet gone.
    former: Mutex<Vec<(Instant, VirtualQp)>>,
    /// The program's memory as its peers name it.
    regions: Mutex<HashMap<Key, RemoteRegion>>,
    /// The process ends, and peers are to be told ...
    ending: AtomicBool,
    /// ... and have been.
    told: AtomicBool,
}

impl Spanning {
    pub(super) fn new(nics: &[Arc<SoftNic>], settings: &Settings) -> Result<Arc<Spanning>> {
        let providers: Vec<Arc<dyn Provider>> =
            nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>).collect();
        let domain = Domain::with_completion_channels(providers)?;
        let meeting = Meeting::new(domain.nics())?;
        let config = Config {
            policy: settings.policy,
            write_policy: settings.writes,
            completion_log: settings.completion_log,
            completion_log_entries: Some(limits(&domain, settings.completion_log).wrs),
            detector: DetectorConfig {
                heartbeat_interval: HEARTBEAT,
                max_missed_heartbeats: MISSES,
                first_contact_timeout: MEET_WITHIN,
                ..DetectorConfig::default()
            },
            ..Config::default()
        };
        Ok(Arc::new(Spanning {
            domain,
            meeting,
            config,
            pairs: Mutex::default(),
            leaving: Mutex::default(),
            former: Mutex::default(),
            regions: Mutex::default(),
            ending: AtomicBool::new(false),
            told: AtomicBool::new(false),
        }))
    }

    /// What its queue pairs may be asked for.
    pub(super) fn limits(&self) -> Limits {
        limits(&self.domain, self.config.completion_log)
    }

    /// The protection domain of rail 0. There is one for the whole device: a domain of the program's is a name for it.
    pub(crate) fn pd(&self) -> PdId {
        self.domain.nics()[0].pd
    }

    /// Where queues of the program's on rail 0 tell the attendant of completions.
    pub(crate) fn channel(&self) -> Option<&Arc<dyn CompletionChannel>> {
        self.domain.nics()[0].channel.as_ref()
    }

    /// Makes a queue pair.
    pub(crate) fn create(self: &Arc<Self>, made: Made) -> Result<Arc<Pair>> {
        let secret = [random()?, random()?];
        let (cap, limits) = (&made.init.cap, self.limits());
        for (what, asked, limit) in [
            ("gather entries of a send", cap.send_sges, limits.sges),
            ("scatter entries of a receive", cap.recv_sges, limits.sges),
            ("bytes of inline data", cap.inline, limits.inline),
        ] {
            if asked > limit {
                return Err(Error::Limit { attribute: what, requested: asked.into(), limit: limit.into() });
            }
        }
        let config = Config {
            send_wrs: cap.send_wrs.max(1),
            recv_wrs: if made.shared.is_some() { bounce::SLOTS as u32 } else { cap.recv_wrs },
            ..self.config
        };
        let vqp = VirtualQp::new(Arc::clone(&self.domain), config, secret)?;
        let pair = Pair::new(Arc::clone(self), vqp, made);
        lock(&self.pairs).insert(pair.qpn(), Arc::downgrade(&pair));
        Ok(pair)
    }

    /// Destroys a queue pair.
    pub(crate) fn destroy(&self, pair: Arc<Pair>) {
        pair.destroy();
        lock(&self.pairs).remove(&pair.qpn());
        lock(&self.leaving).push((Instant::now(), pair));
    }

    /// Another virtual queue pair like this, which nobody knows by its number.
    pub(super) fn twin(&self, vqp: &VirtualQp) -> Result<VirtualQp> {
        VirtualQp::new(Arc::clone(&self.domain), vqp.config(), [random()?, random()?])
    }

    /// What a queue pair was before it was reset.
    pub(super) fn part_with(&self, mut former: VirtualQp) {
        former.shutdown();
        lock(&self.former).push((Instant::now(), former));
    }

    /// The queue pairs that are there.
    pub(super) fn pairs(&self) -> Vec<Arc<Pair>> {
        lock(&self.pairs).values().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn pair(&self, qpn: Qpn) -> Option<Arc<Pair>> {
        lock(&self.pairs).get(&qpn).and_then(Weak::upgrade)
    }

    pub(super) fn region(&self, key: Key) -> Option<RemoteRegion> {
        lock(&self.regions).get(&key).cloned()
    }

    /// Registers memory on all rails.
    pub(crate) fn register(&self, memory: &Arc<Buffer>, access: Access) -> Result<VirtualMr> {
        let mr = self.domain.register(memory, access)?;
        lock(&self.regions).insert(mr.primary().rkey, mr.remote());
        Ok(mr)
    }

    /// Revokes it on all rails.
    pub(crate) fn deregister(&self, mr: &VirtualMr) -> Result<()> {
        lock(&self.regions).remove(&mr.primary().rkey);
        self.domain.deregister(mr)
    }

    /// Lets those go that have told their peers for long enough.
    pub(super) fn let_go(&self) {
        let gone: Vec<_> = {
            let mut leaving = lock(&self.leaving);
            leaving.iter().for_each(|(_, pair)| pair.linger());
            leaving.extract_if(.., |(since, _)| since.elapsed() > LINGER).collect()
        };
        for (_, pair) in gone {
            // What a dead NIC had is gone with it.
            let _ = pair.close();
        }
        let mut former = lock(&self.former);
        former.iter_mut().for_each(|(_, vqp)| vqp.progress());
        for (_, mut vqp) in former.extract_if(.., |(since, _)| since.elapsed() > LINGER) {
            let _ = vqp.close(); // as above
        }
    }

    /// The process ends: has the attendant tell the peers that have not heard, and waits for that a moment. Not this thread, which
    /// may have been interrupted under any lock.
    pub(super) fn farewell(&self) {
        self.ending.store(true, Ordering::Release);
        let begun = Instant::now();
        while !self.told.load(Ordering::Acquire) && begun.elapsed() < FAREWELL {
            thread::sleep(FAREWELL / 100);
        }
    }

    /// Tells them, if the process ends.
    pub(super) fn tell_if_ending(&self) {
        if self.ending.load(Ordering::Acquire) && !self.told.load(Ordering::Relaxed) {
            self.pairs().iter().for_each(|pair| pair.farewell());
            self.told.store(true, Ordering::Release);
        }
    }
}

/// The least that a rail takes. A log takes an entry for each request.
fn limits(domain: &Domain, log: bool) -> Limits {
    let most = domain.limits();
    Limits { wrs: if log { most.wrs / 2 } else { most.wrs }, ..most }
}

/// Eight unpredictable bytes.
pub(super) fn random() -> Result<u64> {
    getrandom::u64().map_err(|e| system_error("reading the system's random source")(&e))
}
