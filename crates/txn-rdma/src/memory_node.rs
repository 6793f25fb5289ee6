//! A memory node: lends its memory to coordinators, which read and write it by one-sided
//! operations.
//!
//! The processor of a memory node accepts coordinators, ends lives, and takes part in failovers. It
//! touches no transaction.

mod node;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mitra_driver::{Poller, Waker};
use mitra_failover::Domain;
use mitra_handshake::Acceptor;
use mitra_txn::Life;
use mitra_verbs::Buffer;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

pub use self::node::{Node, NodeConfig, StartError};
use crate::hello::{Answer, Hello};

/// A memory node. It makes progress only inside [`MemoryNode::poll`] and [`MemoryNode::serve_for`].
/// One-sided operations of coordinators do not depend on these calls.
#[derive(Debug)]
pub struct MemoryNode {
    node: Node,
    acceptor: Acceptor<Hello>,
    poller: Poller,
}

impl MemoryNode {
    /// Creates a memory node, whose memory is zero, and accepts coordinators on `listener`. The
    /// domain must have completion channels ([`Domain::with_completion_channels`]), whose events
    /// end [`MemoryNode::wait`].
    ///
    /// Virtual queue pairs with the policy exact share atomics ([`Domain::share_atomics`]), so that
    /// compare-and-swaps of different coordinators are atomic even after a failover. The other
    /// policies are baselines and do not guarantee this atomicity.
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

    /// Answers coordinators, drives all connections, and ends lives whose connection has closed.
    /// Call it whenever [`MemoryNode::wait`] returns.
    pub fn poll(&mut self) {
        while let Some(incoming) = self.acceptor.next() {
            let answer = self.node.answer(&incoming.hello).unwrap_or_else(Answer::Refused);
            // An error is ignored: the coordinator has gone, so it becomes silent, and its life
            // ends.
            let _ = incoming.accept(&answer);
        }
        self.node.poll();
    }

    /// Blocks until [`MemoryNode::poll`] has something to do or a [`Waker`] wakes the node, for at
    /// most `timeout`.
    pub fn wait(&self, timeout: Duration) {
        let timeout = self.node.due_in().map_or(timeout, |due| due.min(timeout));
        let fds: Vec<_> = self.poller.fds().into_iter().chain(self.node.event_fds()).collect();
        let mut fds: Vec<_> = fds.iter().map(|&fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        // After an error such as EINTR, the node polls early, which is harmless.
        let _ = ppoll(&mut fds, Some(TimeSpec::from(timeout)), None);
        self.poller.drain_events();
    }

    /// Returns a handle that ends a wait from any thread.
    pub fn waker(&self) -> Waker {
        self.poller.waker()
    }

    /// Serves until `duration` has passed. The processor is idle while nothing happens.
    pub fn serve_for(&mut self, duration: Duration) {
        let deadline = Instant::now() + duration;
        loop {
            self.poll();
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return;
            }
            self.wait(remaining);
        }
    }
}
