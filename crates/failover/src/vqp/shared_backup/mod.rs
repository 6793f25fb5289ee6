//! Queue pairs whose backup is shared: one virtual queue pair between two processes is the backup
//! of any number of queue pairs.
//!
//! A [`VirtualQp`] has queue pairs of its own on every rail. With thousands of connections to one
//! process, that is most of their memory, and their failovers are thousands of negotiations. A
//! [`BackedQp`] has one queue pair, on the rail of the [`SharedBackup`]. When that rail fails, the
//! backup alone negotiates with the peer. Its ballots number the epochs of all its members, and it
//! carries, in order and exactly once:
//!
//! - the evidence of the members' fenced queue pairs, as many in a message as fit;
//! - the members' WRITEs and READs, until each has a new queue pair (SENDs and atomics wait for
//!   it);
//! - the parameters of the new queue pairs.
//!
//! So nothing is negotiated for a member. `member` is the state machine of one end; `state` is the
//! backup with all its members; `shared_failover` drives the member's datapath, and `own_qp` is its
//! queue pair.

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

/// The depth of the backup's send queue, unless a NIC has less.
const SENDS: u32 = 2048;

/// The backup of all [`BackedQp`]s between two processes.
///
/// Each poll of a member drives the backup. A process whose members are not polled calls
/// [`SharedBackup::progress`].
///
/// ```
/// # use std::sync::Arc;
/// # use mitra_failover::{Config, Domain, SharedBackup, VirtualQp};
/// # use mitra_softnic::SoftNic;
/// # use mitra_verbs::{Access, Buffer, Data, Provider, SendOp, SendWr};
/// # fn domain() -> Result<Arc<Domain>, Box<dyn std::error::Error>> {
/// #     let nic = || SoftNic::open(mitra_softnic::Config::loopback()).map(|nic| nic as Arc<dyn Provider>);
/// #     Ok(Domain::new(vec![nic()?, nic()?])?)
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
    /// backup. The depths of its queues and the access are chosen here.
    ///
    /// # Errors
    /// The errors of [`VirtualQpBuilder::build`]; [`BuildError::Nic`] with [`Error::Unsupported`]
    /// for another policy than exact.
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

    /// Returns the parameters that the peer's end needs for [`SharedBackup::connect`].
    pub fn local_info(&self) -> ConnectInfo {
        self.lock().backup().local_info()
    }

    /// Connects the backup to the peer's. Members can be made afterwards.
    ///
    /// # Errors
    /// Those of [`VirtualQp::connect`].
    pub fn connect(&self, peer: &ConnectInfo) -> Result<()> {
        let mut state = self.lock();
        state.backup_mut().connect(peer)?;
        state.post_receives()
    }

    /// Creates one end of a queue pair with this backup, unconnected. Of the configuration it uses
    /// the depths, the limits of requests, `rd_atomic`, the timers of the queue pair, the write
    /// policy, the access, the completion log and mode `durable`. A queue pair may keep a log, or
    /// be durable, if the backup does or is, too, because the backup carries its operations during
    /// a failover.
    ///
    /// # Errors
    /// [`BuildError::Nic`] with [`Error::Invalid`] if the backup is not connected or has closed, or
    /// if it keeps no completion log, or is not durable, and the configuration asks for that; with
    /// [`Error::Unsupported`] for another policy than exact; the errors of
    /// [`VirtualQpBuilder::build`].
    pub fn queue_pair(self: &Arc<Self>, config: Config) -> Result<BackedQp, BuildError> {
        BackedQp::of_backup(self, config, None)
    }

    /// Creates an end as [`SharedBackup::queue_pair`] does, which takes receives from a shared
    /// queue. [`Config::recv_wrs`] and [`Config::recv_sges`] are then chosen here, and
    /// [`BackedQp::post_recv`] refuses.
    ///
    /// # Errors
    /// Those of [`SharedBackup::queue_pair`].
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
        self.lock().backup().active_rail()
    }

    /// The report of the last failover of the backup.
    pub fn last_failover(&self) -> Option<FailoverReport> {
        self.lock().backup().last_failover()
    }

    /// The number of messages of the peer that were malformed or out of order.
    pub fn rejected_messages(&self) -> u64 {
        let state = self.lock();
        state.rejected() + state.backup().rejected_messages()
    }

    /// Returns whether messages to the peer, or operations of queue pairs, wait or are in flight.
    pub fn has_messages(&self) -> bool {
        self.lock().has_requests()
    }

    /// The reason for which the backup closed. `None` while it is open. Its members close for the
    /// same reason.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.lock().close_reason()
    }

    /// Closes the backup, and so all its members at both ends.
    pub fn shutdown(&self) {
        self.lock().backup_mut().shutdown();
    }

    /// Locks the state, even if it is poisoned, because no code panics while it is inconsistent.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
