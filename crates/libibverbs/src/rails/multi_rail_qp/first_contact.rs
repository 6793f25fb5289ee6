//! The first contact of a UC queue pair with its peer.
//!
//! The virtual queue pair sends nothing before it has heard the peer, because a message on a rail
//! that is down at the peer would be lost. A peer whose program has not connected its queue pair is
//! not heard either. On a NIC, a message to such a peer is lost at once. While messages wait, this
//! end therefore asks the peer's device whether the peer's queue pair is connected. If the queue
//! pair is not connected, the messages that were posted before the question are sent and lost, as
//! on a NIC. If the device does not answer, messages no longer wait.

use std::task::Poll;
use std::time::{Duration, Instant};

use crate::rails::rendezvous::Query;

/// The time in which a peer that is connected must be heard. It is long, because a process on a
/// busy machine may not run for a while.
const HEARING_TIMEOUT: Duration = Duration::from_secs(60);

/// The wait of deferred requests for the first message from the peer.
#[derive(Default)]
pub(super) struct FirstContact {
    knowledge: Knowledge,
    /// The number of oldest deferred requests that wait no longer.
    admitted: usize,
}

#[derive(Default)]
enum Knowledge {
    /// Nothing is known, and no question is outstanding.
    #[default]
    None,
    /// The peer's device is asked. `before` is the number of oldest deferred requests that were
    /// posted before the question.
    Asked { query: Query, before: usize },
    /// The peer is connected, so it will be heard.
    Connected { since: Instant },
    /// The peer's device does not answer, or the connected peer was not heard within
    /// `HEARING_TIMEOUT`.
    Silent,
}

impl FirstContact {
    /// Returns how many of the oldest of the `deferred` requests wait no longer. Asks the peer's
    /// device by `ask` if that is due. Never blocks.
    ///
    /// # Errors
    /// The error of `ask`.
    pub(super) fn admit<E>(
        &mut self,
        deferred: usize,
        ask: impl FnOnce() -> Result<Query, E>,
    ) -> Result<usize, E> {
        match &mut self.knowledge {
            Knowledge::Asked { query, before } => match query.poll() {
                Poll::Pending => {}
                Poll::Ready(Ok(Some(_))) => self.knowledge = Knowledge::Connected { since: Instant::now() },
                Poll::Ready(Ok(None)) => {
                    self.admitted = *before;
                    self.knowledge = Knowledge::None;
                }
                Poll::Ready(Err(_)) => self.knowledge = Knowledge::Silent,
            },
            Knowledge::Connected { since } if since.elapsed() > HEARING_TIMEOUT => {
                self.knowledge = Knowledge::Silent;
            }
            Knowledge::None if self.admitted == 0 => {
                self.knowledge = Knowledge::Asked { query: ask()?, before: deferred };
            }
            _ => {}
        }
        Ok(if self.is_silent() { deferred } else { self.admitted })
    }

    /// Records that the `n` oldest deferred requests were posted.
    pub(super) fn on_posted(&mut self, n: usize) {
        self.admitted = self.admitted.saturating_sub(n);
        if let Knowledge::Asked { before, .. } = &mut self.knowledge {
            *before = before.saturating_sub(n);
        }
    }

    /// Returns whether the peer's device does not answer. Such a device is not asked for region
    /// keys either.
    pub(super) fn is_silent(&self) -> bool {
        matches!(self.knowledge, Knowledge::Silent)
    }
}
