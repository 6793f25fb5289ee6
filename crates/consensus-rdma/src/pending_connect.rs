//! An outgoing connection attempt: the local end, the identity that the process presents, and the
//! pending answer of the acceptor.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use mitra_consensus::ProcessId;
use mitra_consensus_memory::{Hello, Token, VERSION, Welcome};
use mitra_failover::Domain;
use mitra_handshake::dial;
use mitra_verbs::Error;

use crate::link::Link;
use crate::link_poller::LinkPoller;

pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// The identity that a process presents to peers and memory nodes, and the domain and configuration
/// that its connections use.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) process: ProcessId,
    pub(crate) domain: Arc<Domain>,
    pub(crate) failover: mitra_failover::Config,
    pub(crate) token: Token,
    pub(crate) incarnation: u64,
    pub(crate) poller: LinkPoller,
}

impl Identity {
    pub(crate) fn new_link(
        &self,
        key: u8,
        max_message_bytes: usize,
        operation_bytes: usize,
    ) -> Result<Link, Error> {
        Link::new(&self.domain, (&self.poller, key), self.failover, max_message_bytes, operation_bytes)
    }

    /// Starts a handshake that connects `link` to the acceptor at `address`. The handshake begins
    /// after `delay`, and its end wakes the node.
    pub(crate) fn connect(
        &self,
        address: SocketAddr,
        link: Link,
        delay: Duration,
    ) -> Result<PendingConnect, Error> {
        let hello = Hello {
            version: VERSION,
            from: self.process,
            token: self.token,
            incarnation: self.incarnation,
            info: link.info()?,
        };
        let poller = self.poller.clone();
        Ok(PendingConnect { link, response: dial(address, hello, delay, move || poller.wake()) })
    }
}

#[derive(Debug)]
pub(crate) struct PendingConnect {
    pub(crate) link: Link,
    pub(crate) response: Receiver<io::Result<Welcome>>,
}
