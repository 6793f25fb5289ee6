//! Fences: the ends of other lives on all memory nodes, as one coordinator asks for them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mitra_txn::{Life, NodeId};

use crate::call::{Call, CallError};
use crate::hello::{Answer, Ask, Hello};

/// The result of [`Links::fence`](super::Links::fence).
#[derive(Debug)]
pub struct Fenced {
    /// The life.
    pub life: Life,
    /// The nodes that have not confirmed the fence, with the reasons. If there are none, no access of the
    /// life is under way on a node that is not declared dead, and none follows.
    pub failed: Vec<(NodeId, CallError)>,
}

/// The fences of one coordinator.
#[derive(Debug)]
pub(super) struct Fences {
    /// The nodes that are not declared dead, with what the coordinator says to each.
    nodes: Vec<(SocketAddr, Hello)>,
    /// The time for which an unreachable node is asked again.
    timeout: Duration,
    fences: Vec<Fence>,
}

#[derive(Debug)]
struct Fence {
    life: Life,
    calls: Vec<Call>,
    failed: Vec<(NodeId, CallError)>,
}

impl Fences {
    pub(super) fn new(nodes: Vec<(SocketAddr, Hello)>, timeout: Duration) -> Fences {
        Fences { nodes, timeout, fences: Vec::new() }
    }

    /// Asks all nodes, as the life `by`.
    pub(super) fn begin(&mut self, by: Life, life: Life) {
        let deadline = Instant::now() + self.timeout;
        let call = |(address, hello): &(SocketAddr, Hello)| {
            let ask = Ask::Fence {
                incarnation: by.incarnation,
                fenced_coordinator: life.coordinator,
                fenced_incarnation: life.incarnation,
            };
            Call::new(*address, Hello { ask, ..hello.clone() }, deadline)
        };
        self.fences.push(Fence { life, calls: self.nodes.iter().map(call).collect(), failed: Vec::new() });
    }

    pub(super) fn poll(&mut self) {
        for Fence { calls, failed, .. } in &mut self.fences {
            calls.retain_mut(|call| {
                let error = match call.poll() {
                    None => return true,
                    Some(Ok(Answer::Fenced)) => return false,
                    Some(Ok(_)) => CallError::Answer,
                    Some(Err(error)) => error,
                };
                failed.push((call.node, error));
                false
            });
        }
    }

    pub(super) fn take_ended(&mut self) -> Option<Fenced> {
        let at = self.fences.iter().position(|fence| fence.calls.is_empty())?;
        let Fence { life, failed, .. } = self.fences.swap_remove(at);
        Some(Fenced { life, failed })
    }
}
