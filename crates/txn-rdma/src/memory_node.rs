//! A memory node: lends its memory to coordinators, which read and write it by one-sided operations.
//!
//! The processor of a memory node accepts coordinators, ends lives, and takes part in failovers. It touches
//! no transaction.

mod node;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mitra_failover::Domain;
use mitra_handshake::{Acceptor, Poller};
use mitra_txn::Life;
use mitra_verbs::Buffer;

pub use self::node::{Node, NodeConfig, StartError};
use crate::hello::{Answer, Hello};

/// The longest time between two polls. A failover raises no event, and the node takes part in it when it polls.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A memory node. It makes progress only inside [`MemoryNode::poll`] and [`MemoryNode::serve_for`]. One-sided
/// operations of coordinators do not depend on these calls.
#[derive(Debug)]
pub struct MemoryNode {
    node: Node,
    acceptor: Acceptor<Hello>,
    poller: Poller,
}

impl MemoryNode {
    /// Creates a memory node, whose memory is zero, and accepts coordinators on `listener`.
    ///
    /// Virtual queue pairs with the policy exact share atomics ([`Domain::share_atomics`]), so that
    /// compare-and-swaps of different coordinators exclude each other also after a failover. With the other
    /// policies, which are baselines, they do not.
    ///
    /// # Errors
    /// A [`StartError`].
    pub fn new(
        domain: Arc<Domain>,
        listener: TcpListener,
        config: NodeConfig,
    ) -> Result<MemoryNode, StartError> {
        let poller = Poller::new(&domain)?;
        let waker = poller.waker();
        let node = Node::new(domain, config)?;
        Ok(MemoryNode { node, acceptor: Acceptor::start(listener, move || waker.wake())?, poller })
    }

    /// Returns the address at which the node accepts coordinators.
    pub fn address(&self) -> SocketAddr {
        self.acceptor.address()
    }

    /// Returns the memory, for checks while no coordinator uses it.
    pub fn memory(&self) -> &Arc<Buffer> {
        self.node.memory()
    }

    /// Returns the lives that are connected.
    pub fn lives(&self) -> impl Iterator<Item = Life> {
        self.node.lives()
    }

    /// Answers coordinators, drives all connections, and ends lives whose connection has closed. Call it
    /// about every millisecond.
    pub fn poll(&mut self) {
        while let Some(incoming) = self.acceptor.next() {
            let answer = self.node.answer(&incoming.hello).unwrap_or_else(Answer::Refused);
            // A coordinator that is gone is silent, and its life ends as any other.
            let _ = incoming.accept(&answer);
        }
        self.node.poll();
    }

    /// Blocks until a coordinator dials, for at most `timeout`.
    pub fn wait(&self, timeout: Duration) {
        self.poller.wait(timeout);
    }

    /// Serves until `duration` has passed. The processor is idle while nothing happens, but for a poll every
    /// millisecond.
    pub fn serve_for(&mut self, duration: Duration) {
        let deadline = Instant::now() + duration;
        loop {
            self.poll();
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return;
            }
            self.wait(remaining.min(POLL_INTERVAL));
        }
    }
}
