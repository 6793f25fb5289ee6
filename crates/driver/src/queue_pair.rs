//! The queue pair of a connection: a virtual queue pair, or a bare RC queue pair.

mod rc;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use mitra_failover::{CloseReason, Config, ConnectInfo, Domain, RemoteRegion, VirtualQp, WritePolicy};
use mitra_verbs::{Error, RecvWr, Result, SendWr, Time, WcStatus};
use serde::{Deserialize, Serialize};

use self::rc::{RcInfo, RcQp};

/// The kind of a queue pair. Both ends need the same kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum QpKind {
    /// Virtual queue pairs.
    #[default]
    Virtual,
    /// RC queue pairs on rail 0: the baseline of benchmarks. A failure ends the connection. RC
    /// queue pairs use only the sizes, `rd_atomic` and the detector's retransmission from the
    /// failover configuration.
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

/// The reason for which a connection has ended for good.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConnectionError {
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

/// The queue pair of a connection, virtual or bare RC. The drop destroys the queue pair.
#[derive(Debug)]
pub struct QueuePair(Qp);

#[derive(Debug)]
enum Qp {
    Virtual(Box<VirtualQp>),
    Rc(RcQp),
}

impl QueuePair {
    /// Creates an unconnected end for a caller that polls.
    pub(crate) fn new(domain: &Arc<Domain>, kind: QpKind, config: &Config) -> Result<QueuePair> {
        QueuePair::with_channels(domain, kind, config, false)
    }

    /// Wraps a virtual queue pair.
    pub(crate) fn over(vqp: VirtualQp) -> QueuePair {
        QueuePair(Qp::Virtual(Box::new(vqp)))
    }

    /// Creates an unconnected end that posts nothing, and waits for events if the domain has
    /// completion channels.
    ///
    /// # Errors
    /// Any error of a NIC.
    pub fn passive(domain: &Arc<Domain>, kind: QpKind, config: &Config) -> Result<QueuePair> {
        let has_channels = domain.nics().iter().any(|nic| nic.channel.is_some());
        QueuePair::with_channels(domain, kind, config, has_channels)
    }

    fn with_channels(
        domain: &Arc<Domain>,
        kind: QpKind,
        config: &Config,
        own_channels: bool,
    ) -> Result<QueuePair> {
        let config = &config.with_available_inline(&domain.limits());
        Ok(QueuePair(match kind {
            QpKind::Virtual => {
                let builder = VirtualQp::builder(domain).config(*config).own_channels(own_channels);
                Qp::Virtual(Box::new(builder.build()?))
            }
            QpKind::Rc => Qp::Rc(RcQp::new(domain, config)?),
        }))
    }

    /// Returns the connection data for the peer.
    ///
    /// # Errors
    /// Any error of a NIC.
    pub fn info(&self) -> Result<QpInfo> {
        Ok(match &self.0 {
            Qp::Virtual(vqp) => QpInfo::Virtual(vqp.local_info().encode()),
            Qp::Rc(qp) => QpInfo::Rc(qp.info()?),
        })
    }

    /// Connects to the peer. Returns false if the peer's end is of another kind.
    ///
    /// # Errors
    /// Any error of a NIC; the error of [`ConnectInfo::decode`] or [`VirtualQp::connect`] if the
    /// peer's data is malformed or its configuration differs.
    pub fn connect(&mut self, peer: &QpInfo) -> Result<bool> {
        match (&mut self.0, peer) {
            (Qp::Virtual(vqp), QpInfo::Virtual(info)) => vqp.connect(&ConnectInfo::decode(info)?)?,
            (Qp::Rc(qp), QpInfo::Rc(info)) => qp.connect(info)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    pub(crate) fn import(&mut self, region: &RemoteRegion) -> Result<()> {
        match &mut self.0 {
            Qp::Virtual(vqp) => vqp.import(region),
            Qp::Rc(_) => Ok(()),
        }
    }

    /// Posts all requests as one list, or none. Leaves the list empty.
    pub(crate) fn post(&mut self, wrs: &mut Vec<(SendWr, WritePolicy)>) -> Result<()> {
        let posted = match &mut self.0 {
            // The vQP sends a single request before it records it.
            Qp::Virtual(vqp) if wrs.len() == 1 => {
                let Some((wr, policy)) = wrs.pop() else { return Ok(()) };
                return vqp.post_send_with(wr, policy).map(drop);
            }
            Qp::Virtual(vqp) => vqp.post_send_all_with(wrs.drain(..)),
            Qp::Rc(qp) => qp.post(wrs.drain(..).map(|(wr, _)| wr)),
        };
        posted.map_err(|refused| refused.error)
    }

    pub(crate) fn post_recv(&mut self, wr: RecvWr) -> Result<()> {
        match &mut self.0 {
            Qp::Virtual(vqp) => vqp.post_recv(wr),
            Qp::Rc(_) => {
                Err(Error::Invalid("a connection over RC has no messages; use a virtual queue pair"))
            }
        }
    }

    /// Polls a virtual queue pair with `drive`. Returns the number of successful requests of an RC
    /// queue pair, which have no other completion, and whether the queue pair works.
    pub(crate) fn poll(
        &mut self,
        drive: impl FnOnce(&mut VirtualQp) -> usize,
    ) -> (usize, Result<(), ConnectionError>) {
        match &mut self.0 {
            Qp::Virtual(vqp) => {
                drive(vqp);
                (0, open(vqp))
            }
            Qp::Rc(qp) => qp.poll(),
        }
    }

    pub(crate) fn progress(&mut self) {
        if let Qp::Virtual(vqp) = &mut self.0 {
            vqp.progress();
        }
    }

    /// Handles the events of a passive end.
    ///
    /// # Errors
    /// A [`ConnectionError`]: the connection has ended.
    pub fn handle_events(&mut self) -> Result<(), ConnectionError> {
        match &mut self.0 {
            Qp::Virtual(vqp) => {
                vqp.handle_events()?;
                open(vqp)
            }
            Qp::Rc(_) => Ok(()),
        }
    }

    pub(crate) fn wake_for_sends(&mut self, on: bool) {
        if let Qp::Virtual(vqp) = &mut self.0 {
            vqp.wake_for_sends(on);
        }
    }

    /// The descriptors that are readable when a passive end has events.
    pub fn event_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.vqp().into_iter().flat_map(|vqp| vqp.event_channels()).map(|channel| channel.as_fd())
    }

    /// The time at which [`QueuePair::handle_events`] is due even if no event arrives.
    pub fn event_timeout(&self) -> Option<Time> {
        self.vqp()?.event_timeout()
    }

    /// Returns whether requests can be posted: the vQP is open and not halted.
    pub(crate) fn may_post(&self) -> bool {
        self.vqp().is_none_or(|vqp| !vqp.is_halted() && vqp.close_reason().is_none())
    }

    /// Lets requests be posted again. All requests must have ended.
    pub(crate) fn resume(&mut self) {
        if let Qp::Virtual(vqp) = &mut self.0
            && vqp.is_halted()
        {
            vqp.resume();
        }
    }

    pub(crate) fn arm(&self) {
        let _ = match &self.0 {
            Qp::Virtual(vqp) => vqp.arm(),
            Qp::Rc(qp) => qp.arm(),
        };
    }

    pub(crate) fn vqp(&self) -> Option<&VirtualQp> {
        match &self.0 {
            Qp::Virtual(vqp) => Some(vqp),
            Qp::Rc(_) => None,
        }
    }

    /// Destroys the end. When `close` returns, the peer can no longer access memory through it. Has
    /// no effect the second time.
    ///
    /// # Errors
    /// The first error of a NIC.
    pub fn close(&mut self) -> Result<()> {
        match &mut self.0 {
            Qp::Virtual(vqp) => vqp.close(),
            Qp::Rc(qp) => qp.close(),
        }
    }
}

fn open(vqp: &VirtualQp) -> Result<(), ConnectionError> {
    vqp.close_reason().map_or(Ok(()), |reason| Err(ConnectionError::Closed(reason)))
}
