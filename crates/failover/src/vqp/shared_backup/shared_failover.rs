//! The failover of a queue pair with a shared backup.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mitra_verbs::{Access, Error, Psn, Result, RnrTimer, SendOp, SendWr, Wc};

use super::SharedBackup;
use super::backed_qp_info::BackedQpInfo;
use super::message::{Grant, MemberId};
use super::own_qp::MemberQp;
use crate::activity::CountedVqp;
use crate::builder::{BuildError, check};
use crate::close_reason::CloseReason;
use crate::completion_log::CompletionLog;
use crate::config::{Config, Service, WritePolicy};
use crate::evidence::Placed;
use crate::memory_region::RemoteRegion;
use crate::secret::SecretWord;
use crate::shared_receive_queue::SharedReceiveQueue;
use crate::vqp::datapath::Datapath;
use crate::vqp::failover::sealed;
use crate::vqp::failure::Failure;
use crate::vqp::fence::Fence;
use crate::vqp::maintenance_schedule::MaintenanceSchedule;
use crate::vqp::recovery::Recovery;
use crate::vqp::replay::PostLimit;
use crate::vqp::send_queue::PostPath;
use crate::vqp::shared_receives::ReceiveSource;
use crate::vqp::{VirtualQp, with_slots};

mod closing;
mod completions;
mod steps;

const NO_LOG: Error = Error::Invalid(
    "a queue pair with a completion log needs a shared backup with one: build the backup with completion_log",
);
const NOT_DURABLE: Error = Error::Invalid(
    "a durable queue pair needs a durable shared backup: build the backup with durable and completion_log",
);

/// A reliable connection with one queue pair and a [`SharedBackup`] ([`SharedBackup::queue_pair`]).
/// The connection keeps the promises of a [`VirtualQp`] with the policy exact. Dropping the queue
/// pair closes it.
///
/// Sends may be posted when this end has connected. While the queue pair has no rail
/// ([`BackedQp::has_rail`]), the backup carries WRITEs and READs of memory that the peer has
/// granted, and other sends wait.
pub type BackedQp = VirtualQp<SharedFailover>;

type MemberPath = Datapath<MemberQp>;

/// How a [`BackedQp`] fails over, as a member of a shared backup.
#[derive(Debug)]
pub struct SharedFailover {
    backup: Arc<SharedBackup>,
    /// Present until the vQP closes.
    counted: Option<CountedVqp>,
    id: MemberId,
    /// Set by the backup when [`SharedFailover::run`] has something to do.
    attention: Arc<AtomicBool>,
    secret: SecretWord,
    is_connected: bool,
    /// Whether the vQP was moved to RTS.
    may_send: bool,
    /// Whether sends are posted on the own queue pair, not on the backup.
    uses_own: bool,
    fence: Fence,
    /// Set when a fence without markers has emptied the completion queue of the own queue pair: the
    /// NIC is alive (`true`) or was reset (`false`).
    is_emptied: Option<bool>,
    /// Whether the backup knows that the own queue pair has failed.
    is_failure_reported: bool,
    /// The last `Placed` message to the peer ([`Config::is_durable`]), with the epoch of the own
    /// queue pair.
    told: Option<(u16, Placed)>,
    /// The peer's regions for which this end has asked for a grant.
    asked: Vec<RemoteRegion>,
    grants: Vec<UsableGrant>,
    /// The number of operations in flight on the backup.
    on_backup: usize,
    /// The epoch of the `Resumed` message for which the receives wait.
    awaited_resume: Option<u16>,
    /// The epoch and `partial_imm_bytes` of a `Resumed` message that came before this end had
    /// fenced its queue pair.
    early_resume: Option<(u16, u32)>,
    /// To be handled after the completions.
    failure: Option<Failure>,
    schedule: MaintenanceSchedule,
    wcs: Vec<Wc>,
}

impl BackedQp {
    pub(super) fn of_backup(
        backup: &Arc<SharedBackup>,
        mut config: Config,
        shared: Option<&Arc<SharedReceiveQueue>>,
    ) -> Result<BackedQp, BuildError> {
        let mut state = backup.lock();
        let domain = Arc::clone(state.backup.domain());
        if shared.is_some() {
            config = with_slots(config, &domain);
        }
        check(&domain, &config)?;
        if !config.policy.is_exact() {
            return Err(Error::Unsupported("a shared backup with another policy than exact").into());
        }
        if config.completion_log.is_some() && state.backup.config().completion_log.is_none() {
            return Err(NO_LOG.into());
        }
        if config.is_durable() && !state.backup.config().is_durable() {
            return Err(NOT_DURABLE.into());
        }
        if config.service != Service::Reliable {
            return Err(Error::Unsupported("a shared backup with a service other than RC").into());
        }
        let secret = SecretWord::new(domain.nics()[0].provider.random_u64()?);
        let owner = domain.new_home_member();
        let Some((id, attention)) = state.add(owner, config.access) else {
            return Err(Error::Invalid("the shared backup is not connected, or has closed").into());
        };
        let log = CompletionLog::of_config(&domain, &config).inspect_err(|_| state.remove(id))?;
        drop(state);
        let source = shared.map(|queue| ReceiveSource::Queue(Arc::clone(queue)));
        let failover = SharedFailover {
            backup: Arc::clone(backup),
            counted: Some(domain.counters().count_vqp()),
            id,
            attention,
            secret,
            is_connected: false,
            may_send: false,
            uses_own: false,
            fence: Fence::default(),
            is_emptied: None,
            is_failure_reported: false,
            told: None,
            asked: Vec::new(),
            grants: Vec::new(),
            on_backup: 0,
            awaited_resume: None,
            early_resume: None,
            failure: None,
            schedule: MaintenanceSchedule::default(),
            wcs: Vec::new(),
        };
        let qp = MemberQp { own: None, config, id };
        let mut datapath = Datapath::new(domain, owner, qp, Psn::new(0), log, source);
        // No data queue pair exists yet.
        (0..datapath.domain.nics().len()).for_each(|rail| datapath.windows.cut_off(rail));
        Ok(VirtualQp { datapath, failover })
    }

    /// Returns whether the queue pair has a rail, so that sends of every kind are posted at once.
    pub fn has_rail(&self) -> bool {
        self.failover.uses_own
    }

    /// The backup of which this queue pair is a member.
    pub fn backup(&self) -> &Arc<SharedBackup> {
        &self.failover.backup
    }
}

impl sealed::Failover for SharedFailover {
    type Qps = MemberQp;
    type Info = BackedQpInfo;

    fn local_info(&self, dp: &MemberPath) -> BackedQpInfo {
        let config = dp.config();
        BackedQpInfo {
            id: self.id,
            rd_atomic: config.rd_atomic,
            log: config.completion_log.is_some(),
            durable: config.is_durable(),
            log_region: dp.log_offer(),
        }
    }

    fn modify_to_rtr(&mut self, dp: &mut MemberPath, peer: &BackedQpInfo, timer: RnrTimer) -> Result<()> {
        if peer.rd_atomic != dp.config().rd_atomic {
            return Err(Error::Invalid("the two ends have different rd_atomic; give both the same"));
        }
        dp.check_logs(self.local_info(dp).log_terms(), peer.log_terms())?;
        let mut state = self.backup.lock();
        let nics: Option<Vec<_>> =
            (0..dp.domain.nics().len()).map(|rail| state.peer_nic(rail as u8)).collect();
        let Some(nics) = nics else { return Err(Error::Invalid("the shared backup has closed")) };
        let acks_after_placement = nics.iter().all(|(_, _, acks)| *acks);
        dp.begin(nics[0].1, Psn::new(0), peer.log_terms(), acks_after_placement);
        dp.rails.config.min_rnr_timer = timer;
        self.is_connected = true;
        state.with_entry(self.id, |entry| {
            entry.peer = Some(peer.id);
            entry.core.start();
        });
        drop(state);
        self.run(dp);
        Ok(())
    }

    fn modify_to_rts(&mut self, dp: &mut MemberPath, rnr_retry: u8) -> Result<()> {
        if !self.is_connected {
            return Err(crate::vqp::NOT_CONNECTED);
        }
        self.may_send = true;
        let MemberQp { own, config, .. } = &mut dp.rails;
        config.rnr_retry = rnr_retry;
        match own.as_mut().filter(|_| self.fence.is_idle()).map_or(Ok(()), |own| own.start_sending(config)) {
            Err(Error::DeviceFatal) => Ok(()), // the next poll handles it
            other => other,
        }
    }

    fn set_access(&mut self, dp: &mut MemberPath, access: Access) -> Result<()> {
        let before = core::mem::replace(&mut dp.rails.config.access, access);
        if before == access {
            return Ok(());
        }
        self.backup.lock().with_entry(self.id, |entry| entry.access = access);
        let is_wider = access.contains(before);
        let limited = if is_wider { Ok(()) } else { dp.domain.limit_grants_of(dp.home.id, access) };
        dp.rails.own.as_ref().map_or(Ok(()), |own| own.set_access(access)).and(limited)
    }

    fn is_connected(&self) -> bool {
        self.is_connected
    }

    fn may_send(&self) -> bool {
        self.may_send
    }

    fn on_import(&mut self, _dp: &mut MemberPath, region: &RemoteRegion) {
        let rkey = region.at(0).rkey;
        if region.is_window() {
            self.grants.retain(|old| old.grant.rkey != rkey); // a grant of earlier memory with the same key
        } else {
            self.asked.push(region.clone());
            self.backup.lock().ask_grant(self.id, rkey);
        }
    }

    fn submit(&mut self, dp: &mut MemberPath, wr: SendWr, policy: WritePolicy) -> u64 {
        let path = self.post_path(dp);
        let (seq, failure) = dp.submit(wr, policy, path);
        self.note_failure(failure);
        if !self.uses_own {
            self.post_pending_sends(dp);
        }
        seq
    }

    /// Posts waiting sends on the own queue pair, or on the backup if the backup can carry them.
    /// The next poll handles a failure.
    fn post_pending_sends(&mut self, dp: &mut MemberPath) {
        if dp.send.ledger.unposted() == 0 {
            return;
        }
        if self.uses_own {
            if let Some(path) = self.post_path(dp) {
                self.note_failure(dp.post_sends(path));
            }
            return;
        }
        let mut state = self.backup.lock();
        if !state.with_core(self.id, |core| core.may_use_backup()).unwrap_or(false) {
            return;
        }
        let (id, grants, posted) = (self.id, &self.grants, &mut self.on_backup);
        dp.send.post_with(
            |wr| on_backup(wr, grants),
            |wr, policy| {
                let seq = wr.wr_id;
                let is_posted = state.has_room() && state.post(id, seq, wr, policy);
                *posted += usize::from(is_posted);
                is_posted
            },
        );
    }

    fn post_added_recvs(&mut self, dp: &mut MemberPath) {
        if dp.rails.own.as_ref().is_some_and(|own| own.is_connected && self.fence.is_idle()) {
            dp.post_recvs();
        }
    }

    fn poll_completions(&mut self, dp: &mut MemberPath) {
        self.poll_own(dp);
        if !dp.termination.is_closed() {
            self.post_pending_sends(dp);
        }
        dp.take_send_completions();
    }

    fn progress(&mut self, dp: &mut MemberPath) {
        self.poll_own(dp);
        let is_due = self.schedule.on_poll(|| dp.now());
        if is_due || !self.uses_own || self.attention.load(Ordering::Acquire) {
            if is_due {
                self.schedule.begin_maintenance(dp.now());
                self.schedule.on_maintenance_from_poll();
                self.notice_refused_request(dp);
                self.fence_if_stopped(dp);
            }
            self.run(dp);
        }
        if !dp.termination.is_closed() {
            self.post_pending_sends(dp);
        }
        dp.take_send_completions();
    }

    fn arm(&self, dp: &MemberPath) -> Result<()> {
        if let Some(own) = &dp.rails.own {
            own.qp().arm()?;
        }
        self.backup.lock().backup.arm()
    }

    fn with_recovery<T>(&self, read: impl FnOnce(&Recovery) -> T) -> T {
        read(&self.backup.lock().backup.failover.recovery)
    }

    fn rejected_messages(&self) -> u64 {
        self.backup.rejected_messages()
    }

    fn close(&mut self, dp: &mut MemberPath, reason: CloseReason) {
        let backup = Arc::clone(&self.backup);
        self.close_locked(dp, &mut backup.lock(), reason);
        self.flush_if_closed(dp);
    }

    fn destroy(&mut self, dp: &mut MemberPath) -> Result<()> {
        self.close(dp, CloseReason::Closed);
        Ok(())
    }

    /// Closes the vQP. Operations in flight on the backup are stopped, so that no NIC accesses
    /// their memory later. The backup then moves, or replaces its queue pair.
    fn on_drop(&mut self, dp: &mut MemberPath) {
        self.close(dp, CloseReason::Closed);
        let mut state = self.backup.lock();
        if self.on_backup > 0 {
            state.stop_operations(self.id); // the application may now reuse the operations' memory
        }
        state.remove(self.id);
        drop(state);
        // An error has no consequence: nothing is bound on the queue pairs, and the memory of the
        // log is not freed while a NIC refers to it.
        let _ = dp.destroy_queues();
    }
}

impl SharedFailover {
    /// Returns where sends may be posted on the own queue pair.
    fn post_path(&self, dp: &MemberPath) -> Option<PostPath> {
        let own = dp.rails.own.as_ref().filter(|_| self.uses_own && self.fence.is_idle())?;
        Some(PostPath { rail: own.rail, epoch: own.epoch, limit: PostLimit::BURST })
    }

    /// Records a failure, which the next poll handles.
    fn note_failure(&mut self, failure: Option<Failure>) {
        self.failure = self.failure.or(failure);
    }
}

/// Memory of the peer that requests on the backup may use.
#[derive(Debug)]
struct UsableGrant {
    /// The address with which the application names the first byte.
    base: u64,
    len: u64,
    grant: Grant,
}

/// Translates a WRITE or READ of granted memory to the key of the grant. `None` for a request that
/// the backup cannot carry.
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
