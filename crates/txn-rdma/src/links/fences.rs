//! The fences of other lives on all memory nodes, requested by one coordinator.

use std::net::SocketAddr;

use mitra_txn::{Life, NodeId};

use crate::hello::{Answer, Ask, Hello};
use crate::tcp_request::{Call, CallError};

/// The result of [`Links::fence`](super::Links::fence).
#[derive(Debug)]
pub struct Fenced {
    /// The fenced life.
    pub life: Life,
    /// A node that does not confirm the fence, with the reason. `None` means that no access of the
    /// life is in flight on a node that is not declared dead, and that none follows.
    pub refused: Option<(NodeId, CallError)>,
}

#[derive(Debug)]
pub(super) struct Fences {
    /// The nodes that are not declared dead, each with the hello to it.
    nodes: Vec<(SocketAddr, Hello)>,
    fences: Vec<Fence>,
}

#[derive(Debug)]
struct Fence {
    life: Life,
    calls: Vec<Call>,
    refused: Option<(NodeId, CallError)>,
}

impl Fences {
    pub(super) fn new(nodes: Vec<(SocketAddr, Hello)>) -> Fences {
        Fences { nodes, fences: Vec::new() }
    }

    /// Asks all nodes, as the life `by`.
    pub(super) fn begin(&mut self, by: Life, life: Life) {
        let call = |(address, hello): &(SocketAddr, Hello)| {
            let ask = Ask::Fence {
                incarnation: by.incarnation,
                fenced_coordinator: life.coordinator,
                fenced_incarnation: life.incarnation,
            };
            Call::new(*address, Hello { ask, ..hello.clone() }, None)
        };
        self.fences.push(Fence { life, calls: self.nodes.iter().map(call).collect(), refused: None });
    }

    pub(super) fn poll(&mut self) {
        for Fence { calls, refused, .. } in &mut self.fences {
            calls.retain_mut(|call| {
                let error = match call.poll() {
                    None => return true,
                    Some(Ok(Answer::Fenced)) => return false,
                    Some(Ok(_)) => CallError::Answer,
                    Some(Err(error)) => error,
                };
                refused.get_or_insert((call.node, error));
                false
            });
        }
    }

    pub(super) fn take_ended(&mut self) -> Option<Fenced> {
        let is_over = |fence: &Fence| fence.calls.is_empty() || fence.refused.is_some();
        let at = self.fences.iter().position(is_over)?;
        let Fence { life, refused, .. } = self.fences.swap_remove(at);
        Some(Fenced { life, refused })
    }
}
