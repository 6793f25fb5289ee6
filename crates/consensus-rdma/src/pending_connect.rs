//! How a process calls a memory or another process: one half of a connection, and who answers with the other.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use mitra_consensus::ProcessId;
use mitra_failover::Domain;
use mitra_verbs::Error;

use crate::handshake::{Hello, Token, VERSION, Welcome, knock};
use crate::link::Link;

/// How long to wait before a door is knocked at again.
pub(crate) const AGAIN: Duration = Duration::from_millis(50);

/// Who a process is, for those that it connects to.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) me: ProcessId,
    pub(crate) domain: Arc<Domain>,
    pub(crate) failover: mitra_failover::Config,
    pub(crate) token: Token,
    pub(crate) life: u64,
}

impl Identity {
    /// One end of a connection.
    pub(crate) fn link(&self, longest: usize) -> Result<Link, Error> {
        Link::new(&self.domain, self.failover, longest)
    }

    /// Asks somebody to be its other end.
    pub(crate) fn call(&self, at: SocketAddr, link: Link, wait: Duration) -> Result<Call, Error> {
        let hello =
            Hello { version: VERSION, from: self.me, token: self.token, life: self.life, info: link.info()? };
        Ok(Call { link, answer: knock(at, hello, wait) })
    }
}

/// A connection that is being made.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) link: Link,
    pub(crate) answer: Receiver<io::Result<Welcome>>,
}
