use core::fmt;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mitra_verbs::{Error, Mtu, Psn, Result, SendOp, SendWr, Time, Wc};

use super::SharedBackup;
use super::backed_qp_info::BackedQpInfo;
use super::message::{Grant, MemberId};
use super::own_qp::OwnQp;
use crate::activity::CountedVqp;
use crate::builder::{BuildError, check};
use crate::close_reason::CloseReason;
use crate::completion::Completion;
use crate::completion_log::CompletionLog;
use crate::config::{Config, Policy, Service};
use crate::domain::Domain;
use crate::evidence::{Contradiction, Placed};
use crate::home_rail::MemberId as OwnerId;
use crate::memory_region::RemoteRegion;
use crate::secret::SecretWord;
use crate::shared_receive_queue::SharedReceiveQueue;
use crate::vqp::failure::Failure;
use crate::vqp::maintenance_schedule::MaintenanceSchedule;
use crate::vqp::receive_queue::ReceiveQueue;
use crate::vqp::send_queue::SendQueue;
use crate::vqp::shared_receives::{ReceiveSource, SharedReceives};
use crate::vqp::termination::Termination;
use crate::vqp::window_sync::WindowSync;
use crate::vqp::with_slots;

mod closing;
mod completions;
mod connecting;
mod durability;
mod posting;
mod receives;
mod recovery;
mod windows;

const NO_LOG: Error = Error::Invalid(
    "a queue pair with a completion log needs a shared backup with one: build the backup with completion_log",
);
const NOT_DURABLE: Error = Error::Invalid(
    "a durable queue pair needs a durable shared backup: build the backup with durable and completion_log",
);
const NOT_CONNECTED: Error = Error::Invalid("this queue pair is not connected yet");
/// The maximum number of completions taken from the queue pair at once.
const POLL_BATCH: usize = 32;

/// A reliable connection with one queue pair and a [`SharedBackup`].
///
/// A `BackedQp` keeps the promises of a [`VirtualQp`](crate::VirtualQp) with the policy exact. [`BackedQp::poll`] drives it and the backup.
///
/// Dropping it closes it.
pub struct BackedQp {
    backup: Arc<SharedBackup>,
    domain: Arc<Domain>,
    /// Present until the queue pair closes.
    counted: Option<CountedVqp>,
    /// This queue pair as a user of the home rail and as the owner of keys.
    owner: OwnerId,
    id: MemberId,
    /// Set by the backup when [`BackedQp::run`] has something to do.
    attention: Arc<AtomicBool>,
    config: Config,
    secret: SecretWord,
    is_connected: bool,
    /// Whether the queue pair may send: [`BackedQp::modify_to_rts`] was called.
    may_send: bool,
    own: Option<OwnQp>,
    /// Whether sends are posted on the own queue pair.
    uses_own: bool,
    send: SendQueue,
    recv: ReceiveQueue,
    /// `None` if the queue pair has no shared receive queue.
    shared: Option<SharedReceives>,
    /// The completion log in this end's memory, into which the peer writes entries for its own operations.
    log: Option<CompletionLog>,
    /// The memory windows, from the first bind or local invalidation on.
    windows: Option<Box<WindowSync>>,
    /// What the peer was told last about its operations, with the epoch of the own queue pair. See [`Config::durable`].
    told: Option<(u16, Placed)>,
    /// The peer's regions for which a grant was asked.
    asked: Vec<RemoteRegion>,
    /// The peer's memory that may be used on the backup.
    grants: Vec<UsableGrant>,
    /// The number of operations in flight on the backup.
    on_backup: usize,
    /// The epoch whose `Resumed` message the receives wait for.
    awaited_resume: Option<u16>,
    /// The last `Resumed` message, if it came before this end had fenced its queue pair.
    early_resume: Option<(u16, u32)>,
    ready: VecDeque<Completion>,
    /// A failure that is to be handled after the completions.
    failure: Option<Failure>,
    schedule: MaintenanceSchedule,
    termination: Termination,
    wcs: Vec<Wc>,
}

impl BackedQp {
    pub(super) fn new(
        backup: &Arc<SharedBackup>,
        mut config: Config,
        shared: Option<&Arc<SharedReceiveQueue>>,
    ) -> Result<BackedQp, BuildError> {
        let mut state = backup.lock();
        let domain = Arc::clone(state.backup().domain());
        if shared.is_some() {
            config = with_slots(config, &domain);
        }
        check(&domain, &config)?;
        if config.policy != Policy::Exact {
            return Err(Error::Unsupported("a shared backup with another policy than exact").into());
        }
        if config.completion_log && !state.backup().config().completion_log {
            return Err(NO_LOG.into());
        }
        if config.durable && !state.backup().config().durable {
            return Err(NOT_DURABLE.into());
        }
        if config.service.is_xrc() {
            return Err(Error::Unsupported("an XRC connection with a shared backup").into());
        }
        let secret = SecretWord::new(domain.nics()[0].provider.random_u64()?);
        let unusable = Error::Invalid("the shared backup is not connected, or has closed");
        let owner = domain.new_home_member();
        let Some((id, attention)) = state.add(owner, config.access) else { return Err(unusable.into()) };
        let log = match CompletionLog::of_config(&domain, &config) {
            Ok(log) => log,
            Err(error) => {
                state.remove(id);
                return Err(error.into());
            }
        };
        drop(state);
        let limits = domain.limits();
        Ok(BackedQp {
            backup: Arc::clone(backup),
            counted: Some(domain.counters().count_vqp()),
            domain,
            owner,
            id,
            attention,
            config,
            secret,
            is_connected: false,
            may_send: false,
            own: None,
            uses_own: false,
            send: SendQueue::new(&config, &limits, Mtu::M256, Psn::new(0), None),
            recv: ReceiveQueue::new(limits.message_bytes.into(), Service::Reliable),
            shared: shared
                .map(|queue| SharedReceives::new(ReceiveSource::Queue(Arc::clone(queue)), Service::Reliable)),
            log,
            windows: None,
            told: None,
            asked: Vec::new(),
            grants: Vec::new(),
            on_backup: 0,
            awaited_resume: None,
            early_resume: None,
            ready: VecDeque::new(),
            failure: None,
            schedule: MaintenanceSchedule::new(),
            termination: Termination::default(),
            wcs: Vec::new(),
        })
    }

    /// Returns the parameters that the peer needs for [`BackedQp::connect`].
    pub fn local_info(&self) -> BackedQpInfo {
        BackedQpInfo {
            id: self.id,
            rd_atomic: self.config.rd_atomic,
            log: self.config.completion_log,
            durable: self.config.durable,
            log_region: self.log.as_ref().and_then(|log| log.offer(self.config.access)),
        }
    }

    /// Makes the peer's region known, so that sends may name it, and asks the peer for access to it on the backup. The peer grants access to at most 256 regions at once. Sends that
    /// name another one, or a window ([`VirtualMw::remote`](crate::VirtualMw::remote)), wait, after a failover, until the queue pair has a rail.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the queue pair is not connected, or if the region is registered for another number of rails.
    pub fn import(&mut self, region: &RemoteRegion) -> Result<()> {
        if !self.is_connected {
            return Err(NOT_CONNECTED);
        }
        if region.rail_count() != self.domain.nics().len() {
            return Err(Error::Invalid("the region is registered for another number of rails"));
        }
        self.send.import(region.clone());
        if region.is_window() {
            self.grants.retain(|old| old.grant.rkey != region.at(0).rkey); // of memory that had the key before
            return Ok(());
        }
        self.asked.push(region.clone());
        self.backup.lock().ask_grant(self.id, region.at(0).rkey);
        Ok(())
    }

    fn check_not_closed(&self) -> Result<()> {
        self.close_reason().map_or(Ok(()), |reason| Err(reason.refusal()))
    }

    /// The reason for which the queue pair closed. `None` while it is open.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.termination.reason()
    }

    /// The contradiction, if the queue pair closed with [`CloseReason::Contradiction`].
    pub fn contradiction(&self) -> Option<Contradiction> {
        self.termination.contradiction()
    }

    /// Returns whether the queue pair has a rail, so that sends of every kind are posted at once.
    pub fn has_rail(&self) -> bool {
        self.uses_own
    }

    /// Returns whether the send queue has stopped at an operation that ended in an error; see [`BackedQp::resume`].
    pub fn is_halted(&self) -> bool {
        self.send.ledger().is_halted()
    }

    /// Lets the application post sends again after an operation ended in an error. Does nothing if the queue pair is closed.
    pub fn resume(&mut self) {
        if self.close_reason().is_none() {
            self.send.resume();
        }
    }

    /// The number of sends that have not completed.
    pub fn outstanding(&self) -> usize {
        self.send.ledger().len()
    }

    /// The backup.
    pub fn backup(&self) -> &Arc<SharedBackup> {
        &self.backup
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The domain whose NICs and memory the queue pair uses.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    fn now(&self) -> Time {
        self.domain.nics()[0].provider.now()
    }

    /// Drives the queue pair and the backup, and appends completions to `out`: those of sends in posting order, those of receives in order of arrival.
    /// Returns the number of completions.
    pub fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        self.progress();
        self.deliver(out)
    }

    /// Drives the queue pair and the backup without taking completions; the next [`BackedQp::poll`] returns them.
    pub fn progress(&mut self) {
        self.post_slots();
        self.poll_own();
        let domain = &self.domain;
        let is_due = self.schedule.on_poll(|| domain.nics()[0].provider.now());
        if is_due || !self.uses_own || self.attention.load(Ordering::Acquire) {
            if is_due {
                self.schedule.begin_maintenance(self.now());
                self.schedule.on_maintenance_from_poll();
                self.notice_refused_request();
            }
            self.run();
        }
        if self.close_reason().is_none() && self.send.ledger().unposted() > 0 {
            self.post_sends();
        }
        self.send.take_completions(&mut self.ready);
    }

    /// Closes the queue pair: operations in flight end in [`UnresolvedError::Undecided`](crate::UnresolvedError::Undecided), and the peer's end closes.
    pub fn close(&mut self) {
        self.close_with(CloseReason::Closed);
    }
}

/// Memory of the peer that may be used on the backup.
#[derive(Debug)]
struct UsableGrant {
    /// The address with which requests name the first byte.
    base: u64,
    len: u64,
    grant: Grant,
}

/// Returns the request as the backup can carry it: a WRITE or READ of memory that the peer has granted, with the key of the grant.
fn on_backup(wr: &SendWr, grants: &[UsableGrant]) -> Option<SendWr> {
    let (SendOp::Write(at) | SendOp::Read(at)) = wr.op else { return None };
    let usable = grants.iter().find(|usable| usable.grant.rkey == at.rkey)?;
    let offset = at.addr.checked_sub(usable.base)?;
    let end = offset.checked_add(wr.data.len())?;
    let granted = usable.grant.region.at(offset);
    let op = match wr.op {
        SendOp::Write(_) if usable.grant.writable => SendOp::Write(granted),
        SendOp::Read(_) if usable.grant.readable => SendOp::Read(granted),
        _ => return None,
    };
    (end <= usable.len.min(usable.grant.region.len())).then(|| SendWr { op, ..wr.clone() })
}

impl Drop for BackedQp {
    /// Closes the queue pair, if [`BackedQp::close`] was not called. Otherwise the peer could still access memory through it. If operations are in flight on the
    /// backup, stops that, so that no NIC accesses their memory later; the backup then moves, or replaces its queue pair.
    fn drop(&mut self) {
        self.close();
        self.release_windows();
        let _ = self.windows.as_ref().map(|windows| windows.destroy()); // best effort: nothing is bound on these queue pairs
        let mut state = self.backup.lock();
        if self.on_backup > 0 {
            state.stop_operations(self.id); // the application may use the memory of the operations in flight again
        }
        state.remove(self.id);
        drop(state);
        // The memory is not freed while a NIC refers to it, so an error has no consequence.
        let _ = self.log.as_ref().map(|log| self.domain.deregister(log.mr()));
    }
}

impl fmt::Debug for BackedQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackedQp")
            .field("id", &self.id)
            .field("outstanding", &self.outstanding())
            .field("close_reason", &self.close_reason())
            .finish_non_exhaustive()
    }
}
