//! Queue pairs with a shared backup: one virtual queue pair between two processes is the backup of
//! any number of queue pairs.
//!
//! A [`VirtualQp`] has queue pairs of its own on every rail. With thousands of connections to one
//! process, these queue pairs take most of the memory, and a failover is thousands of negotiations.
//! A [`BackedQp`] has one queue pair, on the rail of the [`SharedBackup`]. When that rail fails,
//! only the backup negotiates with the peer. All members take their epochs from the ballots of the
//! backup. The backup carries, in order and exactly once:
//!
//! - the evidence of the members' fenced queue pairs, as many in a message as fit;
//! - the members' WRITEs and READs, until each member has a new queue pair (SENDs and atomics wait
//!   for the new queue pair);
//! - the parameters of the new queue pairs.
//!
//! `member` is the state machine of one end. `state` is the backup with all its members.
//! `shared_failover` drives the member's datapath, and `own_qp` is the member's queue pair.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mitra_verbs::{Access, Error, Result};

use crate::builder::{BuildError, VirtualQpBuilder};
use crate::close_reason::CloseReason;
use crate::config::{Config, Service};
use crate::connect_info::ConnectInfo;
use crate::failover_report::FailoverReport;
use crate::shared_receive_queue::SharedReceiveQueue;
#[cfg(doc)]
use crate::vqp::VirtualQp;
use message_buffers::{BUFFER_LEN, MessageBuffers, RECVS};
use state::State;

mod backed_qp_info;
mod member;
mod message;
mod message_buffers;
mod own_qp;
mod shared_failover;
mod state;

pub use backed_qp_info::BackedQpInfo;
pub use member::{Member, Step};
pub use message::{Body, Grant, OfferedQp};
pub use shared_failover::{BackedQp, SharedFailover};

/// The depth of the backup's send queue, or half the limit of the NICs, if that is less.
const SENDS: u32 = 2048;

/// The backup of all [`BackedQp`]s between two processes.
///
/// Each poll of a member drives the backup. A process whose members are not polled calls
/// [`SharedBackup::progress`].
///
/// ```
/// # use std::sync::Arc;
/// # use mitra_failover::{Config, Domain, SharedBackup, VirtualQp};
/// # use mitra_nics::NicKind;
/// # use mitra_verbs::{Access, Buffer, Data, Provider, SendOp, SendWr};
/// # fn domain() -> Result<Arc<Domain>, Box<dyn std::error::Error>> {
/// #     let nic = || NicKind::Soft.open_free().expect("an address is free") as Arc<dyn Provider>;
/// #     Ok(Domain::new(vec![nic(), nic()])?)
/// # }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (client_domain, server_domain) = (domain()?, domain()?);
/// let client = SharedBackup::new(VirtualQp::builder(&client_domain))?;
/// let server = SharedBackup::new(VirtualQp::builder(&server_domain))?;
/// let (client_info, server_info) = (client.local_info(), server.local_info());
/// client.connect(&server_info)?;
/// server.connect(&client_info)?;
///
/// let mut requester = client.queue_pair(Config::default())?; // one of thousands
/// let mut responder = server.queue_pair(Config::default())?;
/// requester.connect(&responder.local_info())?;
/// responder.connect(&requester.local_info())?;
///
/// let word = Arc::new(Buffer::new(8));
/// let region = server_domain.register(&word, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?.remote();
/// requester.import(&region)?;
/// requester.post_send(SendWr::new(1, SendOp::Write(region.at(0)), Data::inline(&7_u64.to_ne_bytes())))?;
/// let mut completions = Vec::new();
/// while requester.poll(&mut completions) == 0 {
///     responder.poll(&mut Vec::new());
/// }
/// assert!(completions[0].is_success());
/// assert_eq!(word.load(0), 7);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SharedBackup {
    state: Mutex<State>,
}

impl SharedBackup {
    /// Creates one end, unconnected. `builder` configures the virtual queue pair that is the
    /// backup. This method overrides the sizes of the queues and of the completion log, the RNR
    /// retries, and the access.
    ///
    /// # Errors
    /// The errors of [`VirtualQpBuilder::build`]; [`BuildError::Nic`] with [`Error::Unsupported`]
    /// for a policy other than exact, for a service other than reliable, or if a NIC does not
    /// accept messages of 4 KiB.
    pub fn new(builder: VirtualQpBuilder) -> Result<Arc<SharedBackup>, BuildError> {
        let limits = builder.domain().limits();
        let builder = builder.with(|config| {
            (config.send_wrs, config.recv_wrs) = (SENDS.min(limits.wrs / 2), RECVS);
            (config.send_sges, config.recv_sges) = (limits.sges.min(Config::default().send_sges), 1);
            config.rnr_retry = 7;
            config.access = Access::LOCAL_WRITE | Access::REMOTE;
            if let Some(log) = &mut config.completion_log {
                log.entries = Some(SENDS);
            }
        });
        if limits.message_bytes < BUFFER_LEN as u32 {
            return Err(Error::Unsupported("a shared backup: messages of 4 KiB").into());
        }
        let backup = builder.build()?;
        let config = backup.config();
        if !config.policy.is_exact() || config.service != Service::Reliable {
            let refused = "a shared backup with another policy than exact, or an unreliable service";
            return Err(Error::Unsupported(refused).into());
        }
        let buffers = MessageBuffers::new(backup.domain())?;
        Ok(Arc::new(SharedBackup { state: Mutex::new(State::new(backup, buffers)) }))
    }

    /// The parameters for [`SharedBackup::connect`] at the peer.
    pub fn local_info(&self) -> ConnectInfo {
        self.lock().backup.local_info()
    }

    /// Connects the backup to the peer's backup. Members can be made afterwards.
    ///
    /// # Errors
    /// As [`VirtualQp::connect`].
    pub fn connect(&self, peer: &ConnectInfo) -> Result<()> {
        let mut state = self.lock();
        state.backup.connect(peer)?;
        state.post_receives()
    }

    /// Creates one end of a queue pair with this backup, unconnected. The configuration determines:
    ///
    /// - the depths and the limits of requests;
    /// - `rd_atomic`, the timers of the queue pair, the write policy and the access;
    /// - the completion log and mode `durable`. A member with a completion log needs a backup with
    ///   a completion log, and a member in mode `durable` needs a backup in mode `durable`.
    ///   Otherwise the backup could not carry the member's operations during a failover.
    ///
    /// # Errors
    /// [`BuildError::Nic`] with [`Error::Invalid`] if the backup is not connected or has closed, or
    /// if the backup lacks the completion log or the mode `durable` of the configuration; with
    /// [`Error::Unsupported`] for a policy other than exact or a service other than reliable; the
    /// errors of [`VirtualQpBuilder::build`].
    pub fn queue_pair(self: &Arc<Self>, config: Config) -> Result<BackedQp, BuildError> {
        BackedQp::of_backup(self, config, None)
    }

    /// Like [`SharedBackup::queue_pair`], for a queue pair that takes receives from a shared queue.
    /// The backup then determines [`Config::recv_wrs`] and [`Config::recv_sges`], and
    /// [`BackedQp::post_recv`] refuses.
    ///
    /// # Errors
    /// As [`SharedBackup::queue_pair`].
    pub fn queue_pair_with_shared_receives(
        self: &Arc<Self>,
        config: Config,
        queue: &Arc<SharedReceiveQueue>,
    ) -> Result<BackedQp, BuildError> {
        BackedQp::of_backup(self, config, Some(queue))
    }

    /// Drives the backup and takes its messages, without driving the members.
    pub fn progress(&self) {
        self.lock().drive();
    }

    /// The rail of the backup, on which its members make their queue pairs.
    pub fn active_rail(&self) -> usize {
        self.lock().backup.active_rail()
    }

    /// The report of the last failover of the backup.
    pub fn last_failover(&self) -> Option<FailoverReport> {
        self.lock().backup.last_failover()
    }

    /// The number of messages of the peer that were malformed or out of order.
    pub fn rejected_messages(&self) -> u64 {
        let state = self.lock();
        state.rejected + state.backup.rejected_messages()
    }

    /// Returns whether messages to the peer or operations of queue pairs wait or are in flight.
    pub fn has_messages(&self) -> bool {
        self.lock().has_requests()
    }

    /// The reason for which the backup, and with it every member, closed. `None` while the backup
    /// is open.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.lock().backup.close_reason()
    }

    /// Closes the backup, and with it all its members at both ends.
    pub fn shutdown(&self) {
        self.lock().backup.shutdown();
    }

    /// A poisoned lock is usable, because no code panics while the state is inconsistent.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
