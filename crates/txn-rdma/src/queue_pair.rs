//! One end of a connection: a virtual queue pair, or a bare RC queue pair.

mod rc;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use mitra_failover::{
    CloseReason, Completion, Config, ConnectInfo, Domain, FailoverReport, Outcome, RemoteRegion,
    UnresolvedError, VirtualQp, WritePolicy,
};
use mitra_verbs::{Ended, Error, SendWr, Time, WcStatus};
use serde::{Deserialize, Serialize};

use self::rc::{RcInfo, RcQp};

/// The kind of the queue pairs between a coordinator and a memory node. Both ends need the same
/// kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum QpKind {
    /// Virtual queue pairs.
    #[default]
    Virtual,
    /// RC queue pairs on rail 0: the baseline of benchmarks. A failure ends the life of the
    /// coordinator. RC queue pairs use only the sizes, `rd_atomic` and the detector's
    /// retransmission from the failover configuration.
    Rc,
}

/// The connection data of an end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum QpInfo {
    /// An encoded [`ConnectInfo`].
    Virtual(Vec<u8>),
    /// The queue pair on rail 0.
    Rc(RcInfo),
}

/// Why a coordinator has lost its connection to a memory node for good.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The virtual queue pair has closed.
    #[error("the virtual queue pair closed: {}", .0.cause())]
    Closed(CloseReason),
    /// A request failed.
    #[error("a request failed: {0}")]
    Request(WcStatus),
    /// A NIC refused a verb.
    #[error("the NIC: {0}")]
    Nic(#[from] Error),
}

/// One end of a connection. Requests end in the order in which they were posted.
#[derive(Debug)]
pub(crate) enum QueuePair {
    Virtual { vqp: Box<VirtualQp>, completions: Vec<Completion> },
    Rc(RcQp),
}

impl QueuePair {
    /// Creates an unconnected end for a caller that polls.
    pub(crate) fn new(domain: &Arc<Domain>, kind: QpKind, config: &Config) -> Result<QueuePair, Error> {
        QueuePair::with_channels(domain, kind, config, false)
    }

    /// Creates an unconnected end that posts nothing, and waits for events if the domain has
    /// completion channels.
    pub(crate) fn passive(domain: &Arc<Domain>, kind: QpKind, config: &Config) -> Result<QueuePair, Error> {
        let has_channels = domain.nics().iter().any(|nic| nic.channel.is_some());
        QueuePair::with_channels(domain, kind, config, has_channels)
    }

    fn with_channels(
        domain: &Arc<Domain>,
        kind: QpKind,
        config: &Config,
        own_channels: bool,
    ) -> Result<QueuePair, Error> {
        Ok(match kind {
            QpKind::Virtual => {
                let builder = VirtualQp::builder(domain).config(*config).own_channels(own_channels);
                QueuePair::Virtual { vqp: Box::new(builder.build()?), completions: Vec::new() }
            }
            QpKind::Rc => QueuePair::Rc(RcQp::new(domain, config)?),
        })
    }

    pub(crate) fn info(&self) -> Result<QpInfo, Error> {
        Ok(match self {
            QueuePair::Virtual { vqp, .. } => QpInfo::Virtual(vqp.local_info().encode()),
            QueuePair::Rc(qp) => QpInfo::Rc(qp.info()?),
        })
    }

    /// Connects to the peer. Returns false if the peer's end is of another kind.
    pub(crate) fn connect(&mut self, peer: &QpInfo) -> Result<bool, Error> {
        match (self, peer) {
            (QueuePair::Virtual { vqp, .. }, QpInfo::Virtual(info)) => {
                vqp.connect(&ConnectInfo::decode(info)?)?;
            }
            (QueuePair::Rc(qp), QpInfo::Rc(info)) => qp.connect(info)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Makes the memory of the peer known, so that requests can name it.
    pub(crate) fn import(&mut self, region: &RemoteRegion) -> Result<(), Error> {
        match self {
            QueuePair::Virtual { vqp, .. } => vqp.import(region),
            QueuePair::Rc(_) => Ok(()),
        }
    }

    /// Posts all requests, and leaves the list empty.
    pub(crate) fn post(&mut self, wrs: &mut Vec<(SendWr, WritePolicy)>) -> Result<(), LinkError> {
        let posted = match self {
            QueuePair::Virtual { vqp, .. } => match vqp.close_reason() {
                Some(reason) => return Err(LinkError::Closed(reason)),
                None => vqp.post_send_all_with(wrs.drain(..)),
            },
            QueuePair::Rc(qp) => qp.post(wrs.drain(..).map(|(wr, _)| wr)),
        };
        posted.map_err(|refused| LinkError::Nic(refused.error))
    }

    /// Drives the connection, and appends the ends of requests.
    pub(crate) fn poll(&mut self, out: &mut Vec<Ended>) -> Result<(), LinkError> {
        match self {
            QueuePair::Virtual { vqp, completions } => {
                vqp.poll(completions);
                for completion in completions.drain(..) {
                    out.push(ended(completion.outcome)?);
                }
                vqp.close_reason().map_or(Ok(()), |reason| Err(LinkError::Closed(reason)))
            }
            QueuePair::Rc(qp) => qp.poll(out),
        }
    }

    /// Handles the events of a passive end.
    pub(crate) fn handle_events(&mut self) -> Result<(), LinkError> {
        match self {
            QueuePair::Virtual { vqp, .. } => {
                vqp.handle_events()?;
                vqp.close_reason().map_or(Ok(()), |reason| Err(LinkError::Closed(reason)))
            }
            QueuePair::Rc(_) => Ok(()),
        }
    }

    /// The descriptors that are readable when a passive end has events.
    pub(crate) fn event_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let vqp = match self {
            QueuePair::Virtual { vqp, .. } => Some(vqp),
            QueuePair::Rc(_) => None,
        };
        vqp.into_iter().flat_map(|vqp| vqp.event_channels()).map(|channel| channel.as_fd())
    }

    /// The time at which [`QueuePair::handle_events`] is due even if no event arrives.
    pub(crate) fn event_timeout(&self) -> Option<Time> {
        match self {
            QueuePair::Virtual { vqp, .. } => vqp.event_timeout(),
            QueuePair::Rc(_) => None,
        }
    }

    /// Returns whether nothing may be posted before [`QueuePair::resume`].
    pub(crate) fn is_halted(&self) -> bool {
        matches!(self, QueuePair::Virtual { vqp, .. } if vqp.is_halted())
    }

    /// Lets requests be posted again. All requests must have ended.
    pub(crate) fn resume(&mut self) {
        if let QueuePair::Virtual { vqp, .. } = self {
            vqp.resume();
        }
    }

    /// Requests an event at the next completion. Fails only on a failed NIC, which the next poll
    /// reports.
    pub(crate) fn arm(&self) {
        let _ = match self {
            QueuePair::Virtual { vqp, .. } => vqp.arm(),
            QueuePair::Rc(qp) => qp.arm(),
        };
    }

    pub(crate) fn last_failover(&self) -> Option<FailoverReport> {
        match self {
            QueuePair::Virtual { vqp, .. } => vqp.last_failover(),
            QueuePair::Rc(_) => None,
        }
    }

    /// Destroys the end. Has no effect the second time.
    pub(crate) fn close(&mut self) -> Result<(), Error> {
        match self {
            QueuePair::Virtual { vqp, .. } => vqp.close(),
            QueuePair::Rc(qp) => qp.close(),
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let _ = self.close(); // nobody can handle the error of a NIC
    }
}

fn ended(outcome: Outcome) -> Result<Ended, LinkError> {
    match outcome {
        Outcome::Failed(status) if status != WcStatus::Flushed => Err(LinkError::Request(status)),
        Outcome::Unresolved(UnresolvedError::Undecided(reason)) => Err(LinkError::Closed(reason)),
        outcome => Ok(outcome.ended()),
    }
}
