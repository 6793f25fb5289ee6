//! The shared backups of a device: one for each protection domain and protection domain of a peer whose queue pairs are connected.
//!
//! The keys of a backup are those of one protection domain at each end, so each pair of domains has its own. Both ends may begin to connect
//! at the same time. An end that has none for the pair makes one, and names it in its query for the peer's queue pair ([`Offer`]). The end that gets the query
//! connects its own to it: the one that it has made for the pair, if that has no peer yet, or a new one. So two ends that ask each other connect the
//! same two. If the backup has closed at one end only, that end answers that it is gone, and the other takes or makes the next.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use mitra_failover::{Config, ConnectInfo, SharedBackup, VirtualQp};
use mitra_verbs::{Error, Result};

use crate::common::lock::lock;
use crate::common::random::random;
use crate::rails::protection_domain::MultiRailPd;
use crate::rails::rendezvous::Offer;

/// The maximum time for which an exiting process waits until its messages have arrived.
const EXIT_WAIT: Duration = Duration::from_millis(50);
/// The maximum number of backups of a device.
const MAX_BACKUPS: usize = 1 << 10;
/// The maximum number of backups without a queue pair that are kept for later ones.
const MAX_UNUSED: usize = 8;

/// Which backup a connection uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::rails) struct PairId {
    /// The token of this end's protection domain.
    pub(in crate::rails) own: u64,
    /// The token of the peer's.
    pub(in crate::rails) peer: u64,
    /// Tells the two ends of a backup apart if both are in the same protection domain. False otherwise.
    pub(in crate::rails) is_second: bool,
}

/// One end of a shared backup.
pub(in crate::rails) struct Backup {
    pair: PairId,
    pd: Weak<MultiRailPd>,
    /// The unpredictable number by which the peer names this end.
    id: u64,
    shared: Arc<SharedBackup>,
    /// The number of the other end. `None` until it is connected.
    peer: Mutex<Option<u64>>,
    /// Whether the peer has said that its end is gone. This end may not have noticed yet.
    is_gone: AtomicBool,
    /// The epoch of the last failover that was logged, or 0.
    logged_epoch: AtomicU64,
}

impl Backup {
    pub(in crate::rails) fn shared(&self) -> &Arc<SharedBackup> {
        &self.shared
    }

    pub(in crate::rails) fn pair(&self) -> PairId {
        self.pair
    }

    fn is_open(&self) -> bool {
        self.shared.close_reason().is_none()
    }

    /// Records that the peer's end is gone, so that no further queue pair uses this end.
    pub(in crate::rails) fn set_gone(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }

    /// Returns what this end tells the peer.
    ///
    /// # Errors
    /// Those of [`SharedBackup::local_info`].
    pub(in crate::rails) fn offer(&self) -> Result<Offer> {
        let PairId { own, is_second, .. } = self.pair;
        Ok(Offer { pd: own, is_second, id: self.id, info: self.shared.local_info() })
    }

    /// Connects to the peer's end with this number, if this end has no peer. Returns whether it is connected to that end.
    ///
    /// # Errors
    /// Those of [`SharedBackup::connect`].
    pub(in crate::rails) fn connect(&self, id: u64, info: &ConnectInfo) -> Result<bool> {
        let mut peer = lock(&self.peer);
        if peer.is_none() {
            self.shared.connect(info)?;
            *peer = Some(id);
        }
        Ok(*peer == Some(id) && self.is_open())
    }
}

/// The shared backups of a device.
pub(in crate::rails) struct Registry {
    /// The configuration of the backups. `None` if queue pairs have their own backups.
    config: Option<Config>,
    backups: Mutex<Vec<Arc<Backup>>>,
    /// The number of failovers of backups so far.
    failovers: AtomicU64,
}

impl Registry {
    /// Creates the registry. With a configuration, RC queue pairs have shared backups.
    pub(in crate::rails) fn new(config: Option<Config>) -> Registry {
        Registry { config, backups: Mutex::default(), failovers: AtomicU64::new(0) }
    }

    /// Returns whether RC queue pairs have shared backups.
    pub(in crate::rails) fn is_on(&self) -> bool {
        self.config.is_some()
    }

    /// Returns the number of failovers of backups so far.
    pub(in crate::rails) fn failovers(&self) -> u64 {
        self.failovers.load(Ordering::Relaxed)
    }

    /// Returns a backup for a new queue pair in `pd` whose peer's protection domain has this token: one that is open, or a new one.
    ///
    /// # Errors
    /// Those of [`SharedBackup::new`]; `Limit` if there are too many.
    pub(in crate::rails) fn open(&self, pd: &Arc<MultiRailPd>, pair: PairId) -> Result<Arc<Backup>> {
        let mut backups = lock(&self.backups);
        let is_usable = |backup: &&Arc<Backup>| {
            backup.pair == pair && backup.is_open() && !backup.is_gone.load(Ordering::Relaxed)
        };
        let known = backups.iter().rev().find(is_usable);
        known.cloned().map_or_else(|| self.add(&mut backups, pd, pair), Ok)
    }

    /// Returns this end of the backup that a peer offers. `None` if it has closed.
    ///
    /// # Errors
    /// Those of [`Registry::open`] and [`SharedBackup::connect`].
    pub(in crate::rails) fn accept(
        &self,
        pd: &Arc<MultiRailPd>,
        offer: &Offer,
    ) -> Result<Option<Arc<Backup>>> {
        let own = pd.token();
        let pair = PairId { own, peer: offer.pd, is_second: offer.pd == own && !offer.is_second };
        let mut backups = lock(&self.backups);
        let mut of_pair = backups.iter().filter(|backup| backup.pair == pair);
        let known = of_pair.clone().find(|backup| *lock(&backup.peer) == Some(offer.id));
        let unconnected = || of_pair.find(|backup| lock(&backup.peer).is_none() && backup.is_open());
        let backup = match known.or_else(unconnected).cloned() {
            Some(backup) => backup,
            None => self.add(&mut backups, pd, pair)?,
        };
        Ok(backup.connect(offer.id, &offer.info)?.then_some(backup))
    }

    fn add(
        &self,
        backups: &mut Vec<Arc<Backup>>,
        pd: &Arc<MultiRailPd>,
        pair: PairId,
    ) -> Result<Arc<Backup>> {
        let config = self.config.ok_or(Error::Invalid("this device has no shared backups"))?;
        let is_unused = |backup: &Arc<Backup>| Arc::strong_count(backup) == 1;
        backups.retain(|backup| backup.is_open() || !is_unused(backup));
        let unused = backups.iter().filter(|backup| is_unused(backup)).count();
        let mut surplus = unused.saturating_sub(MAX_UNUSED);
        backups.retain(|backup| {
            let goes = surplus > 0 && is_unused(backup);
            surplus -= usize::from(goes);
            !goes
        });
        if backups.len() >= MAX_BACKUPS {
            let (requested, limit) = (backups.len() as u64 + 1, MAX_BACKUPS as u64);
            return Err(Error::Limit { attribute: "shared backups", requested, limit });
        }
        let shared = SharedBackup::new(VirtualQp::builder(pd.failover()).config(config))?;
        let backup = Arc::new(Backup {
            pair,
            pd: Arc::downgrade(pd),
            id: random()?,
            shared,
            peer: Mutex::default(),
            is_gone: AtomicBool::new(false),
            logged_epoch: AtomicU64::new(0),
        });
        backups.push(Arc::clone(&backup));
        Ok(backup)
    }

    /// Drives the backups, logs their failovers, and closes those whose protection domain the program has deallocated.
    pub(in crate::rails) fn drive(&self) {
        let backups = {
            let mut backups = lock(&self.backups);
            backups.retain(|backup| backup.pd.strong_count() > 0);
            backups.clone()
        };
        for backup in &backups {
            backup.shared.progress();
            let Some(report) = backup.shared.last_failover() else { continue };
            let epoch = u64::from(report.epoch);
            if backup.logged_epoch.swap(epoch, Ordering::Relaxed) != epoch {
                self.failovers.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(
                    "a shared backup and its queue pairs moved from rail {} to rail {} ({}) in {:.1?}",
                    report.from,
                    report.to,
                    report.cause,
                    report.decided_at.saturating_since(report.detected_at)
                );
            }
        }
    }

    /// Closes the backups when the process exits, and before that sends their messages, by which the peers learn the fate of what is in flight. Waits for
    /// them for at most [`EXIT_WAIT`].
    pub(in crate::rails) fn close_at_exit(&self) {
        let backups = lock(&self.backups).clone();
        let started = Instant::now();
        while backups.iter().any(|backup| backup.is_open() && backup.shared.has_messages())
            && started.elapsed() < EXIT_WAIT
        {
            backups.iter().for_each(|backup| backup.shared.progress());
            thread::sleep(EXIT_WAIT / 100);
        }
        backups.iter().for_each(|backup| backup.shared.shutdown());
    }
}

#[cfg(test)]
pub(super) mod tests;
