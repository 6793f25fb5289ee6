use mitra_failover::CloseReason;
use mitra_verbs::{Error, WcStatus};

use crate::request::{Outcome, Request};

/// The error of a path, after which an [`Execution`](crate::Execution) cannot go on by itself.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// The RC queue pair failed. The peer's NIC may still execute its requests.
    #[error(
        "the queue pair failed ({0}); destroy both of its ends or reset the NIC, then call fenced() and go on over a new path"
    )]
    Lost(WcStatus),
    /// The virtual queue pair closed before it could decide the requests.
    #[error(
        "the virtual queue pair closed: {0}; make sure that its peer executes nothing more from it, then call fenced() and go on over a new path"
    )]
    Closed(CloseReason),
    /// The peer's NIC, or this end's, refused a request.
    #[error(
        "a request was refused ({0}); correct the object's address, its key and the peer's access rights"
    )]
    Refused(WcStatus),
    /// A verb failed.
    #[error("a verb failed: {0}")]
    Verb(#[from] Error),
}

/// A queue pair that executes the requests of one operation at a time.
pub trait Path {
    /// Posts requests in order. The requests before must have ended.
    ///
    /// # Errors
    /// A [`PathError`]. None of the requests was posted then.
    fn post(&mut self, requests: &[Request]) -> Result<(), PathError>;

    /// Drives the queue pair, and stores the outcomes of the posted requests as they become known. Returns whether all are known.
    ///
    /// # Errors
    /// A [`PathError`]. The outcomes that are still `None` stay unknown until the path is fenced.
    fn poll(&mut self, outcomes: &mut [Option<Outcome>]) -> Result<bool, PathError>;
}
