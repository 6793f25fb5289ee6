//! What executes the requests of a queue pair of the program over several rails: a virtual queue pair, or a queue pair with a shared backup.

mod backed;
mod qp_number;
pub(super) mod registry;

use mitra_failover::{CloseReason, Completion, Config, ConnectInfo, FailoverReport, RemoteRegion, VirtualQp};
use mitra_verbs::{Access, AsyncEvent, Error, Gid, PostError, RecvWr, Result, RnrTimer, SendWr};

pub(super) use backed::BackedConnection;
pub(super) use qp_number::QpNumber;

const NEEDS_OWN_BACKUPS: Error = Error::Unsupported(
    "the state SQD with --shared-backups; run both ends without that option, or wait for the completions instead",
);

/// A connection over several rails. Its methods are those of [`VirtualQp`].
pub(super) enum Connection {
    Virtual(Box<VirtualQp>),
    Backed(Box<BackedConnection>),
}

/// Calls a method that both have.
macro_rules! of_both {
    ($connection:expr, $qp:ident => $call:expr) => {
        match $connection {
            Connection::Virtual($qp) => $call,
            Connection::Backed($qp) => $call,
        }
    };
}

impl Connection {
    /// Returns the virtual queue pair.
    ///
    /// # Errors
    /// `Invalid` if there is a shared backup instead. The caller has checked that there is none.
    pub(super) fn virtual_qp(&mut self) -> Result<&mut VirtualQp> {
        match self {
            Connection::Virtual(vqp) => Ok(vqp),
            Connection::Backed(_) => Err(Error::Invalid("the queue pair has a shared backup")),
        }
    }

    /// Returns the queue pair with a shared backup, if it is one.
    pub(super) fn backed(&mut self) -> Option<&mut BackedConnection> {
        match self {
            Connection::Virtual(_) => None,
            Connection::Backed(backed) => Some(backed),
        }
    }

    pub(super) fn config(&self) -> Config {
        of_both!(self, qp => qp.config())
    }

    /// Returns the data with which a peer connects its virtual queue pair.
    ///
    /// # Errors
    /// `Invalid` if there is a shared backup instead.
    pub(super) fn local_info(&self) -> Result<ConnectInfo> {
        match self {
            Connection::Virtual(vqp) => vqp.local_info(),
            Connection::Backed(_) => Err(Error::Invalid("the queue pair has a shared backup")),
        }
    }

    /// Returns the answer to a peer's query for connection data.
    ///
    /// # Errors
    /// Those of [`VirtualQp::local_info`].
    pub(super) fn announcement(&self) -> Result<Vec<u8>> {
        match self {
            Connection::Virtual(vqp) => vqp.local_info().map(|info| info.encode()),
            Connection::Backed(backed) => Ok(backed.announcement().encode()),
        }
    }

    pub(super) fn close_reason(&self) -> Option<CloseReason> {
        of_both!(self, qp => qp.close_reason())
    }

    pub(super) fn peer_gids(&self) -> Vec<Gid> {
        match self {
            Connection::Virtual(vqp) => vqp.peer_gids().collect(),
            Connection::Backed(backed) => backed.peer_gids(),
        }
    }

    /// Returns whether the peer of a UC queue pair was heard. That of another one does not matter.
    pub(super) fn is_peer_heard(&self) -> bool {
        match self {
            Connection::Virtual(vqp) => vqp.is_peer_heard(),
            Connection::Backed(_) => true,
        }
    }

    pub(super) fn send_to_unheard_peer(&mut self) {
        if let Connection::Virtual(vqp) = self {
            vqp.send_to_unheard_peer();
        }
    }

    pub(super) fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        of_both!(self, qp => qp.poll(out))
    }

    pub(super) fn progress(&mut self) {
        of_both!(self, qp => qp.progress());
    }

    pub(super) fn arm(&self) -> Result<()> {
        of_both!(self, qp => qp.arm())
    }

    pub(super) fn shutdown(&mut self) {
        of_both!(self, qp => qp.shutdown());
    }

    pub(super) fn release_windows(&mut self) {
        if let Connection::Virtual(vqp) = self {
            vqp.release_windows();
        }
    }

    pub(super) fn close(&mut self) -> Result<()> {
        match self {
            Connection::Virtual(vqp) => vqp.close(),
            Connection::Backed(backed) => {
                backed.close();
                Ok(())
            }
        }
    }

    pub(super) fn set_access(&mut self, access: Access) -> Result<()> {
        of_both!(self, qp => qp.set_access(access))
    }

    /// Connects a virtual queue pair for receiving. One with a shared backup connects by [`BackedConnection::connect`].
    ///
    /// # Errors
    /// Those of [`VirtualQp::modify_to_rtr`].
    pub(super) fn modify_to_rtr(&mut self, peer: &ConnectInfo, min_rnr_timer: RnrTimer) -> Result<()> {
        self.virtual_qp()?.modify_to_rtr(peer, min_rnr_timer)
    }

    pub(super) fn modify_to_rts(&mut self, rnr_retry: u8) -> Result<()> {
        of_both!(self, qp => qp.modify_to_rts(rnr_retry))
    }

    /// Returns a connection in RESET with the same number, which replaces this one.
    ///
    /// # Errors
    /// Those of [`VirtualQp::reset_replacement`].
    pub(super) fn reset_replacement(&mut self) -> Result<Connection> {
        match self {
            Connection::Virtual(vqp) => Ok(Connection::Virtual(Box::new(vqp.reset_replacement()?))),
            Connection::Backed(backed) => {
                backed.shutdown();
                Ok(Connection::Backed(Box::new(backed.replacement())))
            }
        }
    }

    /// Returns whether the state SQD is refused.
    ///
    /// # Errors
    /// `Unsupported` with a shared backup.
    pub(super) fn check_drain(&self) -> Result<()> {
        match self {
            Connection::Virtual(_) => Ok(()),
            Connection::Backed(_) => Err(NEEDS_OWN_BACKUPS),
        }
    }

    pub(super) fn drain_sends(&mut self) -> Result<()> {
        self.virtual_qp()?.drain_sends()
    }

    pub(super) fn restart_sends(&mut self) -> Result<()> {
        self.virtual_qp()?.restart_sends()
    }

    pub(super) fn are_sends_drained(&mut self) -> bool {
        self.virtual_qp().is_ok_and(VirtualQp::are_sends_drained)
    }

    pub(super) fn take_established(&mut self) -> bool {
        of_both!(self, qp => qp.take_established())
    }

    pub(super) fn resume(&mut self) {
        of_both!(self, qp => qp.resume());
    }

    pub(super) fn qp_error_event(&self) -> Option<AsyncEvent> {
        of_both!(self, qp => qp.qp_error_event())
    }

    /// Returns the report of the last failover. The registry reports those of shared backups.
    pub(super) fn last_failover(&self) -> Option<FailoverReport> {
        match self {
            Connection::Virtual(vqp) => vqp.last_failover(),
            Connection::Backed(_) => None,
        }
    }

    pub(super) fn waiting_messages(&self) -> usize {
        of_both!(self, qp => qp.waiting_messages())
    }

    pub(super) fn outstanding(&self) -> usize {
        of_both!(self, qp => qp.outstanding())
    }

    pub(super) fn import(&mut self, region: &RemoteRegion) -> Result<()> {
        of_both!(self, qp => qp.import(region))
    }

    pub(super) fn check_send(&self, wr: &SendWr) -> Result<()> {
        of_both!(self, qp => qp.check_send(wr))
    }

    pub(super) fn post_send_all(&mut self, wrs: impl IntoIterator<Item = SendWr>) -> Result<(), PostError> {
        of_both!(self, qp => qp.post_send_all(wrs))
    }

    pub(super) fn post_recv(&mut self, wr: RecvWr) -> Result<()> {
        of_both!(self, qp => qp.post_recv(wr))
    }
}
