//! A client: its virtual queue pair, and the scripts that it runs over it.

use core::fmt;
use std::collections::VecDeque;

use mitra_failover::VirtualQp;
use mitra_objects::{PathError, VqpPath, VqpSession};

/// A client's operations on one object.
pub(super) trait Script {
    /// Drives the current operation, or begins the next one. Returns whether all have ended.
    fn poll(&mut self, path: &mut VqpPath<'_>) -> Result<bool, PathError>;
    /// The number of operations that have begun.
    fn begun(&self) -> u64;
}

/// A client.
pub(super) struct Client {
    vqp: VirtualQp,
    session: VqpSession,
    scripts: VecDeque<Box<dyn Script>>,
    /// The operations that the ended scripts began.
    begun: u64,
    /// The error that ended the path. The operation under way is undecided.
    error: Option<PathError>,
}

impl Client {
    pub(super) fn new(vqp: VirtualQp, scripts: Vec<Box<dyn Script>>) -> Client {
        let session = VqpSession::new(vqp.domain(), 0).expect("the NICs have a free region");
        Client { vqp, session, scripts: scripts.into(), begun: 0, error: None }
    }

    /// Runs one turn. Returns whether a script has ended.
    pub(super) fn step(&mut self) -> bool {
        if self.is_done() {
            self.vqp.progress();
            return false;
        }
        let Some(script) = self.scripts.front_mut() else { return false };
        match script.poll(&mut self.session.over(&mut self.vqp)) {
            Ok(ended) => {
                if ended {
                    self.begun += self.scripts.pop_front().map_or(0, |script| script.begun());
                }
                ended
            }
            Err(error) => {
                self.error = Some(error);
                false
            }
        }
    }

    /// Whether all scripts have ended, or the path has.
    pub(super) fn is_done(&self) -> bool {
        self.error.is_some() || self.scripts.is_empty()
    }

    /// The number of operations that have begun.
    pub(super) fn begun(&self) -> u64 {
        self.begun + self.scripts.iter().map(|script| script.begun()).sum::<u64>()
    }

    /// The error that ended the path, if it is another one than the end of the virtual queue pair.
    pub(super) fn refusal(&self) -> Option<&PathError> {
        self.error.as_ref().filter(|error| !matches!(error, PathError::Closed(_)))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("vqp", &self.vqp)
            .field("scripts", &self.scripts.len())
            .field("begun", &self.begun())
            .field("error", &self.error)
            .finish()
    }
}
