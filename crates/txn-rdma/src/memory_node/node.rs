//! A memory node without the handshake: which lives it admits, and their rights.

mod session;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use mitra_driver::{QpInfo, QpKind};
use mitra_failover::{Domain, Policy};
use mitra_mutants::Mutant;
use mitra_txn::{Life, NodeId};
use mitra_verbs::{AtomicScope, Buffer, Error};

use self::session::Session;
use crate::hello::{Answer, Ask, Hello, Refusal, Token, VERSION};

/// The number of lives of one coordinator that may be connected at once. Normally, a life that has
/// ended is fenced before another life needs its place.
const MAX_LIVES: usize = 4;

/// The configuration of a [`MemoryNode`](crate::MemoryNode).
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The number of the node.
    pub node: NodeId,
    /// The size of its memory, in bytes.
    pub bytes: usize,
    /// The fingerprint of the layout. Coordinators with another fingerprint are refused.
    pub fingerprint: u64,
    /// The token of each coordinator, from coordinator 1.
    pub tokens: Vec<Token>,
    /// The kind of the queue pairs.
    pub kind: QpKind,
    /// The configuration of the queue pairs. Both ends must use the same configuration.
    pub failover: mitra_failover::Config,
}

/// Why a memory node cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The operating system refused a call.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The NIC refused a verb.
    #[error("the NIC: {0}")]
    Nic(#[from] Error),
    /// A NIC lacks a capability that transactions need.
    #[error("transactions need {needs}, which {nic} lacks; use another NIC for the memory")]
    Capability {
        /// The name of the NIC.
        nic: String,
        /// The missing capability.
        needs: &'static str,
    },
    /// There are too many coordinators for their 16-bit numbers.
    #[error("{0} tokens; at most 65535 coordinators can share a memory")]
    Coordinators(usize),
}

impl From<nix::Error> for StartError {
    fn from(error: nix::Error) -> StartError {
        StartError::Io(error.into())
    }
}

/// The state of a coordinator at a node.
#[derive(Debug, Default)]
struct Coordinator {
    /// The highest incarnation that was ever admitted or fenced. Only higher incarnations are
    /// admitted.
    highest: u16,
    /// The lives that are connected, at most [`MAX_LIVES`].
    sessions: Vec<Session>,
}

/// A memory node whose caller passes in the coordinators' requests.
/// [`MemoryNode`](crate::MemoryNode) receives them over TCP.
#[derive(Debug)]
pub struct Node {
    config: NodeConfig,
    domain: Arc<Domain>,
    memory: Arc<Buffer>,
    coordinators: Vec<Coordinator>,
}

impl Node {
    /// Creates a memory node, whose memory is zero.
    ///
    /// # Errors
    /// A [`StartError`].
    pub fn new(domain: Arc<Domain>, config: NodeConfig) -> Result<Node, StartError> {
        if config.tokens.len() > u16::MAX.into() {
            return Err(StartError::Coordinators(config.tokens.len()));
        }
        check_capabilities(&domain)?;
        if config.kind == QpKind::Virtual && config.failover.policy == Policy::Exact {
            domain.share_atomics()?;
        }
        let memory = Arc::new(Buffer::new(config.bytes));
        let coordinators = config.tokens.iter().map(|_| Coordinator::default()).collect();
        Ok(Node { config, domain, memory, coordinators })
    }

    /// Returns the memory, for checks while no coordinator uses it.
    pub fn memory(&self) -> &Arc<Buffer> {
        &self.memory
    }

    /// Returns the lives that are connected.
    pub fn lives(&self) -> impl Iterator<Item = Life> {
        (1..=u16::MAX).zip(&self.coordinators).flat_map(|(coordinator, known)| {
            known.sessions.iter().map(move |session| Life { coordinator, incarnation: session.incarnation })
        })
    }

    /// Drives all connections, and ends lives whose connection has closed.
    pub fn poll(&mut self) {
        for known in &mut self.coordinators {
            known.sessions.retain_mut(|session| session.handle_events() || session.end().is_err());
        }
    }

    fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.coordinators.iter().flat_map(|known| &known.sessions)
    }

    /// The descriptors that are readable when [`Node::poll`] has something to do.
    pub(super) fn event_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sessions().flat_map(|session| session.qp().event_fds())
    }

    /// The time after which [`Node::poll`] is due even if no event arrives.
    pub(super) fn due_in(&self) -> Option<Duration> {
        let due = self.sessions().filter_map(|session| session.qp().event_timeout()).min()?;
        Some(due.saturating_since(self.domain.nics()[0].provider.now()))
    }

    /// Executes the request of a coordinator.
    ///
    /// # Errors
    /// The reason for the refusal.
    pub fn answer(&mut self, hello: &Hello) -> Result<Answer, Refusal> {
        let &Hello { version, ref token, fingerprint, node, coordinator, ref ask } = hello;
        if version != VERSION {
            return Err(Refusal::Version(VERSION));
        }
        let index = usize::from(coordinator).checked_sub(1);
        let Some(index) = index.filter(|&index| self.config.tokens.get(index) == Some(token)) else {
            return Err(Refusal::Token(coordinator));
        };
        if fingerprint != self.config.fingerprint {
            return Err(Refusal::Layout);
        }
        if node != self.config.node.0 {
            return Err(Refusal::Node(self.config.node.0));
        }
        match *ask {
            Ask::Highest if Mutant::EndedLifeAdmitted.is_on() => Ok(Answer::Highest(0)),
            Ask::Highest => Ok(Answer::Highest(self.coordinators[index].highest)),
            Ask::Connect { incarnation, ref info } => self.connect(index, incarnation, info),
            Ask::Fence { incarnation, fenced_coordinator, fenced_incarnation } => {
                if !self.coordinators[index].sessions.iter().any(|by| by.incarnation == incarnation) {
                    return Err(Refusal::NotConnected);
                }
                self.fence(Life { coordinator: fenced_coordinator, incarnation: fenced_incarnation })?;
                Ok(Answer::Fenced)
            }
        }
    }

    fn connect(&mut self, index: usize, incarnation: u16, info: &QpInfo) -> Result<Answer, Refusal> {
        let known = &mut self.coordinators[index];
        if incarnation <= known.highest && !Mutant::EndedLifeAdmitted.is_on() {
            return Err(Refusal::Incarnation(known.highest));
        }
        if known.sessions.len() >= MAX_LIVES {
            return Err(Refusal::Lives(known.sessions.len()));
        }
        let NodeConfig { kind, failover, .. } = &self.config;
        let mut session = Session::new(&self.domain, &self.memory, incarnation, *kind, failover)?;
        let connected = session.connect(info);
        // A session that can neither be connected nor ended stays, so that a fence of its life is
        // not confirmed.
        if connected.is_ok() || session.end().is_err() {
            known.highest = incarnation;
            known.sessions.push(session);
        }
        connected
    }

    /// Ends the lives of a coordinator up to this incarnation, and admits none of them again.
    fn fence(&mut self, life: Life) -> Result<(), Refusal> {
        let index = usize::from(life.coordinator).checked_sub(1);
        let Some(known) = index.and_then(|index| self.coordinators.get_mut(index)) else {
            return Err(Refusal::Coordinator(life.coordinator));
        };
        known.highest = known.highest.max(life.incarnation);
        let mut ended = Ok(());
        known.sessions.retain_mut(|session| {
            if session.incarnation > life.incarnation || Mutant::LifeNotFenced.is_on() {
                return true;
            }
            let result = session.end();
            let stays = result.is_err();
            ended = std::mem::replace(&mut ended, Ok(())).and(result);
            stays
        });
        ended
    }
}

/// Checks the capabilities that transactions need: an acknowledged WRITE is in memory, WRITEs are
/// placed in their order, and there are atomics.
fn check_capabilities(domain: &Domain) -> Result<(), StartError> {
    for nic in domain.nics() {
        let attr = nic.provider.attr();
        let capabilities = &attr.capabilities;
        let needs = [
            (capabilities.ack_after_placement, "acknowledgements after placement (ack_after_placement)"),
            (capabilities.write_order, "WRITEs in their order (write_order)"),
            (capabilities.atomic_scope != AtomicScope::None, "atomics"),
        ];
        if let Some((_, needs)) = needs.into_iter().find(|(has, _)| !has) {
            return Err(StartError::Capability { nic: attr.name.clone(), needs });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
