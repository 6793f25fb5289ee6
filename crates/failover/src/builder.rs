use core::task::Waker;
use core::time::Duration;
use std::sync::Arc;

use mitra_verbs::Error;

use crate::config::{Config, Service};
use crate::control_message::MAX_SAVED;
use crate::data_qp::LOG_ENTRY_LEN;
use crate::domain::Domain;
use crate::secret::Secret;
use crate::shared_receive_queue::SharedReceiveQueue;
use crate::vqp::{HEADER_BYTES, ReceiveSource, VirtualQp, with_slots};
use crate::xrc_domain::XrcDomain;

/// The greatest number of entries of a completion log, above the depth of any NIC's send queue.
const MAX_LOG_ENTRIES: u32 = 1 << 20;

/// The greatest number of retransmissions and of RNR retries, which are 3-bit numbers (IBTA volume
/// 1, 9.7.5.1.5 and 11.2.5.2).
const MAX_RETRIES: u8 = 7;

/// Builds one end of a virtual queue pair. The defaults are [`Config::default`] and a random
/// secret.
///
/// ```
/// # use mitra_failover::{Config, Domain, VirtualQp};
/// # use mitra_nics::NicKind;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let domain = Domain::new(vec![NicKind::Soft.open_free().expect("an address is free")])?;
/// let config = Config { completion_log: Some(Default::default()), send_wrs: 256, ..Config::default() };
/// let vqp = VirtualQp::builder(&domain).config(config).build()?;
/// assert_eq!(vqp.config().send_wrs, 256);
/// # Ok(())
/// # }
/// ```
///
/// [`build`](VirtualQpBuilder::build) checks the configuration against the limits of the NICs:
///
/// ```
/// # use mitra_failover::{BuildError, Config, Domain, VirtualQp};
/// # use mitra_nics::NicKind;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let domain = Domain::new(vec![NicKind::Soft.open_free().expect("an address is free")])?;
/// let config = Config { rd_atomic: 17, ..Config::default() };
/// let error = VirtualQp::builder(&domain).config(config).build().unwrap_err();
/// assert_eq!(error, BuildError::RdAtomic { requested: 17, limit: 16 });
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder makes no virtual queue pair until `build` is called"]
pub struct VirtualQpBuilder {
    domain: Arc<Domain>,
    config: Config,
    secret: Option<Secret>,
    wakeup: Wakeup,
    shared: Option<ReceiveSource>,
}

/// The source of the wake-ups of a vQP that is not polled all the time.
#[derive(Clone, Debug)]
pub(crate) enum Wakeup {
    None,
    OwnChannels,
    Waker(Waker),
}

/// Why [`VirtualQpBuilder::build`] refused a configuration.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The send queue is deeper than a NIC allows.
    #[error(
        "send_wrs needs {requested} entries of a send queue, and a NIC of the domain has {limit}; lower send_wrs (a completion log doubles it)"
    )]
    SendQueue {
        /// The entries that the send queue needs. A completion log needs one more for each request.
        requested: u64,
        /// The entries that every NIC has.
        limit: u64,
    },
    /// The completion log is larger than any peer needs.
    #[error("completion_log.entries is {requested}; say at most {limit}")]
    LogEntries {
        /// The configured number of entries.
        requested: u32,
        /// The greatest number.
        limit: u32,
    },
    /// Mode `durable` needs the policy that decides by evidence.
    #[error("durable needs the policy exact; set that policy, or switch durable off")]
    Durable,
    /// An unreliable connection decides nothing by evidence and replays nothing. It cannot have a
    /// completion log, or a policy that may execute an operation twice.
    #[error("an unreliable connection needs the policy exact or none, and no completion log")]
    Unreliable,
    /// A policy that may execute an operation twice would do so with the header messages of XRC.
    /// Only the receiving end has an XRC domain.
    #[error(
        "an XRC connection needs the policy exact or none, an xrc_domain at its receiving end, and none at the other"
    )]
    Xrc,
    /// The domain has no such rail. Or the policy does not fence rails, so the vQP cannot leave a
    /// rail that works.
    #[error("failback.rail is {requested}; say a rail below {rails}, under the policy exact")]
    PreferredRail {
        /// The configured rail.
        requested: u8,
        /// The number of rails.
        rails: usize,
    },
    /// The receive queue is deeper than a NIC allows.
    #[error("recv_wrs is {requested}, and a NIC of the domain has {limit} entries; lower recv_wrs")]
    RecvQueue {
        /// The entries that the receive queue needs.
        requested: u64,
        /// The entries that every NIC has.
        limit: u64,
    },
    /// The number of READs and atomics in flight is 0, or above the limit of a NIC or of a control
    /// message.
    #[error("rd_atomic is {requested}; say 1 to {limit}")]
    RdAtomic {
        /// The configured number.
        requested: u8,
        /// The greatest number that every NIC and a control message allow.
        limit: u8,
    },
    /// A completion log needs NICs that execute work requests in order
    /// ([`write_order`](mitra_verbs::Capabilities::write_order)).
    #[error(
        "a completion log needs NICs that keep the order of WRITEs, and {nic} does not; switch the log off, or use another NIC"
    )]
    UnorderedWrites {
        /// The name of the first NIC that does not keep this order.
        nic: String,
    },
    /// A number of retries is above 7.
    #[error("{option} is {requested}; say 0 to 7")]
    Retries {
        /// `retry_cnt` or `rnr_retry`.
        option: &'static str,
        /// The configured number.
        requested: u8,
    },
    /// Heartbeats are on, and the time between two of them is 0.
    #[error(
        "heartbeat_interval is 0; say a time above 0, or switch heartbeats off by max_missed_heartbeats = 0"
    )]
    HeartbeatInterval,
    /// `peer_timeout` is too short for a failover to repeat an unanswered control message.
    #[error(
        "peer_timeout ({peer_timeout:?}) must be longer than control_retry_interval ({control_retry_interval:?})"
    )]
    PeerTimeout {
        /// The configured timeout.
        peer_timeout: Duration,
        /// The configured time between two tries.
        control_retry_interval: Duration,
    },
    /// A work request may be larger than a NIC allows.
    #[error("{option} is {requested}, and a NIC of the domain has {limit}; lower {option}")]
    Capacity {
        /// The name of the option in [`Config`].
        option: &'static str,
        /// The configured value.
        requested: u32,
        /// The most that every NIC has.
        limit: u32,
    },
    /// A NIC has less inline data than the vQP itself needs.
    #[error("{user} needs {needed} bytes of inline data, and a NIC of the domain has {limit}; {way_out}")]
    Inline {
        /// What sends the data.
        user: &'static str,
        /// In bytes.
        needed: u32,
        /// The most that every NIC has, in bytes.
        limit: u32,
        /// What to do without.
        way_out: &'static str,
    },
    /// A NIC refused to create an object.
    #[error(transparent)]
    Nic(#[from] Error),
}

impl From<BuildError> for Error {
    fn from(error: BuildError) -> Error {
        let limit = |attribute, requested, limit| Error::Limit { attribute, requested, limit };
        match error {
            BuildError::SendQueue { requested, limit: most } => limit("send queue entries", requested, most),
            BuildError::LogEntries { requested, limit: most } => {
                limit("completion_log.entries", requested.into(), most.into())
            }
            BuildError::RecvQueue { requested, limit: most } => {
                limit("receive queue entries", requested, most)
            }
            BuildError::RdAtomic { requested, limit: most } => {
                limit("rd_atomic", requested.into(), most.into())
            }
            BuildError::Capacity { option, requested, limit: most } => {
                limit(option, requested.into(), most.into())
            }
            BuildError::Retries { option, requested } => limit(option, requested.into(), MAX_RETRIES.into()),
            BuildError::UnorderedWrites { .. } => {
                Error::Unsupported("a completion log: it does not keep the order between work requests")
            }
            BuildError::Inline { needed, limit: most, .. } => limit("inline", needed.into(), most.into()),
            BuildError::Durable => Error::Invalid("durable needs the policy exact"),
            BuildError::Unreliable => Error::Invalid(
                "an unreliable connection needs the policy exact or none, and no completion log",
            ),
            BuildError::Xrc => Error::Invalid(
                "an XRC connection needs the policy exact or none, an XRC domain at its receiving end, and no shared receive queue at the other",
            ),
            BuildError::PreferredRail { .. } => {
                Error::Invalid("failback.rail must be a rail of the domain, under the policy exact")
            }
            BuildError::HeartbeatInterval => Error::Invalid("heartbeat_interval is 0"),
            BuildError::PeerTimeout { .. } => {
                Error::Invalid("peer_timeout must be longer than control_retry_interval")
            }
            BuildError::Nic(error) => error,
        }
    }
}

impl VirtualQpBuilder {
    pub(crate) fn new(domain: &Arc<Domain>) -> VirtualQpBuilder {
        VirtualQpBuilder {
            domain: Arc::clone(domain),
            config: Config::default(),
            secret: None,
            wakeup: Wakeup::None,
            shared: None,
        }
    }

    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Replaces the whole configuration, and with it the effect of all earlier setters.
    pub fn config(self, config: Config) -> VirtualQpBuilder {
        VirtualQpBuilder { config, ..self }
    }

    pub(crate) fn with(mut self, set: impl FnOnce(&mut Config)) -> VirtualQpBuilder {
        set(&mut self.config);
        self
    }

    /// Sets [`Config::service`]. Default: [`Service::Reliable`].
    pub fn service(self, service: Service) -> VirtualQpBuilder {
        self.with(|config| config.service = service)
    }

    /// Sets the secret. By default, the NIC of rail 0 draws one.
    pub fn secret(self, secret: Secret) -> VirtualQpBuilder {
        VirtualQpBuilder { secret: Some(secret), ..self }
    }

    /// Gives the vQP completion channels of its own, on which control messages raise events too. An
    /// end needs these channels if it sleeps until an event arrives ([`VirtualQp::handle_events`]).
    /// The crate `mitra-driver` sets this.
    pub fn own_channels(self, on: bool) -> VirtualQpBuilder {
        VirtualQpBuilder { wakeup: if on { Wakeup::OwnChannels } else { Wakeup::None }, ..self }
    }

    /// Adds the vQP to the poll group of its domain, for an application with many vQPs. Calls of
    /// [`Domain::poll`] wake the vQP when it has something to handle. The application then calls
    /// [`VirtualQp::poll`], which it also calls at [`VirtualQp::next_poll`]. Other calls of
    /// [`VirtualQp::poll`] are not needed. The members of the group share completion queues. Has no
    /// effect together with [`VirtualQpBuilder::own_channels`]: the later call replaces the earlier
    /// one.
    ///
    /// The waker is called by other threads, while they hold locks of the domain. It must not call
    /// a vQP or the domain.
    pub fn waker(self, waker: Waker) -> VirtualQpBuilder {
        VirtualQpBuilder { wakeup: Wakeup::Waker(waker), ..self }
    }

    /// Takes receives from a shared queue. The vQP then chooses [`Config::recv_wrs`] and
    /// [`Config::recv_sges`], and [`VirtualQp::post_recv`] refuses.
    pub fn shared_receive_queue(self, queue: &Arc<SharedReceiveQueue>) -> VirtualQpBuilder {
        self.receive_source(ReceiveSource::Queue(Arc::clone(queue)))
    }

    /// Makes the vQP the receiving end of an XRC connection ([`Service::XrcReceive`]), which takes
    /// receives from the queues of `domain`. The vQP then chooses [`Config::recv_wrs`] and
    /// [`Config::recv_sges`]. [`VirtualQp::post_recv`] and [`VirtualQp::post_send`] refuse.
    pub fn xrc_domain(self, domain: &Arc<XrcDomain>) -> VirtualQpBuilder {
        self.service(Service::XrcReceive).receive_source(ReceiveSource::Xrc(Arc::clone(domain)))
    }

    pub(crate) fn receive_source(self, source: ReceiveSource) -> VirtualQpBuilder {
        VirtualQpBuilder { shared: Some(source), ..self }
    }

    /// Creates the end, unconnected.
    ///
    /// # Errors
    /// A [`BuildError`] for a configuration that no vQP can have, or that exceeds a limit of the
    /// NICs; [`BuildError::Nic`] for any error of a NIC.
    pub fn build(mut self) -> Result<VirtualQp, BuildError> {
        if self.shared.is_some() {
            self.config = with_slots(self.config, &self.domain);
        }
        if self.config.service == Service::XrcSend {
            let limit = self.domain.limits().inline;
            if limit < HEADER_BYTES {
                let (user, way_out) = ("an XRC connection", "use RC, or another NIC");
                return Err(BuildError::Inline { user, needed: HEADER_BYTES, limit, way_out });
            }
            self.config.recv_wrs = 0;
            self.config.inline = self.config.inline.max(HEADER_BYTES);
        }
        let fits = match self.shared {
            Some(ReceiveSource::Xrc(_)) => self.config.service == Service::XrcReceive,
            Some(ReceiveSource::Queue(_)) => !self.config.service.is_xrc(),
            None => self.config.service != Service::XrcReceive,
        };
        if !fits {
            return Err(BuildError::Xrc);
        }
        check(&self.domain, &self.config)?;
        let secret = match self.secret {
            Some(secret) => secret,
            None => Secret::random(&*self.domain.nics()[0].provider)?,
        };
        Ok(VirtualQp::new(self.domain, self.config, secret, self.wakeup, self.shared)?)
    }
}

/// Checks a configuration against itself and the limits of the NICs.
pub(crate) fn check(domain: &Domain, config: &Config) -> Result<(), BuildError> {
    let limits = domain.limits();
    let limit = u64::from(limits.wrs);
    // The headers of XRC wait in the ledger if the queue pair has no room for them.
    let sends = u64::from(config.send_wrs) * u64::from(config.wrs_per_op());
    let recvs = u64::from(config.recv_wrs);
    if sends > limit {
        return Err(BuildError::SendQueue { requested: sends, limit });
    }
    let entries = config.completion_log.and_then(|log| log.entries);
    if let Some(requested) = entries.filter(|&entries| entries > MAX_LOG_ENTRIES) {
        return Err(BuildError::LogEntries { requested, limit: MAX_LOG_ENTRIES });
    }
    let rails = domain.nics().len();
    if let Some(failback) = config.failback
        && (usize::from(failback.rail) >= rails || !config.requires_fence())
    {
        return Err(BuildError::PreferredRail { requested: failback.rail, rails });
    }
    let may_execute_twice = config.policy.may_execute_twice();
    if config.service == Service::Unreliable && (may_execute_twice || config.completion_log.is_some()) {
        return Err(BuildError::Unreliable);
    }
    if config.service.is_xrc() && may_execute_twice {
        return Err(BuildError::Xrc);
    }
    if config.is_durable() && !config.policy.is_exact() {
        return Err(BuildError::Durable);
    }
    if recvs > limit {
        return Err(BuildError::RecvQueue { requested: recvs, limit });
    }
    for (option, requested, limit) in [
        ("send_sges", config.send_sges, limits.sges),
        ("recv_sges", config.recv_sges, limits.sges),
        ("inline", config.inline, limits.inline),
    ] {
        if requested > limit {
            return Err(BuildError::Capacity { option, requested, limit });
        }
    }
    let nics = || domain.nics().iter().map(|nic| nic.provider.attr());
    let rd_atomic = nics().map(|nic| nic.limits.rd_atomic).fold(MAX_SAVED as u8, u8::min);
    if !(1..=rd_atomic).contains(&config.rd_atomic) {
        return Err(BuildError::RdAtomic { requested: config.rd_atomic, limit: rd_atomic });
    }
    if config.completion_log.is_some()
        && let Some(nic) = nics().find(|nic| !nic.capabilities.write_order)
    {
        return Err(BuildError::UnorderedWrites { nic: nic.name.clone() });
    }
    if config.completion_log.is_some() && limits.inline < LOG_ENTRY_LEN {
        let (user, way_out) = ("a completion log", "switch the log off, or use another NIC");
        return Err(BuildError::Inline { user, needed: LOG_ENTRY_LEN, limit: limits.inline, way_out });
    }
    for (option, requested) in [("retry_cnt", config.detector.retry_cnt), ("rnr_retry", config.rnr_retry)] {
        if requested > MAX_RETRIES {
            return Err(BuildError::Retries { option, requested });
        }
    }
    if config.detector.max_missed_heartbeats > 0 && config.detector.heartbeat_interval.is_zero() {
        return Err(BuildError::HeartbeatInterval);
    }
    let (peer_timeout, control_retry_interval) = (config.peer_timeout, config.control_retry_interval);
    if peer_timeout <= control_retry_interval {
        return Err(BuildError::PeerTimeout { peer_timeout, control_retry_interval });
    }
    Ok(())
}
