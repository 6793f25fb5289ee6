//! Connecting a coordinator to all memory nodes, as a new life.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mitra_driver::{Poller, QpKind};
use mitra_failover::Domain;
use mitra_txn::{Life, NodeId};
use mitra_verbs::Error;

use super::Links;
use super::fences::Fences;
use crate::channels::{Channels, Link, LostNode};
use crate::hello::{Answer, Ask, Hello, Refusal, Token, VERSION};
use crate::tcp_request::{Call, CallError};

/// The time between two polls while connections are being made.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The configuration of [`Links`].
#[derive(Clone, Debug)]
pub struct LinksConfig {
    /// The number of the coordinator, from 1.
    pub coordinator: u16,
    /// The token of the coordinator.
    pub token: Token,
    /// The fingerprint of the layout.
    pub fingerprint: u64,
    /// The addresses of the memory nodes, in the order of their numbers.
    pub nodes: Vec<SocketAddr>,
    /// The nodes that are declared dead. All coordinators must have the same list.
    pub dead: Vec<NodeId>,
    /// The offsets whose WRITEs may be repeated after a failure: the coordinator's log and
    /// heartbeat. No other process writes there during this life.
    pub repeatable: Vec<Range<u64>>,
    /// The kind of the queue pairs.
    pub kind: QpKind,
    /// The configuration of the queue pairs. Both ends must use the same configuration. `send_wrs`
    /// limits the requests in flight at one node.
    pub failover: mitra_failover::Config,
    /// The registered memory for the payload of the requests under way at one node, in bytes: at
    /// least the longest request ([`Layout::longest_request`](mitra_txn::Layout::longest_request)).
    pub staging_bytes: usize,
    /// The time for which [`Links::connect`] keeps asking a node that does not answer.
    pub timeout: Duration,
}

/// Why a coordinator could not connect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// A memory node did not admit the coordinator.
    #[error("memory node {}: {error}", node.0)]
    Node {
        /// The node.
        node: NodeId,
        /// The reason.
        error: CallError,
    },
    /// A process runs as the coordinator.
    #[error(
        "coordinator {} runs, as incarnation {}: a process writes its heartbeats; end that process first",
        .0.coordinator, .0.incarnation
    )]
    Runs(Life),
    /// The coordinator has used up its incarnations.
    #[error("coordinator {0} has used up its 65535 incarnations; run as another coordinator")]
    Incarnations(u16),
    /// The layout has no such coordinator.
    #[error("the layout has no coordinator {0}; its coordinators are 1 to {1}")]
    Coordinator(u16, u16),
    /// The staging memory is shorter than the longest request.
    #[error("staging_bytes is {bytes}, and the longest request of the layout has {needed} bytes; raise it")]
    Staging {
        /// The length of the staging memory for a node, in bytes.
        bytes: usize,
        /// The length of the longest request
        /// ([`Layout::longest_request`](mitra_txn::Layout::longest_request)).
        needed: u64,
    },
    /// A node was lost after its connection was made.
    #[error(transparent)]
    Lost(#[from] LostNode),
    /// The NIC refused a verb.
    #[error("the NIC: {0}")]
    Nic(#[from] Error),
    /// The operating system refused a call.
    #[error(transparent)]
    Io(#[from] io::Error),
}

pub(super) fn connect(domain: &Arc<Domain>, config: &LinksConfig) -> Result<Links, ConnectError> {
    let coordinator = config.coordinator;
    let hello = |node| Hello {
        version: VERSION,
        token: config.token,
        fingerprint: config.fingerprint,
        node,
        coordinator,
        ask: Ask::Highest,
    };
    let all = (0..).zip(&config.nodes).filter(|(node, _)| !config.dead.contains(&NodeId(*node)));
    let nodes: Vec<_> = all.map(|(node, &address)| (address, hello(node))).collect();
    let deadline = Instant::now() + config.timeout;
    let ask = |(address, hello): &(SocketAddr, Hello)| Call::new(*address, hello.clone(), Some(deadline));
    let calls = nodes.iter().map(ask).collect();
    let mut links = Links {
        life: Life { coordinator, incarnation: 0 },
        channels: Channels::new(config.nodes.len()),
        fences: Fences::new(nodes.clone()),
        poller: Poller::new(domain).map_err(io::Error::from)?,
    };
    let mut highest = 0;
    finish(&mut links, calls, |_, _, answer| {
        let Answer::Highest(incarnation) = answer else { return Err(CallError::Answer) };
        highest = highest.max(incarnation);
        Ok(())
    })?;
    links.life.incarnation = highest.checked_add(1).ok_or(ConnectError::Incarnations(coordinator))?;

    let repeatable = config.repeatable.clone().into();
    let mut unconnected: Vec<Option<Link>> = config.nodes.iter().map(|_| None).collect();
    let mut calls = Vec::new();
    for (address, hello) in nodes {
        let link = Link::new(domain, config.kind, &config.failover, config.staging_bytes, &repeatable)?;
        let ask = Ask::Connect { incarnation: links.life.incarnation, info: link.info()? };
        unconnected[usize::from(hello.node)] = Some(link);
        // Asked once, because the node may have admitted the life even if the answer is lost.
        calls.push(Call::new(address, Hello { ask, ..hello }, Some(Instant::now())));
    }
    finish(&mut links, calls, |links, node, answer| {
        let index = usize::from(node.0);
        let Answer::Connected { info, region } = answer else { return Err(CallError::Answer) };
        let Some(mut link) = unconnected[index].take() else { return Err(CallError::Answer) };
        if !link.connect(&info, &region).map_err(CallError::Connect)? {
            return Err(Refusal::Kind.into());
        }
        links.channels.add(node, link);
        Ok(())
    })?;
    Ok(links)
}

/// Waits for all answers. Connections that exist already are driven meanwhile.
fn finish(
    links: &mut Links,
    mut calls: Vec<Call>,
    mut on_answer: impl FnMut(&mut Links, NodeId, Answer) -> Result<(), CallError>,
) -> Result<(), ConnectError> {
    while !calls.is_empty() {
        let mut failed = None;
        calls.retain_mut(|call| {
            let Some(answer) = call.poll() else { return true };
            if let Err(error) = answer.and_then(|answer| on_answer(links, call.node, answer)) {
                failed.get_or_insert(ConnectError::Node { node: call.node, error });
            }
            false
        });
        failed.map_or(Ok(()), Err)?;
        links.poll(&mut Vec::new())?;
        links.poller.wait(POLL_INTERVAL);
    }
    Ok(())
}
